//! Running policies: components behind the contract in `wit/`, pure and sandboxed, whose
//! verdicts are held against what the database did.

mod audit;
mod bindings;
pub(crate) mod call;
mod capability;
#[cfg(feature = "conformance")]
pub mod conformance;
mod counters;
mod engine;
mod extras;
mod fault;
mod idle;
mod limits;
mod log;
mod metadata;
mod nesting;
mod profile;
mod record;
mod slot;
mod usage;
mod wasi;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;
use wasmtime::component::types::ComponentItem;
use wasmtime_wasi_config::WasiConfigVariables;

pub(crate) use audit::{Judgement, close_session, heartbeat, locks_of, open_session};
pub(crate) use engine::Priority;

pub use capability::{StatementsCtx, StatementsView, add_to_linker};
pub use counters::PolicyCounts;
pub use engine::{LoadError, PolicyEngine};
pub use fault::PolicyFault;
pub use limits::{Limits, Room};
pub use profile::Profile;
pub use record::{CallRecord, Operation};
pub use slot::PolicySlot;
pub use usage::Used;

use crate::Error;
use bindings::SessionPolicyPre;
use call::CallState;
use counters::Counters;
use log::Rate;
use profile::Needs;

/// The default policy, `guest/lifecycle`, as a component.
pub const LIFECYCLE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lifecycle.wasm"));

/// A policy's settings, by their keys. It reads them as `wasi:config/store`; what they mean
/// is its own affair, and so is one that it does not know.
pub type PolicySettings = BTreeMap<String, String>;

/// What a policy is loaded with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyOptions {
    /// Its settings, which stay the same for as long as it is in charge: with other
    /// settings it is another policy, to be loaded anew.
    pub settings: PolicySettings,
    /// The largest profile that it may have.
    pub profile: Profile,
}

/// A policy that has been loaded: compiled, linked, ready to be called. Cloning it shares
/// it.
#[derive(Clone)]
pub struct Policy {
    engine: PolicyEngine,
    pre: SessionPolicyPre<CallState>,
    about: Arc<About>,
}

/// What all calls of a policy share.
struct About {
    name: String,
    version: Option<String>,
    sha256: String,
    size: usize,
    imports: Vec<String>,
    exports: Vec<String>,
    counters: Arc<Counters>,
    profile: Profile,
    settings: PolicySettings,
    /// The settings, as the policy gets them.
    variables: WasiConfigVariables,
    log_rate: Rate,
    /// How many slots it is in.
    slots: AtomicUsize,
}

impl About {
    fn is_in_charge(&self) -> bool {
        self.slots.load(Ordering::SeqCst) > 0
    }
}

impl Policy {
    /// Loads a component without settings, in the profile [`Strict`](Profile::Strict). See
    /// [`load_with`](Self::load_with).
    pub fn load(engine: &PolicyEngine, component: &[u8]) -> Result<Self, LoadError> {
        Self::load_with(engine, component, &PolicyOptions::default())
    }

    /// Loads a component. Compiles it, which takes some 15 ms for one written in Rust and
    /// blocks the thread meanwhile.
    ///
    /// Fails with a [`LoadError`] that says what does not fit; nothing of it has run then.
    pub fn load_with(
        engine: &PolicyEngine,
        component: &[u8],
        options: &PolicyOptions,
    ) -> Result<Self, LoadError> {
        if Engine::detect_precompiled(component).is_some() {
            return Err(LoadError::Precompiled);
        }
        nesting::check(component).map_err(LoadError::NotAComponent)?;
        let inner = &engine.inner;
        let compiled = Component::from_binary(&inner.engine, component)
            .map_err(|error| LoadError::NotAComponent(format!("{error:#}")))?;
        let profile = Needs::of(component, &compiled)
            .ok_or_else(|| LoadError::DoesNotFit("it imports a core module".to_owned()))?
            .profile(&inner.limits, options.profile)?;
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
                sha256: sha256(component),
                size: component.len(),
                imports: names(ty.imports(&inner.engine).map(|(n, i)| (n, i.ty)).collect()),
                exports: names(ty.exports(&inner.engine).map(|(n, i)| (n, i.ty)).collect()),
                counters: Arc::default(),
                profile,
                settings: options.settings.clone(),
                variables: options
                    .settings
                    .iter()
                    .map(|(key, value)| (key.as_str(), value.as_str()))
                    .collect(),
                log_rate: Rate::default(),
                slots: AtomicUsize::new(0),
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

    /// The profile that it was given.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.about.profile
    }

    /// The settings that it was loaded with.
    #[must_use]
    pub fn settings(&self) -> &PolicySettings {
        &self.about.settings
    }

    /// How its calls have ended since it was loaded.
    #[must_use]
    pub fn counts(&self) -> PolicyCounts {
        self.about.counters.read()
    }

    /// The latest of its violations: what it did.
    #[must_use]
    pub fn last_violation(&self) -> Option<String> {
        self.about.counters.last_violation()
    }

    /// It has been put into a slot.
    fn takes_charge(&self) {
        self.about.slots.fetch_add(1, Ordering::SeqCst);
    }

    /// It has been taken out of a slot.
    fn leaves(&self) {
        if self.about.slots.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.engine.inner.idle.forget(&self.about);
        }
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

    /// Outlives the policy, to be watched.
    #[cfg(feature = "rollout")]
    pub(crate) fn counters(&self) -> Arc<Counters> {
        self.about.counters.clone()
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

/// The SHA-256 of a component, in lower-case hexadecimal.
pub(crate) fn sha256(component: &[u8]) -> String {
    hex(&Sha256::digest(component))
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
