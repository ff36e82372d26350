//! Scenarios: what is done, and what has to come of it. Data, in `scenarios.json`, so that
//! another runtime can be held to the same ones; the file describes its own format.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::stage::{Fault, When};

const FILE: &str = include_str!("scenarios.json");

/// A story with a point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// What it is called.
    pub name: String,
    /// What would go wrong for whom if a policy failed it.
    pub why: String,
    /// What is done, in order.
    pub steps: Vec<Step>,
}

/// The scenarios of `scenarios.json`.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    #[derive(Deserialize)]
    struct File {
        scenarios: Vec<Scenario>,
    }
    let file: File = serde_json::from_str(FILE).expect("scenarios.json is well-formed");
    file.scenarios
}

/// One step of a scenario, or of a random history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What is done.
    #[serde(flatten)]
    pub action: Action,
    /// What befalls the call's statement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// The call is begun here and waits in the middle of its statement, until it is finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// What the default policy answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<Outcome>,
    /// What another policy may answer too, beside its own no.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub admits: Vec<Outcome>,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Action {
    /// Calls `open-session`.
    OpenSession {
        /// The name under which later steps know the session.
        #[serde(rename = "as", default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Else the owner that the check is run for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<Text>,
        /// The TTL.
        ttl_ms: Ttl,
    },
    /// Calls `heartbeat`.
    Heartbeat {
        /// Whose.
        session: Text,
        /// The TTL.
        ttl_ms: Ttl,
    },
    /// Calls `close-session`.
    CloseSession {
        /// Which.
        session: Text,
    },
    /// Calls `locks-of`.
    LocksOf {
        /// Whose.
        session: Text,
    },
    /// Lets a call that is held go on, and waits for its answer.
    Finish {
        /// The call's name.
        call: String,
    },
    /// Takes locks for a session, past the policy.
    Lock {
        /// Whose they will be.
        session: Text,
        /// Their keys.
        keys: Keys,
    },
    /// Moves the clock.
    Advance {
        /// By this.
        ms: u64,
    },
    /// Moves the clock to the end of a session's lease, whatever the policy has granted; not
    /// at all if that is over.
    AdvanceToEnd {
        /// Whose.
        session: Text,
        /// Stops this short of it.
        #[serde(default)]
        before_ms: u64,
    },
    /// Removes what is dead.
    Reap,
}

impl Step {
    /// A step with nothing special about it.
    #[must_use]
    pub fn new(action: Action) -> Self {
        Self {
            action,
            fault: None,
            hold: None,
            expect: None,
            admits: Vec::new(),
        }
    }

    /// The text that names the session it is about, if it is about one.
    pub(super) fn session(&self) -> Option<String> {
        match &self.action {
            Action::OpenSession { name, .. } => name.as_ref().map(|name| format!("${name}")),
            Action::Heartbeat { session, .. }
            | Action::CloseSession { session }
            | Action::LocksOf { session }
            | Action::Lock { session, .. }
            | Action::AdvanceToEnd { session, .. } => Some(session.to_string()),
            Action::Finish { .. } | Action::Advance { .. } | Action::Reap => None,
        }
    }
}

/// Holds a call back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    /// Where.
    pub when: When,
    /// Under which name it is finished.
    pub call: String,
}

/// A text. `$name` stands for the id of the session that was opened under that name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Text {
    /// This, or a session's id.
    Plain(String),
    /// One text many times over.
    Repeated {
        /// The text.
        repeat: String,
        /// How often.
        times: usize,
    },
    /// In upper case.
    Upper {
        /// What else it is.
        upper: String,
    },
}

impl Text {
    /// What it says, where sessions have these ids; `None` for one that was never opened.
    pub(super) fn resolve(&self, sessions: &BTreeMap<String, String>) -> Option<String> {
        let plain = |text: &str| match text.strip_prefix('$') {
            Some(name) => sessions.get(name).cloned(),
            None => Some(text.to_owned()),
        };
        match self {
            Self::Plain(text) => plain(text),
            Self::Repeated { repeat, times } => Some(repeat.repeat(*times)),
            Self::Upper { upper } => plain(upper).map(|text| text.to_uppercase()),
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(text) if text.starts_with('$') => f.write_str(text),
            Self::Plain(text) => write!(f, "{text:?}"),
            Self::Repeated { repeat, times } => write!(f, "{repeat:?} {times} times over"),
            Self::Upper { upper } => write!(f, "{upper} in upper case"),
        }
    }
}

/// A TTL in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Ttl {
    /// So many.
    Ms(u64),
    /// One that JSON's numbers are not sure to hold.
    Named(NamedTtl),
}

/// A TTL with a name.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamedTtl {
    /// The largest `u64`.
    Max,
}

impl Ttl {
    pub(super) fn ms(self) -> u64 {
        match self {
            Self::Ms(ms) => ms,
            Self::Named(NamedTtl::Max) => u64::MAX,
        }
    }
}

/// Keys of locks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Keys {
    /// These.
    Listed(Vec<String>),
    /// So many: their numbers from 0 on, filled up with zeros on the left.
    Numbered {
        /// How many.
        numbered: usize,
        /// How many characters each has.
        width: usize,
    },
}

