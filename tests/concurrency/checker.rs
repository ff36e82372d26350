//! Judges a history: what callers asked and were told, and when, however many of them there
//! were, on however many hosts.
//!
//! It knows of a call only when it began and when it was answered, by one clock, and that
//! the database did it some time in between. What it calls **certain** holds whatever the
//! order within these bounds was, so each violation that it finds is one. A lease that was
//! granted for some time has lasted at least that long after its call began.
//!
//! A call without an answer may have happened, at any time after it began.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use tenure::SessionId;

/// A time by the history's clock: since some common start.
pub type At = Duration;

/// A call with its answer.
#[derive(Clone, Debug)]
pub struct Event {
    pub from: At,
    pub to: At,
    pub call: Call,
}

/// What was asked, and what was answered: `None` where the outcome is unknown.
#[derive(Clone, Debug)]
pub enum Call {
    /// Of a session that was opened. One that may have been opened has no id to refer to.
    Open { session: SessionId, ttl: Duration },
    /// `true` for alive.
    Heartbeat {
        session: SessionId,
        ttl: Duration,
        alive: Option<bool>,
    },
    Close {
        session: SessionId,
        closed: Option<Closed>,
    },
    Acquire {
        key: String,
        session: SessionId,
        ttl: Duration,
        answer: Option<Acquired>,
    },
    /// `true` for renewed.
    Renew {
        key: String,
        token: i64,
        ttl: Duration,
        renewed: Option<bool>,
    },
    /// `true` for released.
    Release {
        key: String,
        token: i64,
        released: Option<bool>,
    },
    Revoke {
        key: String,
        /// Only a grant under this token.
        expected: Option<i64>,
        answer: Option<Revoked>,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct Closed {
    pub existed: bool,
    pub locks: u32,
}

#[derive(Clone, Copy, Debug)]
pub enum Acquired {
    Granted {
        token: i64,
        /// By the database's clock, where that is to be checked too.
        at: Option<SystemTime>,
    },
    /// Another has it.
    Held,
    /// The session is not alive, or no more.
    NoSession,
}

#[derive(Clone, Copy, Debug)]
pub enum Revoked {
    Done {
        token: i64,
        floor: i64,
    },
    /// Not held, or under another token.
    No,
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub events: Vec<Event>,
    /// How many locks the database deleted together with a session, where that was watched.
    pub deleted_with: BTreeMap<SessionId, u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// At no instant are there two live grants of one key.
    OneHolder,
    /// Tokens of a key rise strictly in the order of its grants, and above the floor of a
    /// revocation.
    RisingTokens,
    /// A close reports as many locks as the session held, and happens once.
    ExactClose,
    /// Who was told that a session is dead is never told later that it is alive.
    DeathIsFinal,
    /// Nothing that is certainly alive is called dead, or lost.
    NoFalseDeath,
}

#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: Rule,
    pub what: String,
}

/// Everything in a history that breaks a rule.
pub fn check(history: &History) -> Vec<Violation> {
    let checker = Checker::new(history);
    let mut violations = Vec::new();
    checker.one_holder(&mut violations);
    checker.rising_tokens(&mut violations);
    checker.exact_close(&mut violations);
    checker.death_is_final(&mut violations);
    checker.no_false_death(&mut violations);
    violations
}

/// A grant, with what was done to it.
struct Grant<'a> {
    event: &'a Event,
    key: &'a str,
    session: &'a SessionId,
    token: i64,
    at: Option<SystemTime>,
    /// What set the end of its lease: the grant, and its renewals.
    leases: Vec<Lease>,
    /// When calls began, each of which may have ended it, other than by its session.
    ends: Vec<At>,
    /// When calls were answered, each of which leaves it gone for certain.
    gone: Vec<At>,
}

struct Session<'a> {
    /// What set its expiry: the opening, and heartbeats.
    leases: Vec<Lease>,
    opened: At,
    closes: Vec<(&'a Event, Option<Closed>)>,
}

