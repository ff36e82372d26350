//! Whether a component fits the world, and what does not.

use wasmparser::Parser;
use wit_component::{DecodedWasm, OutputToString, WitPrinter};
use wit_parser::decoding::decode_world;
use wit_parser::{Function, Interface, PackageName, Resolve, Type, WorldId, WorldItem, WorldKey};

use crate::policy::bindings::COMPONENT_TYPE;

/// What a component says of itself: its types, and its imports and exports.
pub(super) struct Declared {
    pub(super) resolve: Resolve,
    pub(super) world: WorldId,
}

impl Declared {
    /// Reads a component. The error says what else the bytes are.
    pub(super) fn read(component: &[u8]) -> Result<Self, String> {
        if Parser::is_core_wasm(component) {
            return Err(
                "this is a core module, which `wasm-tools component new` can make a component of"
                    .to_owned(),
            );
        }
        match wit_component::decode(component) {
            Ok(DecodedWasm::Component(resolve, world)) => Ok(Self { resolve, world }),
            Ok(DecodedWasm::WitPackage(..)) => {
                Err("this is a package of WIT interfaces, not a component".to_owned())
            }
            Err(error) => Err(format!("{error:#}")),
        }
    }

    pub(super) fn imports(&self) -> Vec<String> {
        self.names(&self.resolve.worlds[self.world].imports)
    }

    pub(super) fn exports(&self) -> Vec<String> {
        self.names(&self.resolve.worlds[self.world].exports)
    }

    fn names<'a>(
        &self,
        items: impl IntoIterator<Item = (&'a WorldKey, &'a WorldItem)>,
    ) -> Vec<String> {
        let names = items.into_iter();
        names
            .map(|(key, _)| self.resolve.name_world_key(key))
            .collect()
    }

    /// All of it as WIT.
    pub(super) fn wit(&self) -> Result<String, String> {
        let main = self.resolve.worlds[self.world].package;
        let nested = self.resolve.packages.iter().map(|(id, _)| id);
        let nested: Vec<_> = nested.filter(|id| Some(*id) != main).collect();
        let mut printer = WitPrinter::default();
        let Some(main) = main else {
            return Ok(String::new());
        };
        printer
            .print(&self.resolve, main, &nested)
            .map_err(|error| format!("{error:#}"))?;
        Ok(printer.output.to_string())
    }
}

/// What does not fit the world `session-policy`, or nothing.
///
/// `wit_component::targets` decides. What it would not name plainly is looked for beside it: an
/// import that the host has not, an export that is missing, a function of another type. More
/// exports than the world's are fine.
///
/// A version counts as the world's own where the two are on one track: 0.1.0 and 0.1.7, 1.2.0
/// and 1.3.0.
pub(super) fn misfits(component: &[u8], declared: &Declared) -> Vec<String> {
    let (mut host, world) = decode_world(COMPONENT_TYPE).expect("bindgen made it");
    let mut found = Vec::new();
    // Written otherwise, which need not mean another type.
    let mut suspects = Vec::new();
    let theirs = &declared.resolve.worlds[declared.world];
    let ours = host.worlds[world].clone();

    let mut version = None;
    for (key, item) in &theirs.imports {
        let name = declared.resolve.name_world_key(key);
        let Some((wanted, _)) = interface(&declared.resolve, item) else {
            found.push(format!("it imports {name}, which is no interface"));
            continue;
        };
        let Some(has) = counterpart(&host, &ours.imports, &declared.resolve, wanted) else {
            let given = names(&host, &ours.imports).join(" and ");
            found.push(format!(
                "it imports {name}, which a policy does not get; it gets {given} and nothing else"
            ));
            continue;
        };
        for (function, wanted) in &wanted.functions {
            match has.functions.get(function) {
                None => found.push(format!(
                    "it imports the function {function} of {name}, which this host does not have"
                )),
                Some(has) => different(&mut suspects, &host, has, &declared.resolve, wanted, &name),
            }
        }
    }
    for (key, item) in &ours.exports {
        let name = host.name_world_key(key);
        let Some((has, package)) = interface(&host, item) else {
            continue;
        };
        let Some(given) = counterpart(&declared.resolve, &theirs.exports, &host, has) else {
            let mut exports = names(&declared.resolve, &theirs.exports).join(", ");
            if exports.is_empty() {
                "nothing".clone_into(&mut exports);
            }
            found.push(format!("it does not export {name}; it exports {exports}"));
            continue;
        };
        version = given
            .package
            .and_then(|id| declared.resolve.packages[id].name.version.clone())
            .map(|version| (package, version));
        for (function, wanted) in &has.functions {
            match given.functions.get(function) {
                None => found.push(format!(
                    "its {name} does not export the function {function}"
                )),
                Some(given) => {
                    different(
                        &mut suspects,
                        &host,
                        wanted,
                        &declared.resolve,
                        given,
                        &name,
                    );
                }
            }
        }
    }
    if let Some((package, version)) = version {
        for (_, candidate) in &mut host.packages {
            if candidate.name == package {
                candidate.name.version = Some(version.clone());
            }
        }
    }
    if let Err(error) = wit_component::targets(&host, world, component) {
        found.append(&mut suspects);
        if found.is_empty() {
            found.push(error.root_cause().to_string());
        }
    }
    found
}