impl Keys {
    /// Each of them.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        match self {
            Self::Listed(keys) => keys.clone(),
            Self::Numbered { numbered, width } => {
                (0..*numbered).map(|n| format!("{n:0width$}")).collect()
            }
        }
    }
}

impl PartialEq for Keys {
    fn eq(&self, other: &Self) -> bool {
        self.list() == other.list()
    }
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// A session was opened.
    Opened,
    /// `true`: the session lives on.
    Alive,
    /// `false`: it is dead.
    Dead,
    /// So many locks went with the session.
    Closed(u32),
    /// These hang on the session.
    Locks(Keys),
    /// The error of this name.
    InvalidArgument,
    /// The error of this name.
    Refused,
    /// The error of this name.
    Contention,
    /// The error of this name.
    Store,
    /// So many locks were granted.
    Granted(usize),
    /// So many sessions were removed.
    Reaped(usize),
}

impl Outcome {
    /// Whether it is the policy's own no, which the contract lets it say to any call.
    #[must_use]
    pub fn is_no(&self) -> bool {
        matches!(self, Self::InvalidArgument | Self::Refused)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened => f.write_str("a session"),
            Self::Alive => f.write_str("true"),
            Self::Dead => f.write_str("false"),
            Self::Closed(locks) => write!(f, "closed, {locks} locks released"),
            Self::Locks(keys) => match keys.list().as_slice() {
                keys @ ([] | [_] | [_, _] | [_, _, _]) => write!(f, "the locks {keys:?}"),
                [first, .., last] => {
                    write!(f, "{} locks, {first:?} to {last:?}", keys.list().len())
                }
            },
            Self::InvalidArgument => f.write_str("invalid-argument"),
            Self::Refused => f.write_str("refused"),
            Self::Contention => f.write_str("contention"),
            Self::Store => f.write_str("store"),
            Self::Granted(locks) => write!(f, "{locks} locks granted"),
            Self::Reaped(sessions) => write!(f, "{sessions} sessions reaped"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ttl: &Ttl| ttl.ms();
        match &self.action {
            Action::OpenSession {
                name,
                owner,
                ttl_ms,
            } => {
                f.write_str("open-session")?;
                if let Some(name) = name {
                    write!(f, " ${name}")?;
                }
                if let Some(owner) = owner {
                    write!(f, " for the owner {owner}")?;
                }
                write!(f, " with a TTL of {} ms", ms(ttl_ms))?;
            }
            Action::Heartbeat { session, ttl_ms } => {
                write!(f, "heartbeat of {session} with a TTL of {} ms", ms(ttl_ms))?;
            }
            Action::CloseSession { session } => write!(f, "close-session of {session}")?,
            Action::LocksOf { session } => write!(f, "locks-of {session}")?,
            Action::Finish { call } => write!(f, "the end of the held call {call}")?,
            Action::Lock { session, keys } => {
                write!(f, "taking {} locks for {session}", keys.list().len())?;
            }
            Action::Advance { ms } => write!(f, "waiting for {ms} ms")?,
            Action::AdvanceToEnd { session, before_ms } => {
                write!(
                    f,
                    "waiting until {before_ms} ms before the end of {session}"
                )?;
            }
            Action::Reap => f.write_str("reaping")?,
        }
        match self.fault {
            None => Ok(()),
            Some(Fault::ContentionBefore) => {
                f.write_str(", whose statement meets contention before it takes effect")
            }
            Some(Fault::ContentionAfter) => {
                f.write_str(", whose statement takes effect and then meets contention")
            }
            Some(Fault::Rejected) => f.write_str(", whose statement the database rejects"),
            Some(Fault::Other) => f.write_str(", whose statement meets a fault of the database"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_file_says_nothing_that_is_not_read() {
        let file: serde_json::Value = serde_json::from_str(FILE).unwrap();
        let mut read = serde_json::to_value(scenarios()).unwrap();
        // A default, which is written out again.
        for scenario in read.as_array_mut().unwrap() {
            for step in scenario["steps"].as_array_mut().unwrap() {
                let step = step.as_object_mut().unwrap();
                if step.get("before_ms").is_some_and(|before| before == 0) {
                    step.remove("before_ms");
                }
            }
        }
        assert_eq!(file["scenarios"], read);
    }

    #[test]
    fn every_call_says_what_is_expected_and_every_scenario_has_a_name_of_its_own() {
        let mut names = BTreeSet::new();
        for scenario in scenarios() {
            assert!(names.insert(scenario.name.clone()), "{}", scenario.name);
            for step in &scenario.steps {
                let answers = match &step.action {
                    Action::OpenSession { .. }
                    | Action::Heartbeat { .. }
                    | Action::CloseSession { .. }
                    | Action::LocksOf { .. } => step.hold.is_none(),
                    Action::Finish { .. } => true,
                    Action::Lock { .. } | Action::Reap => step.expect.is_some(),
                    Action::Advance { .. } | Action::AdvanceToEnd { .. } => false,
                };
                assert_eq!(step.expect.is_some(), answers, "{}: {step}", scenario.name);
            }
        }
    }
}
