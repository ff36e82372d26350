//! The protocol as a model, small enough to look at every state it can be in: two clients
//! with a session each, two keys, a clock of a few ticks, and calls that overlap, wait, are
//! cut off, or commit late.
//!
//! What it takes from PostgreSQL: a statement sees what was committed when it began; a row
//! that another transaction has locked is waited for; after the wait the statement judges
//! again only if the row has changed; a lock ends with its transaction. Locks have no lease
//! of their own here: it is the session that ends them.
//!
//! Each [`Rules`] field is one rule that the host follows. With all of them no
//! [`Violation`] can be reached; without any one of them, some can.

use stateright::{Model, Property};

/// How long a session lives without a heartbeat, in ticks.
const TTL: u8 = 2;
const CLIENTS: usize = 2;
const KEYS: usize = 2;
/// Calls that a client can have under way at once.
const LANES: usize = 2;

/// What the host does, and could fail to do.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A token is drawn only while its key is owned.
    pub token_under_key: bool,
    /// A close takes the session's row lock before it counts.
    pub close_locks_first: bool,
    /// A lock is granted only to a live session, and is held only by a live one.
    pub grants_to_the_living: bool,
    /// Who meets a dead holder removes its session first, under the row's lock; no snapshot
    /// decides a death.
    pub death_under_lock: bool,
    /// A heartbeat waits for its row no longer than a fraction of a tick.
    pub bounded_wait: bool,
    /// Zero rows are "dead" only after the session is sealed under the row's lock.
    pub seal: bool,
}

impl Rules {
    /// As the host has them.
    pub const ALL: Self = Self {
        token_under_key: true,
        close_locks_first: true,
        grants_to_the_living: true,
        death_under_lock: true,
        bounded_wait: true,
        seal: true,
    };
}

/// How much there is to look at.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The last tick.
    pub clock: u8,
    /// How many calls are made.
    pub calls: u8,
}

/// At no instant may two clients take one key for theirs.
pub const ONE_HOLDER: &str = "one holder";
/// Who is told that a session is dead never finds it alive.
pub const DEATH_IS_FINAL: &str = "death is final";
/// A session stands as long as its client may take it for alive.
pub const TRUE_BEATS_STAND: &str = "true heartbeats stand";
/// Tokens of a key rise with every grant.
pub const RISING_TOKENS: &str = "rising tokens";
/// A close reports what it deleted.
pub const EXACT_CLOSE: &str = "exact close";
/// Only a live session is granted a lock.
pub const LIVING_HOLDERS: &str = "living holders";
/// No heartbeat extends a session that is over.
pub const BEATS_IN_TIME: &str = "heartbeats in time";

/// What must not happen, where it can be seen only as it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A grant under a token that is not above the key's last one.
    TokenFell,
    /// A close that reports another number than it deleted.
    WrongCount,
    /// A lock for a session that was over.
    GrantToTheDead,
    /// A heartbeat that extended a session that was over.
    BeatOfTheDead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Session {
    Never,
    Stands { expires: u8 },
    Gone,
}

impl Session {
    fn lives(self, now: u8) -> bool {
        matches!(self, Self::Stands { expires } if expires > now)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Key {
    /// The client whose session holds it.
    holder: Option<usize>,
    /// The greatest token that was granted, or given up at a revocation.
    last: u8,
}

/// A call, up to where it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Call {
    /// A heartbeat that has written, and has yet to commit.
    Beaten { start: u8 },
    /// A heartbeat that waits for its row, which it saw with this expiry.
    Waits { start: u8, seen: u8 },
    /// Found its session dead, and is about to make that final.
    Seals,
    /// A close that is about to begin.
    Closes,
    /// A close that has the session's row lock.
    Locked,
    /// A close that has counted.
    Counted { locks: u8 },
    /// An acquire that is about to begin.
    Asks { key: usize },
    /// An acquire that owns its key, or else has drawn its token without.
    Owns { key: usize, drawn: Option<u8> },
    /// An acquire that has written its grant, and has yet to commit.
    Grants { key: usize, token: u8 },
}

/// What a client has been told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    crashed: bool,
    told_dead: bool,
    /// Until when it may take its session for alive: the start of the call and the TTL.
    until: u8,
    /// Which locks it may take for its own, as long as its session is.
    holds: [bool; KEYS],
}

