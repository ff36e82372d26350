//! Arguments of every shape, through the registry into the default policy: it never traps, and
//! its answers are those of the rules that it was compiled from, run natively.

use std::time::Duration;

use fastrand::Rng;
use tenure::{Error, Heartbeat, SessionId};
use uuid::Uuid;

use crate::rounds;
use crate::support::database::TestDatabase;
use crate::support::host::Host;
use crate::support::odd;

/// The longest argument that the host passes on.
const PASSED_ON: usize = 4096;

fn ttl(rng: &mut Rng) -> Duration {
    const DAY: u64 = 86_400_000;
    let near = [0, 1, 1000, 60_000, DAY, 1 << 31, 1 << 32, 1 << 63, u64::MAX];
    match rng.u8(..8) {
        0 => Duration::MAX,
        1 => Duration::from_nanos(rng.u64(..2_000_000)),
        2 => Duration::from_millis(rng.u64(..)),
        // Long enough for a session to be there at the next call.
        3 | 4 => Duration::from_millis(rng.u64(60_000..=DAY)),
        _ => {
            let near = *rng.choice(&near).unwrap();
            Duration::from_millis(near.saturating_add(2).saturating_sub(rng.u64(..=4)))
        }
    }
}

fn owner(rng: &mut Rng) -> String {
    match rng.u8(..3) {
        0 => {
            let unit = *rng
                .choice(&["x", " ", "\u{1F512}", "\u{e9}", "\0"])
                .unwrap();
            let longest = rng.usize(..3) + *rng.choice(&[0, 63, 1023, 4095]).unwrap();
            unit.repeat(longest)
        }
        _ => odd::text(rng, &[1, 3, 64, 65, 128, 1024, 5000]),
    }
}

fn id(rng: &mut Rng, session: Option<&SessionId>) -> String {
    let uuid = match session {
        Some(session) if rng.bool() => session.uuid(),
        _ => Uuid::from_u128(rng.u128(..)),
    };
    let hyphenated = uuid.hyphenated().to_string();
    match rng.u8(..12) {
        0 => uuid.simple().to_string(),
        1 => uuid.braced().to_string(),
        2 => uuid.urn().to_string(),
        3 => hyphenated.to_uppercase(),
        4 => format!("{hyphenated} "),
        5 => format!(" {}", &hyphenated[1..]),
        6 => odd::encoded(&hyphenated),
        7 => odd::text(rng, &[1, 36, 64, 5000]),
        8 => {
            let mut odd: Vec<_> = hyphenated.chars().collect();
            let at = rng.usize(..odd.len());
            odd[at] = rng.char(..);
            odd.into_iter().collect()
        }
        _ => hyphenated,
    }
}

/// What the rules say of these arguments, in the order in which the policy asks them.
fn ruled(argument: &str, rules: &[Result<(), rules::Broken>]) -> Option<String> {
    // The host refuses it before the policy can.
    if argument.len() > PASSED_ON {
        return Some("are passed on to the policy".to_owned());
    }
    let broken = rules.iter().find_map(|rule| rule.err())?;
    Some(broken.to_owned())
}

#[track_caller]
fn agree<T: std::fmt::Debug>(
    what: &str,
    answer: Result<T, Error>,
    expected: Option<String>,
) -> Option<T> {
    match (answer, expected) {
        (Ok(answer), None) => Some(answer),
        (Err(Error::InvalidArgument(why)), Some(expected)) if why.ends_with(&expected) => None,
        (answer, expected) => panic!("{what}: {answer:?}; the rules say {expected:?}"),
    }
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

#[tokio::test]
async fn the_policy_answers_any_arguments_as_its_rules_do() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let registry = &host.registry;
    let (mut taken, mut refused) = ([0; 4], [0; 4]);
    for mut rng in rounds("arguments of the policy", 500) {
        let rng = &mut rng;
        let mut count = |call: usize, answered: bool| match answered {
            true => taken[call] += 1,
            false => refused[call] += 1,
        };

        let (owner, lives) = (owner(rng), ttl(rng));
        let rules = [rules::check_owner(&owner), rules::check_ttl(millis(lives))];
        let opened = registry.open_session(&owner, lives).await;
        let what = format!("open {owner:?} for {lives:?}");
        let session = agree(&what, opened, ruled(&owner, &rules));
        count(0, session.is_some());
        if let Some(session) = &session {
            assert_eq!(session.owner, owner);
            assert_eq!(millis(session.lease.ttl), millis(lives), "{what}");
        }
        // One of a moment may be over by now.
        let session = session.filter(|_| lives >= Duration::from_secs(10));
        let session = session.map(|session| session.id);

        let (given, longer) = (id(rng, session.as_ref()), ttl(rng));
        let rules = [
            rules::check_session_id(&given),
            rules::check_ttl(millis(longer)),
        ];
        let beat = registry.heartbeat(&given, longer).await;
        let what = format!("heartbeat of {given:?} for {longer:?}");
        let beat = agree(&what, beat, ruled(&given, &rules));
        count(1, beat.is_some());
        let is_own = |given: &str| given.parse::<SessionId>().ok() == session && session.is_some();
        if let Some(beat) = beat {
            assert_eq!(beat.is_alive(), is_own(&given), "{what}: {beat:?}");
            if let Heartbeat::Alive(lease) = beat {
                assert_eq!(millis(lease.ttl), millis(longer), "{what}");
            }
        }

        let given = id(rng, session.as_ref());
        let listed = registry.locks_of(&given).await;
        let what = format!("locks of {given:?}");
        let expected = ruled(&given, &[rules::check_session_id(&given)]);
        let listed = agree(&what, listed, expected);
        count(2, listed.is_some());
        assert!(listed.is_none_or(|keys| keys.is_empty()), "{what}");

        let given = id(rng, None);
        let closed = registry.close_session(&given).await;
        let what = format!("close {given:?}");
        let expected = ruled(&given, &[rules::check_session_id(&given)]);
        let closed = agree(&what, closed, expected);
        count(3, closed.is_some());
        assert!(closed.is_none_or(|closed| !closed.existed), "{what}");
    }
    let counts = registry.policy().counts();
    assert_eq!((counts.traps, counts.violations), (0, 0));
    let both = taken.iter().chain(&refused);
    assert!(
        both.clone().all(|calls| *calls > 0),
        "{taken:?} {refused:?}"
    );
}
