//! Random histories: many calls in any order, drawn from a seed.

use std::sync::Arc;

use super::model::Model;
use super::player::{Observed, Player};
use super::reference::expected;
use super::report::{Failure, Stricter, Verdict};
use super::scenario::{Action, Keys, Outcome, Step, Text, Ttl};
use super::stage::Fault;
use crate::policy::Policy;

const HALF_HOUR_MS: u64 = 30 * 60 * 1000;

/// How many steps may be played again in order to make a failing history smaller.
const REPLAYED: usize = 20_000;

/// The arguments that no policy may accept, and some that it has to cope with.
const OWNERS: [&str; 8] = [
    "",
    " ",
    "\u{a0}\u{2003}",
    "a\0b",
    "line\nbreak",
    "Zo\u{eb} \u{4e2d}\u{6587}",
    "\u{1f512}",
    "'; DROP TABLE lock_session; --",
];
const IDS: [&str; 5] = [
    "00000000-0000-4000-8000-000000000000",
    "FFFFFFFF-FFFF-4FFF-BFFF-FFFFFFFFFFFF",
    "00000000000040008000000000000000",
    "no session",
    "",
];

/// A history of so many operations. The same seed makes the same one.
///
/// Leases end at half hours and the clock moves by whole ones, so on a database whose clock
/// goes on by itself the same history has the same outcomes.
#[must_use]
pub fn history(seed: u64, operations: usize) -> Vec<Step> {
    let mut draw = Draw {
        rng: fastrand::Rng::with_seed(seed),
        opened: 0,
        keys: 0,
    };
    (0..operations).map(|_| draw.step()).collect()
}

struct Draw {
    rng: fastrand::Rng,
    opened: usize,
    keys: usize,
}

impl Draw {
    fn step(&mut self) -> Step {
        let action = match self.rng.u8(0..100) {
            0..20 => self.open(),
            20..55 => Action::Heartbeat {
                session: self.session(),
                ttl_ms: self.ttl(),
            },
            55..65 => Action::CloseSession {
                session: self.session(),
            },
            65..77 => Action::LocksOf {
                session: self.session(),
            },
            77..90 => self.lock(),
            90..96 => Action::Advance {
                ms: self.rng.u64(1..4) * 2 * HALF_HOUR_MS,
            },
            _ => Action::Reap,
        };
        let is_call = !matches!(
            action,
            Action::Lock { .. } | Action::Advance { .. } | Action::Reap
        );
        let mut step = Step::new(action);
        if is_call && self.rng.u8(0..16) == 0 {
            step.fault = self.rng.choice([
                Fault::ContentionBefore,
                Fault::ContentionAfter,
                Fault::Rejected,
                Fault::Other,
            ]);
        }
        step
    }

    fn open(&mut self) -> Action {
        self.opened += 1;
        let owner = match self.rng.u8(0..12) {
            0 => Some(Text::Plain(self.one_of(&OWNERS))),
            1 => Some(Text::Repeated {
                repeat: "\u{e9}".to_owned(),
                times: self.rng.usize(60..70),
            }),
            _ => None,
        };
        Action::OpenSession {
            name: Some(self.opened.to_string()),
            owner,
            ttl_ms: self.ttl(),
        }
    }

    fn lock(&mut self) -> Action {
        let first = self.keys;
        self.keys += self.rng.usize(1..4);
        Action::Lock {
            session: self.opened_session(),
            keys: Keys::Listed((first..self.keys).map(|n| format!("k{n:06}")).collect()),
        }
    }

    fn session(&mut self) -> Text {
        match self.rng.u8(0..20) {
            0 => Text::Plain(self.one_of(&IDS)),
            _ => self.opened_session(),
        }
    }

    /// Mostly one of the latest.
    fn opened_session(&mut self) -> Text {
        let back = match self.rng.u8(0..10) {
            0 => self.rng.usize(0..=self.opened),
            _ => self.rng.usize(0..8),
        };
        Text::Plain(format!("${}", self.opened.saturating_sub(back)))
    }