/// Everything, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    clock: u8,
    sequence: u8,
    sessions: [Session; CLIENTS],
    keys: [Key; KEYS],
    calls: [[Option<Call>; LANES]; CLIENTS],
    clients: [Client; CLIENTS],
    calls_left: u8,
    violation: Option<Violation>,
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Time passes.
    Tick,
    /// A client opens its session.
    Open(usize),
    /// A client sends a heartbeat.
    Heartbeat(usize, usize),
    /// A client closes its session.
    Close(usize, usize),
    /// A client asks for a key.
    Acquire(usize, usize, usize),
    /// A call gets on: its next statement, or its commit and its answer.
    Step(usize, usize),
    /// A call commits, and its answer is lost.
    LoseAnswer(usize, usize),
    /// A call is cut off, and rolled back.
    Cut(usize, usize),
    /// A client is gone. What it has under way goes on.
    Crash(usize),
    /// The reaper comes to a client's session.
    Reap(usize),
    /// An operator takes a lock away.
    Revoke(usize),
}

/// The host with these rules, on two clients.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// What the host does.
    pub rules: Rules,
    /// How far it is looked at.
    pub bounds: Bounds,
}

impl State {
    fn calls_of(&self, client: usize) -> impl Iterator<Item = Call> {
        self.calls[client].iter().flatten().copied()
    }

    /// Whether a close has the row's lock, which excludes every other.
    fn locked_by_close(&self, client: usize, rules: Rules) -> bool {
        rules.close_locks_first
            && self
                .calls_of(client)
                .any(|call| matches!(call, Call::Locked | Call::Counted { .. }))
    }

    /// Whether a heartbeat could not write the row now.
    fn beat_has_to_wait(&self, client: usize, rules: Rules) -> bool {
        self.locked_by_close(client, rules)
            || self
                .calls_of(client)
                .any(|call| matches!(call, Call::Beaten { .. }))
    }

    /// Whether a delete could not have the row now. A grant under way keeps its session.
    fn delete_has_to_wait(&self, client: usize, rules: Rules) -> bool {
        self.beat_has_to_wait(client, rules)
            || self
                .calls_of(client)
                .any(|call| matches!(call, Call::Grants { .. }))
    }

    fn key_is_owned(&self, key: usize, rules: Rules) -> bool {
        self.calls
            .iter()
            .flatten()
            .flatten()
            .any(|call| match call {
                Call::Owns { key: owned, .. } => rules.token_under_key && *owned == key,
                Call::Grants { key: owned, .. } => *owned == key,
                _ => false,
            })
    }

    fn keys_are_untouched(&self) -> bool {
        let asks = |call: &Call| {
            matches!(
                call,
                Call::Asks { .. } | Call::Owns { .. } | Call::Grants { .. }
            )
        };
        self.sequence == 0 && !self.calls.iter().flatten().flatten().any(asks)
    }

    fn locks_of(&self, client: usize) -> u8 {
        let held = self.keys.iter().filter(|key| key.holder == Some(client));
        u8::try_from(held.count()).expect("few keys")
    }

    /// The session's row goes, and the cascade with it.
    fn delete(&mut self, client: usize) {
        self.sessions[client] = Session::Gone;
        for key in &mut self.keys {
            if key.holder == Some(client) {
                key.holder = None;
            }
        }
    }

    fn draw(&mut self) -> u8 {
        self.sequence += 1;
        self.sequence
    }

    fn tell_dead(&mut self, client: usize) {
        self.clients[client].told_dead = true;
        self.clients[client].until = 0;
    }

    /// Whether a client may take a key for its own.
    fn believes(&self, client: usize, key: usize) -> bool {
        let client = self.clients[client];
        client.holds[key] && self.clock < client.until
    }
}

impl Protocol {
    fn found_dead(&self, state: &mut State, client: usize, lane: usize) {
        if self.rules.seal {
            state.calls[client][lane] = Some(Call::Seals);
        } else {
            state.calls[client][lane] = None;
            state.tell_dead(client);
        }
    }

    fn write_beat(&self, state: &mut State, client: usize, lane: usize, start: u8) {
        if !state.sessions[client].lives(state.clock) {
            state.violation = Some(Violation::BeatOfTheDead);
        }
        state.calls[client][lane] = Some(Call::Beaten { start });
    }

    fn begin_beat(&self, state: &mut State, client: usize, lane: usize) {
        let start = state.clock;
        match state.sessions[client] {
            Session::Stands { expires } if expires > start => {
                if state.beat_has_to_wait(client, self.rules) {
                    let seen = expires;
                    state.calls[client][lane] = Some(Call::Waits { start, seen });
                } else {
                    self.write_beat(state, client, lane, start);
                }
            }
            _ => self.found_dead(state, client, lane),
        }
    }