/// A call that set when something ends.
#[derive(Clone, Copy)]
struct Lease {
    from: At,
    to: At,
    ttl: Duration,
    /// Whether it is known to have worked.
    known: bool,
}

/// Until when something certainly lived, as far as its leases go, and as far as calls that
/// began by `now` can say.
fn lives_until(leases: &[Lease], now: At) -> At {
    let leases = || leases.iter().filter(|lease| lease.from <= now);
    // It was alive when a lease was renewed, ...
    let seen = leases().filter(|lease| lease.known).map(|lease| lease.from);
    let seen = seen.max().unwrap_or_default();
    // ... and is until the last lease is over; which is the last is known in part only. A
    // renewal may be a shorter one.
    let superseded =
        |lease: &Lease| lease.known && leases().any(|later| later.known && later.from >= lease.to);
    let last = leases().filter(|lease| !superseded(lease));
    let over = last.map(|lease| lease.from + lease.ttl).min();
    seen.max(over.unwrap_or_default())
}

struct Checker<'a> {
    history: &'a History,
    grants: BTreeMap<&'a str, Vec<Grant<'a>>>,
    sessions: BTreeMap<&'a SessionId, Session<'a>>,
}

impl<'a> Checker<'a> {
    fn new(history: &'a History) -> Self {
        let mut sessions: BTreeMap<&SessionId, Session> = BTreeMap::new();
        let mut grants: BTreeMap<&str, Vec<Grant>> = BTreeMap::new();
        for event in &history.events {
            match &event.call {
                Call::Open { session, ttl } => {
                    let lease = lease(event, *ttl, true);
                    let opened = Session {
                        leases: vec![lease],
                        opened: event.to,
                        closes: Vec::new(),
                    };
                    sessions.insert(session, opened);
                }
                Call::Acquire {
                    key,
                    session,
                    ttl,
                    answer: Some(Acquired::Granted { token, at }),
                } => grants.entry(key).or_default().push(Grant {
                    event,
                    key,
                    session,
                    token: *token,
                    at: *at,
                    leases: vec![lease(event, *ttl, true)],
                    ends: Vec::new(),
                    gone: Vec::new(),
                }),
                _ => {}
            }
        }
        for of_key in grants.values_mut() {
            of_key.sort_by_key(|grant| grant.token);
        }
        for event in &history.events {
            match &event.call {
                Call::Open { .. } => {}
                Call::Heartbeat {
                    session,
                    ttl,
                    alive,
                } => {
                    if let (Some(session), true) =
                        (sessions.get_mut(session), *alive != Some(false))
                    {
                        session.leases.push(lease(event, *ttl, alive.is_some()));
                    }
                }
                Call::Close { session, closed } => {
                    if let Some(session) = sessions.get_mut(session) {
                        session.closes.push((event, *closed));
                    }
                }
                Call::Acquire {
                    key,
                    session,
                    answer,
                    ..
                } => {
                    for grant in grants.entry(key).or_default() {
                        let again = grant.session == session;
                        match answer {
                            Some(Acquired::Granted { token, .. }) if *token > grant.token => {
                                if again {
                                    grant.ends.push(event.from);
                                }
                                grant.gone.push(event.to);
                            }
                            None if again => grant.ends.push(event.from),
                            _ => {}
                        }
                    }
                }
                Call::Renew {
                    key,
                    token,
                    ttl,
                    renewed,
                } => {
                    for grant in under(&mut grants, key, *token) {
                        if *renewed != Some(false) {
                            grant.leases.push(lease(event, *ttl, renewed.is_some()));
                        }
                    }
                }
                Call::Release {
                    key,
                    token,
                    released,
                } => {
                    for grant in under(&mut grants, key, *token) {
                        if *released != Some(false) {
                            grant.ends.push(event.from);
                        }
                        if released.is_some() {
                            grant.gone.push(event.to);
                        }
                    }
                }
                Call::Revoke {
                    key,
                    expected,
                    answer,
                } => match answer {
                    Some(Revoked::Done { token, .. }) => {
                        for grant in under(&mut grants, key, *token) {
                            grant.ends.push(event.from);
                            grant.gone.push(event.to);
                        }
                    }
                    Some(Revoked::No) => {}
                    None => {
                        for grant in grants.entry(key).or_default() {
                            if expected.is_none_or(|expected| expected == grant.token) {
                                grant.ends.push(event.from);
                            }
                        }
                    }
                },
            }
        }
        Self {
            history,
            grants,
            sessions,
        }
    }

