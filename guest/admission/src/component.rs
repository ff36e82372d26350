//! The rules, bound to the contract on both sides.

mod bindings {
    wit_bindgen::generate!({
        path: ["../../wit", "../../wit/wasi/config.wit"],
        inline: "
            package tenure:admission;
            world admission {
                import tenure:registry/session-registry@0.1.0;
                import wasi:config/store@0.2.0-rc.1;
                export tenure:registry/session-registry@0.1.0;
            }
        ",
        world: "tenure:admission/admission",
        generate_all,
    });
}

use crate::rules::Settings;
use bindings::exports::tenure::registry::session_registry::Guest;
use bindings::tenure::registry::session_registry as behind;
use bindings::tenure::registry::types::{RegistryError, SessionId};
use bindings::wasi::config::store;

/// With the 32 KiB stack and the data this fills one page of memory, which the host keeps
/// resident.
#[global_allocator]
static ARENA: guest_arena::Arena<{ 24 * 1024 }> = guest_arena::Arena::new();

struct Admission;

impl Guest for Admission {
    fn open_session(owner_id: String, ttl_ms: u64) -> Result<SessionId, RegistryError> {
        let settings =
            settings().map_err(|(store::Error::Upstream(why) | store::Error::Io(why))| {
                RegistryError::Refused(format!("the policy's settings cannot be read: {why}"))
            })?;
        settings.admit(&owner_id).map_err(RegistryError::Refused)?;
        behind::open_session(&owner_id, ttl_ms)
    }

    fn heartbeat(session_id: SessionId, ttl_ms: u64) -> Result<bool, RegistryError> {
        behind::heartbeat(&session_id, ttl_ms)
    }

    fn close_session(session_id: SessionId) -> Result<u32, RegistryError> {
        behind::close_session(&session_id)
    }

    fn locks_of(session_id: SessionId) -> Result<Vec<String>, RegistryError> {
        behind::locks_of(&session_id)
    }
}

fn settings() -> Result<Settings, store::Error> {
    Ok(Settings {
        characters: store::get("naming.characters")?,
        max_length: store::get("naming.max-length")?,
        deny: store::get("deny")?,
        allow: store::get("allow")?,
    })
}

bindings::export!(Admission with_types_in bindings);
