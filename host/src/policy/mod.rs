//! Running policies: components behind the contract in `wit/`, pure and sandboxed, whose
//! verdicts are held against what the database did.

mod audit;
mod bindings;
mod call;
mod capability;
mod counters;
mod engine;
mod fault;
mod limits;
mod metadata;
mod record;
mod slot;

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;
use wasmtime::component::types::ComponentItem;

pub(crate) use audit::{Judgement, close_session, heartbeat, locks_of, open_session};
pub(crate) use call::Call;

pub use capability::{StatementsCtx, StatementsView, add_to_linker};
pub use counters::PolicyCounts;
pub use engine::{LoadError, PolicyEngine};
pub use fault::PolicyFault;
pub use limits::Limits;
pub use record::{CallRecord, Operation};
pub use slot::PolicySlot;

use crate::Error;
use bindings::SessionPolicyPre;
use call::CallState;
use counters::Counters;

/// The default policy, `guest/lifecycle`, as a component.
pub const LIFECYCLE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lifecycle.wasm"));

/// A policy that has been loaded: compiled, linked, ready to be called. Cloning it shares
/// it.
#[derive(Clone)]
pub struct Policy {
    engine: PolicyEngine,
    pre: SessionPolicyPre<CallState>,
    about: Arc<About>,
}

struct About {
    name: String,
    version: Option<String>,
    sha256: String,
    size: usize,
    imports: Vec<String>,
    exports: Vec<String>,
    counters: Counters,
}

impl Policy {
    /// Loads a component. Compiles it, which takes some 15 ms for one written in Rust and
    /// blocks the thread meanwhile.
    ///
    /// Fails with a [`LoadError`] that says what does not fit; nothing of it has run then.
    pub fn load(engine: &PolicyEngine, component: &[u8]) -> Result<Self, LoadError> {
        if Engine::detect_precompiled(component).is_some() {
            return Err(LoadError::Precompiled);
        }
        let inner = &engine.inner;
        let compiled = Component::from_binary(&inner.engine, component)
            .map_err(|error| LoadError::NotAComponent(format!("{error:#}")))?;
        let pre = inner
            .linker
            .instantiate_pre(&compiled)
            .and_then(SessionPolicyPre::new)
            .map_err(|error| LoadError::DoesNotFit(format!("{error:#}")))?;
        let ty = compiled.component_type();
        let names = |items: Vec<(&str, ComponentItem)>| {
            items.into_iter().map(|(name, _)| name.to_owned()).collect()
        };
        let (name, version) = metadata::read(component);
        Ok(Self {
            engine: engine.clone(),
            pre,
            about: Arc::new(About {
                name: name.unwrap_or_else(|| "unnamed".to_owned()),
                version,
                sha256: hex(&Sha256::digest(component)),
                size: component.len(),
                imports: names(ty.imports(&inner.engine).map(|(n, i)| (n, i.ty)).collect()),
                exports: names(ty.exports(&inner.engine).map(|(n, i)| (n, i.ty)).collect()),
                counters: Counters::default(),
            }),
        })
    }

    /// The engine that it was loaded into.
    #[must_use]
    pub fn engine(&self) -> &PolicyEngine {
        &self.engine
    }

    /// Its name, from the component's metadata.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.about.name
    }

    /// Its version, from the component's metadata.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.about.version.as_deref()
    }

    /// The SHA-256 of the component, in hexadecimal.
    #[must_use]
    pub fn sha256(&self) -> &str {
        &self.about.sha256
    }

    /// The size of the component in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.about.size
    }

    /// The interfaces that it imports.
    #[must_use]
    pub fn imports(&self) -> &[String] {
        &self.about.imports
    }

    /// The interfaces that it exports.
    #[must_use]
    pub fn exports(&self) -> &[String] {
        &self.about.exports
    }

    /// How its calls have ended since it was loaded.
    #[must_use]
    pub fn counts(&self) -> PolicyCounts {
        self.about.counters.read()
    }

    /// Counts a call that has ended.
    pub(crate) fn ended<T>(&self, outcome: &Result<T, Error>) {
        self.about.counters.ended(outcome);
    }

    /// Counts and logs what it did wrong.
    pub(crate) fn misbehaved(&self, fault: &PolicyFault) {
        self.about.counters.misbehaved(fault);
        match fault {
            PolicyFault::Violation(what) => tracing::error!(
                policy = self.name(),
                sha256 = self.sha256(),
                what,
                "policy_violation"
            ),
            other => tracing::error!(
                policy = self.name(),
                sha256 = self.sha256(),
                fault = %other,
                "policy_failed"
            ),
        }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.name())
            .field("sha256", &self.sha256())
            .finish_non_exhaustive()
    }
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