    /// The next statement of a call, or its commit; `None` while it has to wait. `answered`
    /// is whether its client hears of it.
    fn step(&self, state: &mut State, client: usize, lane: usize, answered: bool) -> Option<()> {
        let rules = self.rules;
        let call = state.calls[client][lane]?;
        let hears = answered && !state.clients[client].crashed;
        let done = |state: &mut State| state.calls[client][lane] = None;
        match call {
            Call::Beaten { start } => {
                let expires = start + TTL;
                state.sessions[client] = Session::Stands { expires };
                done(state);
                let told = &mut state.clients[client];
                // Who has begun to close has given up.
                if hears && told.until > 0 {
                    told.until = told.until.max(expires);
                }
            }
            Call::Waits { start, seen } => {
                if state.beat_has_to_wait(client, rules)
                    || (rules.bounded_wait && state.clock > start)
                {
                    return None;
                }
                match state.sessions[client] {
                    // As it was: not judged again.
                    Session::Stands { expires } if expires == seen => {
                        self.write_beat(state, client, lane, start);
                    }
                    Session::Stands { expires } if expires > start => {
                        self.write_beat(state, client, lane, start);
                    }
                    _ => self.found_dead(state, client, lane),
                }
            }
            Call::Seals => match state.sessions[client] {
                Session::Stands { expires } => {
                    if state.beat_has_to_wait(client, rules) {
                        return None;
                    }
                    done(state);
                    // Else it was revived by a heartbeat in time: contention.
                    if expires <= state.clock {
                        state.sessions[client] = Session::Stands { expires: 0 };
                        state.tell_dead(client);
                    }
                }
                Session::Never | Session::Gone => {
                    done(state);
                    state.tell_dead(client);
                }
            },
            Call::Closes => {
                if state.sessions[client] == Session::Gone {
                    done(state);
                    state.tell_dead(client);
                } else if !rules.close_locks_first {
                    let locks = state.locks_of(client);
                    state.calls[client][lane] = Some(Call::Counted { locks });
                } else if state.delete_has_to_wait(client, rules) {
                    return None;
                } else {
                    state.calls[client][lane] = Some(Call::Locked);
                }
            }
            Call::Locked => {
                let locks = state.locks_of(client);
                state.calls[client][lane] = Some(Call::Counted { locks });
            }
            Call::Counted { locks } => {
                if state.sessions[client] == Session::Gone {
                    done(state);
                    state.tell_dead(client);
                    return Some(());
                }
                if !rules.close_locks_first && state.delete_has_to_wait(client, rules) {
                    return None;
                }
                if state.locks_of(client) != locks {
                    state.violation = Some(Violation::WrongCount);
                }
                state.delete(client);
                done(state);
                if hears {
                    state.tell_dead(client);
                }
            }
            Call::Asks { key } => {
                if state.key_is_owned(key, rules) {
                    return None;
                }
                state.calls[client][lane] = Some(Call::Owns { key, drawn: None });
            }
            Call::Owns { key, drawn } => {
                return self.grant(state, client, lane, key, drawn);
            }
            Call::Grants { key, token } => {
                let entry = &mut state.keys[key];
                if token <= entry.last {
                    state.violation = Some(Violation::TokenFell);
                }
                entry.last = entry.last.max(token);
                entry.holder = Some(client);
                done(state);
                state.clients[client].holds[key] |= hears;
            }
        }
        Some(())
    }

    /// The statement that grants, and what follows when it does not.
    fn grant(
        &self,
        state: &mut State,
        client: usize,
        lane: usize,
        key: usize,
        drawn: Option<u8>,
    ) -> Option<()> {
        let rules = self.rules;
        let now = state.clock;
        if state.locked_by_close(client, rules) {
            return None;
        }
        match state.sessions[client] {
            Session::Stands { expires } if expires > now || !rules.grants_to_the_living => {}
            _ => {
                self.found_dead(state, client, lane);
                return Some(());
            }
        }
        let holder = state.keys[key].holder.filter(|holder| *holder != client);
        if let Some(holder) = holder {
            if !rules.grants_to_the_living || state.sessions[holder].lives(now) {
                state.calls[client][lane] = None;
                return Some(());
            }
            if rules.death_under_lock {
                if state.delete_has_to_wait(holder, rules) {
                    // Told that it is held.
                    state.calls[client][lane] = None;
                } else {
                    state.delete(holder);
                    state.calls[client][lane] = Some(Call::Asks { key });
                }
                return Some(());
            }
        }
        let written =
            |call: &Call| matches!(call, Call::Grants { key: other, .. } if *other == key);
        if state.calls.iter().flatten().flatten().any(written) {
            return None;
        }
        if !state.sessions[client].lives(now) {
            state.violation = Some(Violation::GrantToTheDead);
        }
        let token = match drawn {
            Some(token) => token,
            None => state.draw(),
        };
        state.calls[client][lane] = Some(Call::Grants { key, token });
        Some(())
    }