    /// Until when a session certainly lived, as calls that began by `now` can say.
    fn session_until(&self, session: &SessionId, now: At, with_closes: bool) -> At {
        let Some(session) = self.sessions.get(session) else {
            return At::ZERO;
        };
        let closes = session.closes.iter().filter(|(event, closed)| {
            with_closes && event.from <= now && closed.is_none_or(|closed| closed.existed)
        });
        let closing = closes.map(|(event, _)| event.from).min();
        lives_until(&session.leases, now).min(closing.unwrap_or(At::MAX))
    }

    /// Until when a grant was certainly live, as calls that began by `now` can say. Certain
    /// since it was answered.
    fn grant_until(&self, grant: &Grant, now: At, with_closes: bool) -> At {
        let seen = grant.leases.iter().filter(|lease| lease.known);
        let seen = seen.map(|lease| lease.from).filter(|from| *from <= now);
        let ends = grant.ends.iter().filter(|end| **end <= now);
        let until = lives_until(&grant.leases, now)
            .min(self.session_until(grant.session, now, with_closes))
            .min(ends.min().copied().unwrap_or(At::MAX));
        // Whatever may have ended it by then has not.
        until.max(seen.max().unwrap_or_default())
    }

    fn one_holder(&self, violations: &mut Vec<Violation>) {
        for grants in self.grants.values() {
            let lives: Vec<_> = grants
                .iter()
                .map(|grant| (grant, self.grant_until(grant, At::MAX, true)))
                .collect();
            for (nth, (first, first_until)) in lives.iter().enumerate() {
                for (second, second_until) in &lives[nth + 1..] {
                    let begin = first.event.to.max(second.event.to);
                    let both_live = begin < *first_until.min(second_until);
                    let granted_while_live =
                        first.event.to <= second.event.from && second.event.to < *first_until;
                    if both_live || granted_while_live {
                        violations.push(Violation {
                            rule: Rule::OneHolder,
                            what: format!(
                                "{:?} lived at least until {first_until:?}; {:?} at least \
                                 until {second_until:?}",
                                first.event, second.event
                            ),
                        });
                    }
                }
            }
        }
    }

    fn rising_tokens(&self, violations: &mut Vec<Violation>) {
        let mut violated = |what: String| {
            violations.push(Violation {
                rule: Rule::RisingTokens,
                what,
            });
        };
        for grants in self.grants.values() {
            for (nth, lower) in grants.iter().enumerate() {
                for higher in &grants[nth + 1..] {
                    let wrong = lower.token == higher.token
                        || higher.event.to < lower.event.from
                        || matches!((higher.at, lower.at), (Some(h), Some(l)) if h < l);
                    if wrong {
                        violated(format!("{:?} and {:?}", lower.event, higher.event));
                    }
                }
            }
        }
        for event in &self.history.events {
            let Call::Revoke {
                key,
                answer: Some(Revoked::Done { token, floor }),
                ..
            } = &event.call
            else {
                continue;
            };
            if floor <= token {
                violated(format!("{event:?}"));
            }
            for grant in self.grants.get(key.as_str()).into_iter().flatten() {
                let after = grant.token > *token || grant.event.from >= event.to;
                if after && grant.token <= *floor {
                    violated(format!("{:?} after {event:?}", grant.event));
                }
            }
        }
    }

