//! Putting another policy in charge while the host runs: what a candidate has to pass, and
//! the ways back.
//!
//! All of it happens off the path of the calls. A candidate that does not pass changes
//! nothing; one that does is in charge of every call that begins afterwards.

mod breaker;
mod signature;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex, oneshot};

use crate::policy::conformance::{self, Verdict};
use crate::policy::{LoadError, Policy, PolicyEngine, PolicyOptions, PolicySlot, sha256};
use crate::postgres::{Database, Noted, StoreError};

pub use breaker::Breaker;
pub use signature::{SignatureError, TrustedKeys, sign};

/// Where a policy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The program itself: the default policy.
    Embedded,
    /// A file.
    File(PathBuf),
    /// A request to the admin listener.
    Request,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str("embedded"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Request => f.write_str("request"),
        }
    }
}

/// A policy that asks to be put in charge. These bytes, read once, are the ones that are
/// hashed, checked, and run.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The component.
    pub component: Arc<[u8]>,
    /// The text of its signature, where it has one.
    pub signature: Option<String>,
    /// Where it comes from.
    pub origin: Origin,
}

/// What a candidate has to pass besides the check of its conformance.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Requirements {
    /// The SHA-256 of every policy that may be loaded, in hexadecimal. Empty: any. A policy
    /// that is pinned is named, and so may be an older revision than the newest.
    pub pins: Vec<String>,
    /// Whose signature it needs. `None`: nobody's. The default policy, which is a part of
    /// the program, needs none.
    pub keys: Option<TrustedKeys>,
    /// How many random operations it has to get through, besides every scenario.
    pub operations: usize,
    /// How long that may take. Other changes wait meanwhile, but for going back.
    pub patience: Duration,
    /// When a new policy is taken out of charge again.
    pub breaker: Breaker,
}

impl Default for Requirements {
    fn default() -> Self {
        Self {
            pins: Vec::new(),
            keys: None,
            operations: conformance::SWAP_OPERATIONS,
            // Interpreted policies take some seconds, on a busy machine many.
            patience: Duration::from_secs(120),
            breaker: Breaker::default(),
        }
    }
}

/// Why a candidate was not put in charge. The policy before stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// Its digest is none of the pinned ones.
    #[error("the policy with sha256 {0} is not pinned; --policy-sha256 names what may be loaded")]
    NotPinned(String),
    /// It has no signature, and needs one.
    #[error("the policy is not signed; put its signature beside it, or send it along")]
    Unsigned,
    /// Its signature is not good.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// A newer revision, or another policy under the same number, was accepted before.
    #[error(
        "revision {revision} is not the newest: revision {newest} (sha256 {sha256}) was accepted \
         before; to go back to an older one, name it with --policy-sha256"
    )]
    Superseded {
        /// The candidate's.
        revision: u64,
        /// The newest that was accepted.
        newest: u64,
        /// The newest's digest.
        sha256: String,
    },
    /// It is no component that can be run here.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It does not do what the contract demands.
    #[error("the policy does not conform to the contract: {0}")]
    Nonconforming(String),
    /// The newest accepted revision could not be read. A retry is safe.
    #[error("cannot tell whether the revision is the newest: {0}")]
    Store(#[from] StoreError),
    /// There is no policy before the one in charge.
    #[error("there is no policy before this one to go back to")]
    NothingBefore,
}

/// A policy that has been put in charge.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Revision {
    /// The policy, with what it has done.
    pub policy: Arc<Policy>,
    /// Where it comes from.
    pub origin: Origin,
    /// Its number, where it is signed.
    pub number: Option<u64>,
    /// When it was put in charge, by the host's clock.
    pub since: SystemTime,
    /// Whether it was put in charge by going back to it.
    pub rolled_back: bool,
}

/// Keeps the slot of a host's policy. Cloning it shares it.
#[derive(Clone)]
pub struct Rollout {
    inner: Arc<Inner>,
}

struct Inner {
    engine: PolicyEngine,
    database: Database,
    requirements: Requirements,
    slot: Arc<PolicySlot>,
    /// Taken by each change from outside, one after another.
    turn: Mutex<()>,
    /// Taken for a moment, or to compile what has passed before; never by a call.
    state: Mutex<State>,
}

struct State {
    now: Accepted,
    /// Kept as bytes: its compiled code goes when its last call ends.
    before: Option<Accepted>,
}

