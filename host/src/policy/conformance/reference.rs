//! What the contract says a call has to answer, given what the store holds: the rules that
//! random histories are held to.

use uuid::Uuid;

use super::model::Model;
use super::player::Player;
use super::scenario::{Action, Keys, Outcome, Step};
use super::stage::Fault;

/// The longest TTL of the contract: 24 hours.
pub(super) const MAX_TTL_MS: u64 = 24 * 60 * 60 * 1000;

/// How many characters an owner id may have.
const MAX_OWNER_CHARS: usize = 64;

/// How many keys `locks-of` returns.
const LISTED: usize = 100;

/// What the default policy has to answer to a call, and what another may answer beside its
/// own no. Empty for what is no call, or a call for a session that was never opened.
pub(super) fn expected(step: &Step, player: &Player, model: &Model) -> Vec<Outcome> {
    let (bound_is_kept, answer) = match &step.action {
        Action::OpenSession { owner, ttl_ms, .. } => {
            let owner = owner.as_ref().and_then(|owner| player.id(owner));
            if owner.is_some_and(|owner| !is_owner(&owner)) {
                return vec![Outcome::InvalidArgument];
            }
            (is_ttl(ttl_ms.ms()), Outcome::Opened)
        }
        Action::Heartbeat { session, ttl_ms } => {
            let Some(session) = player.id(session) else {
                return Vec::new();
            };
            let Some(id) = session_id(&session) else {
                return vec![Outcome::InvalidArgument];
            };
            let answer = if model.is_live(id) {
                Outcome::Alive
            } else {
                Outcome::Dead
            };
            (is_ttl(ttl_ms.ms()), answer)
        }
        Action::CloseSession { session } | Action::LocksOf { session } => {
            let Some(session) = player.id(session) else {
                return Vec::new();
            };
            let Some(id) = session_id(&session) else {
                return vec![Outcome::InvalidArgument];
            };
            let mut keys = model.locks(id);
            let answer = if matches!(step.action, Action::CloseSession { .. }) {
                Outcome::Closed(u32::try_from(keys.len()).unwrap_or(u32::MAX))
            } else {
                keys.truncate(LISTED);
                Outcome::Locks(Keys::Listed(keys))
            };
            (true, answer)
        }
        _ => return Vec::new(),
    };
    let answer = match step.fault {
        None => answer,
        Some(Fault::ContentionBefore | Fault::ContentionAfter) => Outcome::Contention,
        Some(Fault::Rejected | Fault::Other) => Outcome::Store,
    };
    if bound_is_kept {
        vec![answer]
    } else {
        // A policy may also bring the TTL within bounds.
        vec![Outcome::InvalidArgument, answer]
    }
}

fn is_owner(owner: &str) -> bool {
    let chars = owner.chars();
    chars.clone().count() <= MAX_OWNER_CHARS
        && !chars.clone().all(char::is_whitespace)
        && !chars.clone().any(char::is_control)
}

fn is_ttl(ttl_ms: u64) -> bool {
    (1..=MAX_TTL_MS).contains(&ttl_ms)
}

fn session_id(text: &str) -> Option<Uuid> {
    Uuid::try_parse(text).ok().filter(|_| text.len() == 36)
}
