//! How much room a policy takes, as far as that is known before it runs, and which profile
//! so much room belongs to.

use std::fmt;
use std::str::FromStr;

use wasmparser::{Parser, Payload};
use wasmtime::component::Component;

use super::engine::LoadError;
use super::limits::{Limits, Room};

/// The bytes of a page of WebAssembly's memory.
const PAGE: u64 = 64 * 1024;

/// A class of policies by the room that they take. A policy gets the smallest one that it
/// fits, as long as that is allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// Compiled languages, such as Rust, C and Zig: one small memory. Of a composition each
    /// component has that for itself, so that a policy fits whether or not others stand
    /// before it.
    #[default]
    Strict,
    /// Languages that bring an interpreter, such as JavaScript and Python: several
    /// memories, each large enough for the interpreter's heap.
    Interpreted,
}

impl Profile {
    const ALL: [Self; 2] = [Self::Strict, Self::Interpreted];

    /// Its name, as a setting spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Interpreted => "interpreted",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|profile| profile.name() == text)
            .ok_or_else(|| "there are the profiles strict and interpreted".to_owned())
    }
}

/// What a component needs before its first instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Needs {
    /// Memories of the component that has most of them. Those of the components inside it
    /// are theirs.
    memories: u32,
    /// Bytes of the largest memory.
    memory: u64,
    /// Elements of the largest table.
    table_elements: u64,
}

impl Needs {
    /// Of a component that compiled to `compiled`. `None` where it is not known, since it
    /// takes a core module from outside.
    pub(super) fn of(component: &[u8], compiled: &Component) -> Option<Self> {
        let required = compiled.resources_required()?;
        Some(Self {
            memories: memories(component),
            memory: required.max_initial_memory_size.unwrap_or(0) * PAGE,
            table_elements: required.max_initial_table_size.unwrap_or(0),
        })
    }

    fn fit(&self, room: &Room) -> bool {
        self.memories <= room.memories
            && self.memory <= room.memory as u64
            && self.table_elements <= room.table_elements as u64
    }

    /// The profile for it, which is `allowed` or a smaller one.
    pub(super) fn profile(&self, limits: &Limits, allowed: Profile) -> Result<Profile, LoadError> {
        let fitting = Profile::ALL
            .into_iter()
            .find(|profile| self.fit(limits.room(*profile)));
        match fitting {
            Some(profile) if profile <= allowed => Ok(profile),
            larger => Err(LoadError::TooLarge {
                needs: self.to_string(),
                allowed,
                room: limits.room(allowed).to_string(),
                fits: larger,
            }),
        }
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} memories, {} bytes of memory and {} table elements",
            self.memories, self.memory, self.table_elements
        )
    }
}

/// The memories of the component that has most of them, in its core modules. The bytes have
/// been validated.
fn memories(component: &[u8]) -> u32 {
    /// A component or a core module that has begun and not ended.
    struct Open {
        is_module: bool,
        memories: u32,
    }
    let mut open: Vec<Open> = Vec::new();
    let mut most = 0;
    for payload in Parser::new(0).parse_all(component).flatten() {
        match payload {
            Payload::Version { encoding, .. } => open.push(Open {
                is_module: encoding == wasmparser::Encoding::Module,
                memories: 0,
            }),
            Payload::MemorySection(section) => {
                if let Some(module) = open.last_mut() {
                    module.memories += section.count();
                }
            }
            Payload::End(_) => {
                let ended = open.pop();
                match (ended, open.last_mut()) {
                    (Some(ended), Some(outer)) if ended.is_module => {
                        outer.memories += ended.memories;
                    }
                    (Some(ended), _) => most = most.max(ended.memories),
                    (None, _) => {}
                }
            }
            _ => {}
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(memories: u32, pages: u64, table_elements: u64) -> Needs {
        Needs {
            memories,
            memory: pages * PAGE,
            table_elements,
        }
    }

    #[test]
    fn a_component_gets_the_smallest_profile_that_it_fits() {
        let limits = Limits::default();
        for (needs, profile) in [
            (needs(0, 0, 0), Some(Profile::Strict)),
            (needs(1, 32, 1024), Some(Profile::Strict)),
            (needs(1, 33, 1), Some(Profile::Interpreted)),
            (needs(2, 1, 1), Some(Profile::Interpreted)),
            (needs(1, 1, 1025), Some(Profile::Interpreted)),
            (needs(3, 256, 8000), Some(Profile::Interpreted)),
            (needs(4, 1, 1), None),
            (needs(1, 257, 1), None),
            (needs(1, 1, 8001), None),
        ] {
            let got = needs.profile(&limits, Profile::Interpreted).ok();
            assert_eq!(got, profile, "{needs}");
            let strictly = needs.profile(&limits, Profile::Strict).ok();
            assert_eq!(
                strictly,
                profile.filter(|p| *p == Profile::Strict),
                "{needs}"
            );
        }
    }

    #[test]
    fn names_are_read_back() {
        for profile in Profile::ALL {
            assert_eq!(profile.name().parse(), Ok(profile));
        }
        assert!("Strict".parse::<Profile>().is_err());
    }
}