/// What has passed. To be put in charge again it is only compiled.
#[derive(Clone)]
struct Accepted {
    candidate: Candidate,
    options: PolicyOptions,
    number: Option<u64>,
    since: SystemTime,
    rolled_back: bool,
}

impl Rollout {
    /// Puts the first policy in charge, which has to pass like every other.
    pub async fn start(
        engine: PolicyEngine,
        database: Database,
        requirements: Requirements,
        options: PolicyOptions,
        candidate: Candidate,
    ) -> Result<Self, Rejection> {
        let number = requirements.admit(&candidate)?;
        let policy = compile(&engine, &options, &candidate, Some(&requirements)).await?;
        requirements.note(&database, &policy, number).await?;
        Ok(Self {
            inner: Arc::new(Inner {
                engine,
                database,
                requirements,
                slot: Arc::new(PolicySlot::new(policy)),
                turn: Mutex::new(()),
                state: Mutex::new(State {
                    now: Accepted::new(candidate, options, number),
                    before: None,
                }),
            }),
        })
    }

    /// The slot that the registry takes its policy from.
    #[must_use]
    pub fn slot(&self) -> &Arc<PolicySlot> {
        &self.inner.slot
    }

    /// The policy in charge.
    pub async fn current(&self) -> Revision {
        let state = self.inner.state.lock().await;
        self.revision(&state)
    }

    /// Puts `candidate` in charge, if it passes; changes of one host happen one after
    /// another. The one in charge, proposed again, stays as it is.
    ///
    /// Takes some tens of milliseconds for a policy written in Rust, seconds for one that
    /// brings an interpreter, and none of the calls' time.
    pub async fn propose(&self, candidate: Candidate) -> Result<Revision, Rejection> {
        self.change(Some(candidate), None).await
    }

    /// Gives the policy in charge, or `candidate` if there is one, these options. A policy
    /// with other settings is another policy, and has to pass like every other.
    pub async fn configure(
        &self,
        candidate: Option<Candidate>,
        options: PolicyOptions,
    ) -> Result<Revision, Rejection> {
        self.change(candidate, Some(options)).await
    }

    /// Goes back to the policy before the one in charge. It passed once, and is not checked
    /// again; nor does it matter that it is an older revision. There is one way back, not
    /// two: after it, there is nothing before.
    pub async fn roll_back(&self) -> Result<Revision, Rejection> {
        let mut state = self.inner.state.lock().await;
        self.go_back(&mut state).await
    }

    async fn change(
        &self,
        candidate: Option<Candidate>,
        options: Option<PolicyOptions>,
    ) -> Result<Revision, Rejection> {
        let inner = &self.inner;
        let _turn = inner.turn.lock().await;
        loop {
            let now = {
                let state = inner.state.lock().await;
                let now = state.now.clone();
                if candidate
                    .as_ref()
                    .is_none_or(|new| new.component == now.candidate.component)
                    && options.as_ref().is_none_or(|new| *new == now.options)
                {
                    return Ok(self.revision(&state));
                }
                now
            };
            // What takes its time, and may go wrong, is not in the way of going back.
            let changed = candidate.clone().unwrap_or(now.candidate.clone());
            let options = options.clone().unwrap_or(now.options);
            let number = inner.requirements.admit(&changed)?;
            let checked = Some(&inner.requirements);
            let policy = compile(&inner.engine, &options, &changed, checked).await?;
            inner
                .requirements
                .note(&inner.database, &policy, number)
                .await?;
            let mut state = inner.state.lock().await;
            if candidate.is_none() && state.now.candidate.component != changed.component {
                // The policy whose options were to be changed has left charge meanwhile.
                continue;
            }
            let accepted = Accepted::new(changed, options, number);
            state.before = Some(std::mem::replace(&mut state.now, accepted));
            inner.slot.swap(policy);
            self.watch();
            let revision = self.revision(&state);
            announce(&revision, "policy_swapped");
            return Ok(revision);
        }
    }

    async fn go_back(&self, state: &mut State) -> Result<Revision, Rejection> {
        let before = state.before.as_ref().ok_or(Rejection::NothingBefore)?;
        let policy = compile(&self.inner.engine, &before.options, &before.candidate, None).await?;
        state.now = Accepted {
            since: now(),
            rolled_back: true,
            ..state.before.take().expect("it was there")
        };
        self.inner.slot.swap(policy);
        let revision = self.revision(state);
        announce(&revision, "policy_rolled_back");
        Ok(revision)
    }

