//! The bounds and the default policy's rules, bound to the contract.

mod bindings {
    wit_bindgen::generate!({
        path: ["../../wit", "../../wit/wasi/config.wit"],
        inline: "
            package tenure:clamp;
            world clamp {
                include tenure:registry/session-policy@0.1.0;
                import wasi:config/store@0.2.0-rc.1;
            }
        ",
        world: "tenure:clamp/clamp",
        generate_all,
    });
}

use crate::bounds::Bounds;
use bindings::exports::tenure::registry::session_registry::Guest;
use bindings::tenure::registry::statements;
use bindings::tenure::registry::types::{RegistryError, SessionId, StoreError};
use bindings::wasi::config::store;

/// With the 32 KiB stack and the data this fills one page of memory, which the host keeps
/// resident.
#[global_allocator]
static ARENA: guest_arena::Arena<{ 24 * 1024 }> = guest_arena::Arena::new();

struct Clamp;

impl Guest for Clamp {
    fn open_session(owner_id: String, ttl_ms: u64) -> Result<SessionId, RegistryError> {
        rules::check_owner(&owner_id).map_err(invalid)?;
        let ttl_ms = bounds(Some(&owner_id))?.clamp(ttl_ms);
        statements::open_session(&owner_id, ttl_ms).map_err(fault)
    }

    fn heartbeat(session_id: SessionId, ttl_ms: u64) -> Result<bool, RegistryError> {
        rules::check_session_id(&session_id).map_err(invalid)?;
        let ttl_ms = bounds(None)?.clamp(ttl_ms);
        let rows = statements::heartbeat(&session_id, ttl_ms).map_err(fault)?;
        rules::is_alive(rows).map_err(|broken| RegistryError::Store(broken.into()))
    }

    fn close_session(session_id: SessionId) -> Result<u32, RegistryError> {
        rules::check_session_id(&session_id).map_err(invalid)?;
        statements::close_session(&session_id).map_err(fault)
    }

    fn locks_of(session_id: SessionId) -> Result<Vec<String>, RegistryError> {
        rules::check_session_id(&session_id).map_err(invalid)?;
        statements::locks_of(&session_id).map_err(fault)
    }
}

fn bounds(owner: Option<&str>) -> Result<Bounds, RegistryError> {
    let misconfigured =
        |why| RegistryError::Refused(format!("the policy's settings make no sense: {why}"));
    let settings = store::get_all().map_err(|error| misconfigured(text(error)))?;
    Bounds::of(&settings, owner).map_err(misconfigured)
}

fn text(error: store::Error) -> String {
    match error {
        store::Error::Upstream(text) | store::Error::Io(text) => text,
    }
}

fn invalid(broken: rules::Broken) -> RegistryError {
    RegistryError::InvalidArgument(broken.into())
}

/// A fault stays that fault.
fn fault(error: StoreError) -> RegistryError {
    match error {
        StoreError::Contention(text) => RegistryError::Contention(text),
        StoreError::Rejected(text) => RegistryError::Store(text),
    }
}

bindings::export!(Clamp with_types_in bindings);