    fn exact_close(&self, violations: &mut Vec<Violation>) {
        let mut violated = |what: String| {
            violations.push(Violation {
                rule: Rule::ExactClose,
                what,
            });
        };
        for (id, session) in &self.sessions {
            let closes = session.closes.iter();
            let closes = closes.filter_map(|(event, closed)| Some((*event, (*closed)?)));
            let mut happened = 0;
            for (event, closed) in closes {
                if !closed.existed {
                    if closed.locks > 0 {
                        violated(format!("{event:?}"));
                    }
                    continue;
                }
                happened += 1;
                if happened > 1 {
                    violated(format!("closed already: {event:?}"));
                }
                if let Some(deleted) = self.history.deleted_with.get(id)
                    && *deleted != closed.locks
                {
                    violated(format!("{deleted} were deleted: {event:?}"));
                }
                let (least, most) = self.locks_at(id, event);
                if !(least..=most).contains(&closed.locks) {
                    violated(format!("it held {least} to {most}: {event:?}"));
                }
            }
        }
    }

    /// How many locks a session held when it was closed.
    fn locks_at(&self, id: &SessionId, close: &Event) -> (u32, u32) {
        let mut least = BTreeSet::new();
        let mut most = BTreeSet::new();
        for grants in self.grants.values() {
            for grant in grants.iter().filter(|grant| grant.session == id) {
                let held = grant.event.to <= close.from
                    && self.grant_until(grant, At::MAX, false) >= close.to;
                if held {
                    least.insert(grant.key);
                }
                let gone = grant.gone.iter().any(|gone| *gone <= close.from);
                if grant.event.from <= close.to && !gone {
                    most.insert(grant.key);
                }
            }
        }
        for event in &self.history.events {
            if let Call::Acquire {
                key,
                session,
                answer: None,
                ..
            } = &event.call
                && session == id
                && event.from <= close.to
            {
                most.insert(key);
            }
        }
        let count = |keys: BTreeSet<&str>| u32::try_from(keys.len()).unwrap();
        (count(least), count(most))
    }

    fn death_is_final(&self, violations: &mut Vec<Violation>) {
        let mut dead: BTreeMap<&SessionId, &Event> = BTreeMap::new();
        for event in &self.history.events {
            let session = match &event.call {
                Call::Heartbeat {
                    session,
                    alive: Some(false),
                    ..
                }
                | Call::Close {
                    session,
                    closed: Some(_),
                }
                | Call::Acquire {
                    session,
                    answer: Some(Acquired::NoSession),
                    ..
                } => session,
                _ => continue,
            };
            let first = dead.entry(session).or_insert(event);
            if event.to < first.to {
                *first = event;
            }
        }
        for event in &self.history.events {
            let alive = match &event.call {
                Call::Heartbeat {
                    session,
                    alive: Some(true),
                    ..
                }
                | Call::Acquire {
                    session,
                    answer: Some(Acquired::Granted { .. }),
                    ..
                } => session,
                Call::Renew {
                    key,
                    token,
                    renewed: Some(true),
                    ..
                } => match self.granted(key, *token) {
                    Some(grant) => grant.session,
                    None => continue,
                },
                _ => continue,
            };
            if let Some(death) = dead.get(alive)
                && event.from >= death.to
            {
                violations.push(Violation {
                    rule: Rule::DeathIsFinal,
                    what: format!("{event:?} after {death:?}"),
                });
            }
        }
    }

    fn no_false_death(&self, violations: &mut Vec<Violation>) {
        for event in &self.history.events {
            let (since, until) = match &event.call {
                Call::Heartbeat {
                    session,
                    alive: Some(false),
                    ..
                }
                | Call::Acquire {
                    session,
                    answer: Some(Acquired::NoSession),
                    ..
                } => match self.sessions.get(session) {
                    Some(opened) => (opened.opened, self.session_until(session, event.to, true)),
                    None => continue,
                },
                Call::Renew {
                    key,
                    token,
                    renewed: Some(false),
                    ..
                }
                | Call::Release {
                    key,
                    token,
                    released: Some(false),
                } => match self.granted(key, *token) {
                    Some(grant) => (grant.event.to, self.grant_until(grant, event.to, true)),
                    None => continue,
                },
                _ => continue,
            };
            if since <= event.from && event.to < until {
                violations.push(Violation {
                    rule: Rule::NoFalseDeath,
                    what: format!("it lived at least until {until:?}: {event:?}"),
                });
            }
        }
    }