    fn ttl(&mut self) -> Ttl {
        let odd = [0, 24 * 2 * HALF_HOUR_MS + 1, u64::MAX];
        Ttl::Ms(match self.rng.u8(0..20) {
            0 => odd[self.rng.usize(0..odd.len())],
            // Up to 23 hours and a half, mostly short.
            1 => (2 * self.rng.u64(0..24) + 1) * HALF_HOUR_MS,
            _ => (2 * self.rng.u64(0..3) + 1) * HALF_HOUR_MS,
        })
    }

    fn one_of(&mut self, texts: &[&str]) -> String {
        texts[self.rng.usize(0..texts.len())].to_owned()
    }
}

/// Plays a random history under a policy and holds each answer to the reference; a failure
/// comes with the smallest history that was found to show it.
pub(super) async fn check(policy: &Policy, owner: &str, seed: u64, operations: usize) -> Verdict {
    let steps = history(seed, operations);
    match play(policy, owner, &steps).await {
        Played::Through(None) => Verdict::Passed,
        Played::Through(Some(stricter)) => Verdict::Stricter(stricter),
        Played::Failed(at, failure) => {
            let (steps, mut failure) = smaller(policy, owner, &steps[..=at], failure).await;
            failure.step = at + 1;
            failure.history = steps.iter().map(Step::to_string).collect();
            Verdict::Failed(failure)
        }
    }
}

enum Played {
    /// To the end, with perhaps a call to which the policy said no and the default does not.
    Through(Option<Stricter>),
    /// Up to this step.
    Failed(usize, Box<Failure>),
}

async fn play(policy: &Policy, owner: &str, steps: &[Step]) -> Played {
    let model = Arc::new(Model::default());
    let mut player = Player::new(policy.clone(), model.clone(), owner);
    let mut stricter = None;
    for (at, step) in steps.iter().enumerate() {
        let expected = expected(step, &player, &model);
        let observed = player.perform(step).await;
        let (Some(first), Observed::Answered(..) | Observed::Broken(_)) =
            (expected.first(), &observed)
        else {
            continue;
        };
        match &observed {
            Observed::Answered(outcome, _) if expected.contains(outcome) => {}
            Observed::Answered(outcome, text) if outcome.is_no() => {
                if *first != Outcome::InvalidArgument && stricter.is_none() {
                    stricter = Some(Stricter::new(at, step, outcome, text));
                }
            }
            observed => {
                return Played::Failed(at, Box::new(Failure::new(at, step, first, observed)));
            }
        }
    }
    Played::Through(stricter)
}

/// Leaves steps out for as long as the history still fails.
async fn smaller(
    policy: &Policy,
    owner: &str,
    steps: &[Step],
    failure: Box<Failure>,
) -> (Vec<Step>, Box<Failure>) {
    let mut best = (steps.to_vec(), failure);
    // What is about other sessions is the first to go.
    let session = steps.last().and_then(Step::session);
    let mut related = steps.to_vec();
    related.retain(|step| step.session().is_none() || step.session() == session);
    if let Played::Failed(at, failure) = play(policy, owner, &related).await {
        related.truncate(at + 1);
        best = (related, failure);
    }
    let mut budget = REPLAYED;
    let mut chunk = best.0.len() / 2;
    while chunk > 0 {
        let mut from = 0;
        // The last one is the one that fails.
        while from + 1 < best.0.len() && budget > 0 {
            let to = (from + chunk).min(best.0.len() - 1);
            let mut candidate = best.0.clone();
            candidate.drain(from..to);
            budget = budget.saturating_sub(candidate.len());
            if let Played::Failed(at, failure) = play(policy, owner, &candidate).await {
                candidate.truncate(at + 1);
                best = (candidate, failure);
            } else {
                from = to;
            }
        }
        chunk /= 2;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_one_history_and_another_seed_another() {
        assert_eq!(history(7, 200), history(7, 200));
        assert_ne!(history(7, 200), history(8, 200));
    }

    #[test]
    fn a_history_has_every_action_and_every_fault() {
        let steps = history(1, 2000);
        for wanted in [
            "open-session",
            "heartbeat",
            "close-session",
            "locks-of",
            "taking",
            "waiting",
            "reaping",
            "before it takes effect",
            "and then meets contention",
            "rejects",
            "meets a fault",
        ] {
            assert!(
                steps.iter().any(|step| step.to_string().contains(wanted)),
                "{wanted}"
            );
        }
    }
}
