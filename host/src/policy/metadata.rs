//! A component's name and version, which it carries in custom sections.

use wasmparser::{ComponentName, ComponentNameSectionReader, KnownCustom, Parser, Payload};

/// The name and the version of the outermost component, as far as it has them. Says nothing
/// about whether the rest of the bytes is well-formed.
pub(super) fn read(component: &[u8]) -> (Option<String>, Option<String>) {
    let (mut name, mut version) = (None, None);
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(component) {
        match payload {
            Ok(Payload::ModuleSection { .. } | Payload::ComponentSection { .. }) => depth += 1,
            Ok(Payload::End(_)) => depth -= 1,
            Ok(Payload::CustomSection(section)) if depth == 0 => match section.as_known() {
                KnownCustom::ComponentName(names) => name = first_name(names).or(name),
                _ if section.name() == "version" => {
                    version = std::str::from_utf8(section.data()).ok().map(str::to_owned);
                }
                _ => {}
            },
            Ok(_) => {}
            Err(_) => break,
        }
    }
    (name, version)
}

fn first_name(names: ComponentNameSectionReader<'_>) -> Option<String> {
    names.into_iter().find_map(|name| match name {
        Ok(ComponentName::Component { name, .. }) => Some(name.to_owned()),
        _ => None,
    })
}