    fn granted(&self, key: &str, token: i64) -> Option<&Grant<'a>> {
        let grants = self.grants.get(key)?;
        grants.iter().find(|grant| grant.token == token)
    }
}

fn lease(event: &Event, ttl: Duration, known: bool) -> Lease {
    Lease {
        from: event.from,
        to: event.to,
        ttl,
        known,
    }
}

fn under<'g, 'a>(
    grants: &'g mut BTreeMap<&'a str, Vec<Grant<'a>>>,
    key: &'a str,
    token: i64,
) -> impl Iterator<Item = &'g mut Grant<'a>> {
    let of_key = grants.entry(key).or_default().iter_mut();
    of_key.filter(move |grant| grant.token == token)
}

/// Doctored histories: a good one, and then for each rule others that break it and no other.
mod tests {
    use uuid::Uuid;

    use super::*;

    fn s(number: u128) -> SessionId {
        Uuid::from_u128(number).into()
    }

    const MS: Duration = Duration::from_millis(1);
    const MINUTE: Duration = Duration::from_secs(60);

    #[derive(Clone, Default)]
    struct Told(History);

    impl Told {
        fn call(mut self, from: u32, to: u32, call: Call) -> Self {
            self.0.events.push(Event {
                from: MS * from,
                to: MS * to,
                call,
            });
            self
        }

        fn open(self, at: (u32, u32), session: u128, ttl: Duration) -> Self {
            let session = s(session);
            self.call(at.0, at.1, Call::Open { session, ttl })
        }

        fn beat(self, at: (u32, u32), session: u128, ttl: Duration, alive: Option<bool>) -> Self {
            let session = s(session);
            let call = Call::Heartbeat {
                session,
                ttl,
                alive,
            };
            self.call(at.0, at.1, call)
        }

        fn close(self, at: (u32, u32), session: u128, closed: Option<(bool, u32)>) -> Self {
            let session = s(session);
            let closed = closed.map(|(existed, locks)| Closed { existed, locks });
            self.call(at.0, at.1, Call::Close { session, closed })
        }

        fn acquire(self, at: (u32, u32), session: u128, ttl: Duration, said: Said) -> Self {
            let answer = match said {
                Said::Token(token) => Some(Acquired::Granted { token, at: None }),
                Said::TokenAt(token, at) => Some(Acquired::Granted {
                    token,
                    at: Some(SystemTime::UNIX_EPOCH + MS * at),
                }),
                Said::Held => Some(Acquired::Held),
                Said::NoSession => Some(Acquired::NoSession),
                Said::Nothing => None,
            };
            let call = Call::Acquire {
                key: "k".to_owned(),
                session: s(session),
                ttl,
                answer,
            };
            self.call(at.0, at.1, call)
        }

        fn renew(self, at: (u32, u32), token: i64, ttl: Duration, renewed: Option<bool>) -> Self {
            let key = "k".to_owned();
            let call = Call::Renew {
                key,
                token,
                ttl,
                renewed,
            };
            self.call(at.0, at.1, call)
        }

        fn release(self, at: (u32, u32), token: i64, released: Option<bool>) -> Self {
            let key = "k".to_owned();
            let call = Call::Release {
                key,
                token,
                released,
            };
            self.call(at.0, at.1, call)
        }

        fn revoke(self, at: (u32, u32), expected: Option<i64>, answer: Option<(i64, i64)>) -> Self {
            let call = Call::Revoke {
                key: "k".to_owned(),
                expected,
                answer: answer.map(|(token, floor)| Revoked::Done { token, floor }),
            };
            self.call(at.0, at.1, call)
        }

