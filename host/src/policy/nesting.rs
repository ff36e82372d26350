//! How deep components are inside one another.

use wasmparser::{Parser, Payload};

/// The deepest that they may be. Each composition adds one. To validate and to compile what is
/// nested takes time by the square of its depth: at 20 000, which fits into 240 KB, a minute.
const DEEPEST: usize = 100;

/// Refuses what is nested deeper. The error says so, for people; whether the bytes are
/// well-formed is for others to say.
pub(super) fn check(component: &[u8]) -> Result<(), String> {
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(component).map_while(Result::ok) {
        match payload {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth -= usize::from(depth > 0),
            _ => {}
        }
        if depth > DEEPEST {
            return Err(format!(
                "the components in it are nested more than {DEEPEST} deep"
            ));
        }
    }
    Ok(())
}