    fn revision(&self, state: &State) -> Revision {
        Revision {
            policy: self.inner.slot.load(),
            origin: state.now.candidate.origin.clone(),
            number: state.now.number,
            since: state.now.since,
            rolled_back: state.now.rolled_back,
        }
    }
}

impl fmt::Debug for Rollout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rollout")
            .field("slot", &self.inner.slot)
            .field("requirements", &self.inner.requirements)
            .finish_non_exhaustive()
    }
}

impl Accepted {
    fn new(candidate: Candidate, options: PolicyOptions, number: Option<u64>) -> Self {
        Self {
            candidate,
            options,
            number,
            since: now(),
            rolled_back: false,
        }
    }
}

impl Requirements {
    /// The candidate's number, if it may be looked at at all.
    fn admit(&self, candidate: &Candidate) -> Result<Option<u64>, Rejection> {
        let digest = sha256(&candidate.component);
        if !self.pins.is_empty() && !self.is_pinned(&digest) {
            return Err(Rejection::NotPinned(digest));
        }
        let Some(keys) = &self.keys else {
            return Ok(None);
        };
        match (&candidate.signature, &candidate.origin) {
            (_, Origin::Embedded) => Ok(None),
            (None, _) => Err(Rejection::Unsigned),
            (Some(signature), _) => Ok(Some(keys.verify(&digest, signature)?)),
        }
    }

    /// Makes the revision the newest, unless a newer one was accepted before. Comes after
    /// the check, so that a policy that does not pass supersedes nothing.
    async fn note(
        &self,
        database: &Database,
        policy: &Policy,
        number: Option<u64>,
    ) -> Result<(), Rejection> {
        let Some(revision) = number else {
            return Ok(());
        };
        match database.note_revision(revision, policy.sha256()).await? {
            Noted::Superseded {
                revision: newest,
                sha256,
            } if !self.is_pinned(policy.sha256()) => Err(Rejection::Superseded {
                revision,
                newest,
                sha256,
            }),
            _ => Ok(()),
        }
    }

    fn is_pinned(&self, digest: &str) -> bool {
        self.pins.iter().any(|pin| pin.eq_ignore_ascii_case(digest))
    }
}

/// For people to read. Nothing is decided by it.
#[expect(
    clippy::disallowed_methods,
    reason = "it is what the machine's clock says"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

/// Compiles and checks on a thread of its own, which ends soon after nobody waits for it.
async fn compile(
    engine: &PolicyEngine,
    options: &PolicyOptions,
    candidate: &Candidate,
    requirements: Option<&Requirements>,
) -> Result<Policy, Rejection> {
    let (engine, options) = (engine.clone(), options.clone());
    let component = candidate.component.clone();
    let settings = requirements.map(|requirements| conformance::Settings {
        limits: engine.limits().clone(),
        operations: requirements.operations,
        options: options.clone(),
        patience: requirements.patience,
        ..conformance::Settings::default()
    });
    let (mut tell, told) = oneshot::channel();
    thread::Builder::new()
        .name("tenure-check".to_owned())
        .spawn(move || {
            let mut passes = || {
                let policy = Policy::load_with(&engine, &component, &options)?;
                if let Some(settings) = &settings {
                    let given_up = tell.closed();
                    conforms(&conformance::check_until(settings, &component, given_up))?;
                }
                Ok(policy)
            };
            let passed = passes();
            // Whoever has gone away does not want to know.
            let _ = tell.send(passed);
        })
        .map_err(|error| LoadError::Engine(error.to_string()))?;
    told.await.expect("loading a policy does not panic")
}

/// Its failures in words, each with what it would mean.
fn conforms(report: &conformance::Report) -> Result<(), Rejection> {
    let failures: Vec<_> = report
        .checks
        .iter()
        .filter_map(|checked| match &checked.verdict {
            Verdict::Failed(failure) => Some(format!(
                "{}: after {}, expected {}, got {} ({})",
                checked.name, failure.did, failure.expected, failure.got, checked.why
            )),
            _ => None,
        })
        .collect();
    if failures.is_empty() {
        Ok(())
    } else {
        Err(Rejection::Nonconforming(failures.join("; ")))
    }
}

fn announce(revision: &Revision, event: &'static str) {
    tracing::warn!(
        policy = revision.policy.name(),
        version = revision.policy.version(),
        sha256 = revision.policy.sha256(),
        origin = %revision.origin,
        revision = revision.number,
        "{event}"
    );
}