fn names<'a>(
    resolve: &Resolve,
    items: impl IntoIterator<Item = (&'a WorldKey, &'a WorldItem)>,
) -> Vec<String> {
    let keys = items.into_iter().map(|(key, _)| key);
    keys.map(|key| resolve.name_world_key(key)).collect()
}

fn interface<'a>(resolve: &'a Resolve, item: &WorldItem) -> Option<(&'a Interface, PackageName)> {
    match item {
        WorldItem::Interface { id, .. } => {
            let interface = &resolve.interfaces[*id];
            let package = resolve.packages[interface.package?].name.clone();
            Some((interface, package))
        }
        _ => None,
    }
}

/// The interface among `items` that stands for `wanted`.
fn counterpart<'a>(
    resolve: &'a Resolve,
    items: impl IntoIterator<Item = (&'a WorldKey, &'a WorldItem)>,
    wanted_in: &Resolve,
    wanted: &Interface,
) -> Option<&'a Interface> {
    let package = &wanted_in.packages[wanted.package?].name;
    let mut found = items
        .into_iter()
        .filter_map(|(_, item)| interface(resolve, item));
    found
        .find(|(interface, theirs)| {
            interface.name == wanted.name
                && (&theirs.namespace, &theirs.name) == (&package.namespace, &package.name)
                && same_track(theirs, package)
        })
        .map(|(interface, _)| interface)
}

/// Whether two versions of a package may stand in for each other: what `wasmtime` links.
fn same_track(one: &PackageName, other: &PackageName) -> bool {
    let (Some(one), Some(other)) = (&one.version, &other.version) else {
        return one.version == other.version;
    };
    one == other
        || (one.pre.is_empty()
            && other.pre.is_empty()
            && one.major == other.major
            && (one.major > 0 || (one.minor > 0 && one.minor == other.minor)))
}

fn different(
    suspects: &mut Vec<String>,
    host: &Resolve,
    contract: &Function,
    component: &Resolve,
    function: &Function,
    interface: &str,
) {
    let (contract_has, component_has) = (signature(host, contract), signature(component, function));
    if contract_has != component_has {
        suspects.push(format!(
            "its {} of {interface} is {component_has}; the contract has {contract_has}",
            function.name
        ));
    }
}

fn signature(resolve: &Resolve, function: &Function) -> String {
    let named = |ty: &Type| {
        let mut printer: WitPrinter<OutputToString> = WitPrinter::default();
        match printer.print_type_name(resolve, ty) {
            Ok(()) => printer.output.to_string(),
            Err(error) => format!("({error:#})"),
        }
    };
    let params: Vec<_> = function
        .params
        .iter()
        .map(|param| format!("{}: {}", param.name, named(&param.ty)))
        .collect();
    let result = function.result.as_ref().map(named);
    let result = result.map(|ty| format!(" -> {ty}")).unwrap_or_default();
    format!("func({}){result}", params.join(", "))
}