        fn deleted_with(mut self, session: u128, locks: u32) -> Self {
            self.0.deleted_with.insert(s(session), locks);
            self
        }

        #[track_caller]
        fn is_good(&self) {
            let violations = check(&self.0);
            assert!(violations.is_empty(), "{violations:#?}");
        }

        #[track_caller]
        fn breaks(&self, rule: Rule) {
            let violations = check(&self.0);
            assert!(!violations.is_empty(), "nothing was found");
            for violation in violations {
                assert_eq!(violation.rule, rule, "{}", violation.what);
            }
        }
    }

    enum Said {
        Token(i64),
        TokenAt(i64, u32),
        Held,
        NoSession,
        Nothing,
    }
    use Said::{Held, NoSession, Nothing, Token, TokenAt};

    /// Two sessions, the first of which holds `k` under 5.
    fn begun() -> Told {
        Told::default()
            .open((0, 1), 1, MINUTE)
            .open((0, 2), 2, MINUTE)
            .acquire((10, 20), 1, MINUTE, Token(5))
    }

    #[test]
    fn an_uneventful_history_is_good() {
        begun()
            .acquire((21, 22), 2, MINUTE, Held)
            .renew((23, 24), 5, MINUTE, Some(true))
            .release((25, 26), 5, Some(true))
            .acquire((27, 28), 2, MINUTE, Token(6))
            .revoke((29, 30), None, Some((6, 7)))
            .acquire((31, 32), 2, MINUTE, Token(8))
            .beat((33, 34), 2, MINUTE, Some(true))
            .close((35, 36), 2, Some((true, 1)))
            .close((37, 38), 2, Some((false, 0)))
            .beat((37, 39), 2, MINUTE, Some(false))
            .acquire((37, 39), 2, MINUTE, NoSession)
            .renew((37, 39), 8, MINUTE, Some(false))
            .release((37, 39), 8, Some(false))
            .acquire((40, 41), 1, MINUTE, Token(9))
            .deleted_with(2, 1)
            .is_good();
    }

    #[test]
    fn a_key_with_two_holders() {
        begun()
            .acquire((30, 40), 2, MINUTE, Token(6))
            .breaks(Rule::OneHolder);
        // At the same time.
        begun()
            .acquire((5, 40), 2, MINUTE, Token(4))
            .breaks(Rule::OneHolder);
        // Although the second is over at once.
        begun()
            .acquire((30, 40), 2, MS, Token(6))
            .breaks(Rule::OneHolder);
    }

    #[test]
    fn whatever_may_have_ended_a_grant_makes_room_for_the_next() {
        let next = |told: Told| told.acquire((30, 40), 2, MINUTE, Token(6));
        next(begun().release((25, 50), 5, Some(true))).is_good();
        next(begun().release((25, 50), 5, None)).is_good();
        next(begun().revoke((25, 50), None, None)).is_good();
        next(begun().revoke((25, 50), Some(5), None)).is_good();
        next(begun().close((25, 50), 1, Some((true, 1)))).is_good();
        next(begun().close((25, 50), 1, None)).is_good();
        // These did not.
        next(begun().release((41, 50), 5, Some(true))).breaks(Rule::OneHolder);
        next(begun().release((25, 29), 4, Some(true))).breaks(Rule::OneHolder);
        next(begun().revoke((25, 29), Some(4), None)).breaks(Rule::OneHolder);
        next(begun().close((25, 29), 2, None)).breaks(Rule::OneHolder);
    }

    #[test]
    fn a_lease_lasts_from_the_beginning_of_its_call() {
        let told = |ttl| {
            Told::default()
                .open((0, 1), 1, MINUTE)
                .open((0, 1), 2, MINUTE)
                .acquire((10, 20), 1, ttl, Token(5))
                .acquire((30, 40), 2, MINUTE, Token(6))
        };
        told(30 * MS).is_good();
        told(31 * MS).breaks(Rule::OneHolder);
    }