    fn revoke(&self, state: &mut State, key: usize) -> Option<()> {
        let holder = state.keys[key].holder?;
        let counted = |call: Call| matches!(call, Call::Counted { .. });
        if state.key_is_owned(key, self.rules) || state.calls_of(holder).any(counted) {
            return None;
        }
        state.calls_left -= 1;
        state.keys[key].holder = None;
        state.keys[key].last = state.draw();
        state.clients[holder].holds[key] = false;
        Some(())
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            clock: 0,
            sequence: 0,
            sessions: [Session::Never; CLIENTS],
            keys: Default::default(),
            calls: Default::default(),
            clients: Default::default(),
            calls_left: self.bounds.calls,
            violation: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_some() {
            return;
        }
        if state.clock < self.bounds.clock {
            actions.push(Action::Tick);
        }
        for client in 0..CLIENTS {
            let told = state.clients[client];
            if state.sessions[client] == Session::Never {
                // The clients are alike: the first is the one that opens first.
                if client == 0 || state.sessions[client - 1] != Session::Never {
                    actions.push(Action::Open(client));
                }
                continue;
            }
            for (lane, call) in state.calls[client].iter().enumerate() {
                if call.is_some() {
                    actions.push(Action::Step(client, lane));
                    actions.push(Action::LoseAnswer(client, lane));
                    actions.push(Action::Cut(client, lane));
                }
            }
            // Lanes are alike: the first that is free will do.
            let free = state.calls[client].iter().position(Option::is_none);
            if let Some(lane) = free
                && state.calls_left > 0
                && !told.crashed
                && !told.told_dead
            {
                actions.push(Action::Heartbeat(client, lane));
                actions.push(Action::Close(client, lane));
                // So are the keys.
                let keys = if state.keys_are_untouched() { 1 } else { KEYS };
                actions.extend((0..keys).map(|key| Action::Acquire(client, lane, key)));
            }
            if !told.crashed {
                actions.push(Action::Crash(client));
            }
            actions.push(Action::Reap(client));
        }
        if state.calls_left > 0 {
            actions.extend((0..KEYS).map(Action::Revoke));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let begin = |state: &mut State, client: usize, lane: usize, call| {
            state.calls_left -= 1;
            state.calls[client][lane] = Some(call);
        };
        match action {
            Action::Tick => state.clock += 1,
            Action::Open(client) => {
                let expires = state.clock + TTL;
                state.sessions[client] = Session::Stands { expires };
                state.clients[client].until = expires;
            }
            Action::Heartbeat(client, lane) => {
                state.calls_left -= 1;
                self.begin_beat(&mut state, client, lane);
            }
            Action::Close(client, lane) => {
                begin(&mut state, client, lane, Call::Closes);
                state.clients[client].until = 0;
            }
            Action::Acquire(client, lane, key) => {
                let call = if self.rules.token_under_key {
                    Call::Asks { key }
                } else {
                    let drawn = Some(state.draw());
                    Call::Owns { key, drawn }
                };
                begin(&mut state, client, lane, call);
            }
            Action::Step(client, lane) => self.step(&mut state, client, lane, true)?,
            Action::LoseAnswer(client, lane) => {
                let commits = matches!(
                    state.calls[client][lane],
                    Some(Call::Beaten { .. } | Call::Counted { .. } | Call::Grants { .. })
                );
                if !commits {
                    return None;
                }
                self.step(&mut state, client, lane, false)?;
            }
            Action::Cut(client, lane) => state.calls[client][lane] = None,
            Action::Crash(client) => {
                state.clients[client] = Client {
                    crashed: true,
                    told_dead: state.clients[client].told_dead,
                    ..Client::default()
                };
            }
            Action::Reap(client) => {
                let Session::Stands { expires } = state.sessions[client] else {
                    return None;
                };
                if expires > state.clock || state.delete_has_to_wait(client, self.rules) {
                    return None;
                }
                state.delete(client);
            }
            Action::Revoke(key) => self.revoke(&mut state, key)?,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                (0..KEYS).all(|key| {
                    let believers = (0..CLIENTS).filter(|client| state.believes(*client, key));
                    believers.count() <= 1
                })
            }),
            Property::always(DEATH_IS_FINAL, |_, state: &State| {
                (0..CLIENTS).all(|client| {
                    !state.clients[client].told_dead || !state.sessions[client].lives(state.clock)
                })
            }),
            Property::always(TRUE_BEATS_STAND, |_, state: &State| {
                (0..CLIENTS).all(|client| {
                    let until = state.clients[client].until;
                    until <= state.clock
                        || matches!(state.sessions[client],
                                    Session::Stands { expires } if expires >= until)
                })
            }),
            Property::always(RISING_TOKENS, |_, state: &State| {
                state.violation != Some(Violation::TokenFell)
            }),
            Property::always(EXACT_CLOSE, |_, state: &State| {
                state.violation != Some(Violation::WrongCount)
            }),
            Property::always(LIVING_HOLDERS, |_, state: &State| {
                state.violation != Some(Violation::GrantToTheDead)
            }),
            Property::always(BEATS_IN_TIME, |_, state: &State| {
                state.violation != Some(Violation::BeatOfTheDead)
            }),
            // What shows that the model is not idle.
            Property::sometimes("a dead holder is replaced", |_, state: &State| {
                (0..KEYS).any(|key| {
                    let Key { holder, last } = state.keys[key];
                    let replaced =
                        |other: usize| state.clients[other].holds[key] && holder != Some(other);
                    holder.is_some() && last > 1 && (0..CLIENTS).any(replaced)
                })
            }),
            Property::sometimes("a session is closed with two locks", |_, state: &State| {
                let mut calls = state.calls.iter().flatten().flatten();
                calls.any(|call| matches!(call, Call::Counted { locks: 2 }))
            }),
            Property::sometimes("a death is sealed", |_, state: &State| {
                let sealed = Session::Stands { expires: 0 };
                state.sessions.contains(&sealed)
            }),
            Property::sometimes("a seal finds a heartbeat was faster", |_, state: &State| {
                (0..CLIENTS).any(|client| {
                    state.sessions[client].lives(state.clock)
                        && state.calls_of(client).any(|call| call == Call::Seals)
                })
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stateright::{Checker, Expectation, HasDiscoveries};

    const BOUNDS: Bounds = Bounds { clock: 3, calls: 3 };

    /// Without a rule, the properties that then fail, each with the way there printed.
    fn broken(without: &str, rules: Rules) -> Vec<&'static str> {
        let protocol = Protocol {
            rules,
            bounds: BOUNDS,
        };
        let checker = protocol
            .checker()
            .finish_when(HasDiscoveries::AnyFailures)
            .threads(2)
            .spawn_bfs()
            .join();
        let mut broken = Vec::new();
        for property in protocol.properties() {
            if let (Expectation::Always, Some(path)) =
                (&property.expectation, checker.discovery(property.name))
            {
                println!("without {without}, {} fails:", property.name);
                for action in path.into_actions() {
                    println!("  {action:?}");
                }
                broken.push(property.name);
            }
        }
        broken
    }

    #[test]
    fn with_every_rule_nothing_breaks() {
        let protocol = Protocol {
            rules: Rules::ALL,
            bounds: BOUNDS,
        };

        let checker = protocol.checker().threads(2).spawn_bfs().join();

        println!(
            "{} states, {} of them different",
            checker.state_count(),
            checker.unique_state_count()
        );
        assert!(checker.is_done());
        checker.assert_properties();
    }

    #[test]
    fn without_tokens_under_the_key_they_fall() {
        let mut rules = Rules::ALL;
        rules.token_under_key = false;
        assert!(broken("tokens under the key", rules).contains(&RISING_TOKENS));
    }

    #[test]
    fn without_the_row_lock_a_close_miscounts() {
        let mut rules = Rules::ALL;
        rules.close_locks_first = false;
        assert!(broken("the close's row lock", rules).contains(&EXACT_CLOSE));
    }

    #[test]
    fn without_a_look_at_the_session_the_dead_are_granted_locks() {
        let mut rules = Rules::ALL;
        rules.grants_to_the_living = false;
        assert!(broken("grants to the living", rules).contains(&LIVING_HOLDERS));
    }

    #[test]
    fn where_a_snapshot_decides_deaths_a_key_has_two_holders() {
        let mut rules = Rules::ALL;
        rules.death_under_lock = false;
        assert!(broken("death under the lock", rules).contains(&ONE_HOLDER));
    }

    #[test]
    fn where_a_beat_waits_for_ever_it_extends_the_dead() {
        let mut rules = Rules::ALL;
        rules.bounded_wait = false;
        assert!(broken("the bounded wait", rules).contains(&BEATS_IN_TIME));
    }

    #[test]
    fn without_the_seal_the_dead_return() {
        let mut rules = Rules::ALL;
        rules.seal = false;
        assert!(broken("the seal", rules).contains(&DEATH_IS_FINAL));
    }
}