    #[test]
    fn a_lock_lasts_no_longer_than_its_session() {
        let told = |ttl| {
            Told::default()
                .open((0, 1), 1, ttl)
                .open((0, 1), 2, MINUTE)
                .acquire((10, 20), 1, MINUTE, Token(5))
                .acquire((30, 40), 2, MINUTE, Token(6))
        };
        told(40 * MS).is_good();
        told(41 * MS).breaks(Rule::OneHolder);
    }

    #[test]
    fn a_renewal_tells_that_the_lock_was_live_and_may_shorten_it() {
        let told = |ttl| {
            begun()
                .renew((25, 28), 5, ttl, Some(true))
                .acquire((30, 40), 2, MINUTE, Token(6))
        };
        told(15 * MS).is_good();
        told(16 * MS).breaks(Rule::OneHolder);
        // One without an answer may have shortened it, or not have happened.
        begun()
            .renew((25, 28), 5, MS, None)
            .acquire((30, 40), 2, MINUTE, Token(6))
            .is_good();
        // The release without an answer had not happened.
        begun()
            .release((22, 23), 5, None)
            .acquire((30, 40), 2, MINUTE, Token(6))
            .renew((50, 51), 5, MINUTE, Some(true))
            .breaks(Rule::OneHolder);
    }

    #[test]
    fn a_session_that_takes_its_own_lock_again_has_one() {
        begun()
            .acquire((30, 40), 1, MINUTE, Token(6))
            .renew((41, 42), 6, MINUTE, Some(true))
            .renew((41, 42), 5, MINUTE, Some(false))
            .is_good();
        begun()
            .acquire((30, 40), 1, MINUTE, Token(6))
            .renew((41, 42), 5, MINUTE, Some(true))
            .breaks(Rule::OneHolder);
    }

    #[test]
    fn tokens_that_do_not_rise() {
        let again = |said| {
            Told::default()
                .open((0, 1), 1, MINUTE)
                .acquire((10, 20), 1, MINUTE, TokenAt(5, 10))
                .release((21, 22), 5, Some(true))
                .acquire((30, 40), 1, MINUTE, said)
        };
        again(Token(6)).is_good();
        again(Token(5)).breaks(Rule::RisingTokens);
        again(Token(4)).breaks(Rule::RisingTokens);
        // By the database's clock.
        again(TokenAt(6, 10)).is_good();
        again(TokenAt(6, 9)).breaks(Rule::RisingTokens);
        // Calls at the same time are in either order.
        Told::default()
            .open((0, 1), 1, MINUTE)
            .acquire((10, 20), 1, MINUTE, Token(5))
            .acquire((20, 30), 1, MINUTE, Token(4))
            .is_good();
    }

    #[test]
    fn tokens_below_the_floor_of_a_revocation() {
        begun()
            .revoke((30, 40), None, Some((5, 5)))
            .breaks(Rule::RisingTokens);
        let next = |at, token| {
            begun()
                .revoke((30, 40), None, Some((5, 8)))
                .acquire(at, 1, MINUTE, Token(token))
        };
        next((50, 60), 9).is_good();
        next((50, 60), 8).breaks(Rule::RisingTokens);
        next((35, 60), 7).breaks(Rule::RisingTokens);
    }

    #[test]
    fn a_close_that_counts_wrong() {
        begun().close((30, 40), 1, Some((true, 1))).is_good();
        for locks in [0, 2] {
            begun()
                .close((30, 40), 1, Some((true, locks)))
                .breaks(Rule::ExactClose);
        }
        begun()
            .close((30, 40), 2, Some((true, 1)))
            .breaks(Rule::ExactClose);
        begun()
            .close((30, 40), 2, Some((true, 0)))
            .close((41, 42), 2, Some((false, 1)))
            .breaks(Rule::ExactClose);
        // What is not known for certain counts or does not.
        for locks in [0, 1] {
            Told::default()
                .open((0, 1), 1, MINUTE)
                .acquire((10, 20), 1, MINUTE, Nothing)
                .close((30, 40), 1, Some((true, locks)))
                .is_good();
            begun()
                .release((25, 35), 5, Some(true))
                .close((30, 40), 1, Some((true, locks)))
                .is_good();
            let told =
                begun()
                    .release((21, 22), 5, Some(true))
                    .close((30, 40), 1, Some((true, locks)));
            match locks {
                0 => told.is_good(),
                _ => told.breaks(Rule::ExactClose),
            }
        }
    }

    #[test]
    fn a_close_that_says_another_number_than_the_database() {
        let told = begun()
            .release((25, 35), 5, Some(true))
            .close((30, 40), 1, Some((true, 1)));
        told.clone().deleted_with(1, 1).is_good();
        told.deleted_with(1, 0).breaks(Rule::ExactClose);
    }

    #[test]
    fn a_session_that_is_closed_twice() {
        begun()
            .close((30, 40), 2, Some((true, 0)))
            .close((35, 45), 2, Some((true, 0)))
            .breaks(Rule::ExactClose);
    }

    #[test]
    fn a_session_that_lives_after_a_false() {
        let dead = || {
            Told::default()
                .open((0, 1), 1, 20 * MS)
                .acquire((2, 3), 1, MINUTE, Token(5))
                .beat((30, 40), 1, MINUTE, Some(false))
        };
        dead().is_good();
        dead()
            .beat((50, 60), 1, MINUTE, Some(true))
            .breaks(Rule::DeathIsFinal);
        dead()
            .acquire((50, 60), 1, MINUTE, Token(6))
            .breaks(Rule::DeathIsFinal);
        dead()
            .renew((50, 60), 5, MINUTE, Some(true))
            .breaks(Rule::DeathIsFinal);
        // Its row may still stand.
        dead().close((50, 60), 1, Some((true, 1))).is_good();
        // At the same time: before it.
        Told::default()
            .open((0, 1), 1, 20 * MS)
            .beat((10, 40), 1, 5 * MS, Some(true))
            .beat((30, 50), 1, MINUTE, Some(false))
            .is_good();
    }

    #[test]
    fn a_session_that_lives_after_its_close_or_after_it_could_not_acquire() {
        begun()
            .close((30, 40), 2, Some((true, 0)))
            .beat((50, 60), 2, MINUTE, Some(true))
            .breaks(Rule::DeathIsFinal);
        Told::default()
            .open((0, 1), 1, 20 * MS)
            .acquire((30, 40), 1, MINUTE, NoSession)
            .beat((50, 60), 1, MINUTE, Some(true))
            .breaks(Rule::DeathIsFinal);
    }

    #[test]
    fn a_death_that_nothing_accounts_for() {
        begun()
            .beat((30, 40), 2, MINUTE, Some(false))
            .breaks(Rule::NoFalseDeath);
        begun()
            .acquire((30, 40), 2, MINUTE, NoSession)
            .breaks(Rule::NoFalseDeath);
        begun()
            .close((35, 50), 2, None)
            .beat((30, 40), 2, MINUTE, Some(false))
            .is_good();
        begun()
            .beat((21, 22), 2, 18 * MS, Some(true))
            .beat((30, 40), 2, MINUTE, Some(false))
            .is_good();
        begun()
            .beat((21, 22), 2, 20 * MS, Some(true))
            .beat((30, 40), 2, MINUTE, Some(false))
            .breaks(Rule::NoFalseDeath);
    }

    #[test]
    fn a_loss_that_nothing_accounts_for() {
        begun()
            .renew((30, 40), 5, MINUTE, Some(false))
            .breaks(Rule::NoFalseDeath);
        begun()
            .release((30, 40), 5, Some(false))
            .breaks(Rule::NoFalseDeath);
        begun()
            .revoke((30, 50), None, None)
            .renew((30, 40), 5, MINUTE, Some(false))
            .is_good();
        begun().renew((30, 40), 4, MINUTE, Some(false)).is_good();
    }
}
