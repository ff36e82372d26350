//! Whether a component fits the world, and what does not.

use wasmparser::Parser;
use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Config, Engine};
use wit_component::{
    ComponentEncoder, DecodedWasm, OutputToString, StringEncoding, WitPrinter, dummy_module,
    embed_component_metadata,
};
use wit_parser::decoding::decode_world;
use wit_parser::{
    Function, Interface, InterfaceId, ManglingAndAbi, PackageName, Resolve, Type, WorldId,
    WorldItem, WorldKey,
};

use crate::policy::bindings::{COMPONENT_TYPE, SessionPolicyPre};
use crate::policy::call::CallState;
use crate::policy::engine::linker;
use crate::policy::nesting;

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
                "this is a core module, which `tenure policy new` can make a component of"
                    .to_owned(),
            );
        }
        nesting::check(component)?;
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

/// What does not fit the world `session-policy` and what the host gives beside it, or nothing.
///
/// The linker decides, the same that policies are loaded by. What it would not name plainly is
/// looked for beside it: a function of the contract that is missing on either side, or has
/// another type. More exports than the world's are fine.
///
/// A version counts as the host's own where the two are on one track: 0.1.0 and 0.1.7, 1.2.0
/// and 1.3.0.
pub(super) fn misfits(declared: &Declared) -> Vec<String> {
    let (resolve, world) = (&declared.resolve, declared.world);
    let engine = Engine::new(Config::new().concurrency_support(false));
    let engine = engine.expect("nothing in it depends on the machine");
    let linker = linker(&engine).expect("no name is defined twice");
    let Err(error) = shape(resolve, world).and_then(|shape| loads(&linker, &shape)) else {
        return Vec::new();
    };
    let mut found = contract_misfits(declared);
    for (key, item) in &resolve.worlds[world].imports {
        let name = resolve.name_world_key(key);
        match item {
            WorldItem::Interface { id, .. } if !is_contract(resolve, *id) => {
                let alone = shape_of_import(resolve, world, *id);
                if let Err(error) = alone.and_then(|shape| links(&linker, &shape).map(drop)) {
                    found.push(format!(
                        "it imports {name}, which a policy does not get: {error}"
                    ));
                }
            }
            WorldItem::Interface { .. } => {}
            _ => found.push(format!("it imports {name}, which is no interface")),
        }
    }
    if found.is_empty() {
        found.push(error);
    }
    found
}

/// A component that imports and exports what `world` does, and does nothing.
fn shape(resolve: &Resolve, world: WorldId) -> Result<Vec<u8>, String> {
    let mut module = dummy_module(resolve, world, ManglingAndAbi::Standard32);
    embed_component_metadata(&mut module, resolve, world, StringEncoding::UTF8)
        .and_then(|()| ComponentEncoder::default().module(&module)?.encode())
        .map_err(|error| format!("{error:#}"))
}

/// The same of one import of `world`, and of what that takes its types from.
fn shape_of_import(
    resolve: &Resolve,
    world: WorldId,
    import: InterfaceId,
) -> Result<Vec<u8>, String> {
    let mut needed = vec![import];
    let mut at = 0;
    while let Some(interface) = needed.get(at) {
        let more: Vec<_> = resolve
            .interface_direct_deps(*interface)
            .filter(|id| !needed.contains(id))
            .collect();
        needed.extend(more);
        at += 1;
    }
    let mut resolve = resolve.clone();
    let world_of_it = &mut resolve.worlds[world];
    world_of_it.exports.clear();
    world_of_it
        .imports
        .retain(|_, item| matches!(item, WorldItem::Interface { id, .. } if needed.contains(id)));
    shape(&resolve, world)
}

fn links(linker: &Linker<CallState>, component: &[u8]) -> Result<InstancePre<CallState>, String> {
    Component::from_binary(linker.engine(), component)
        .and_then(|component| linker.instantiate_pre(&component))
        .map_err(|error| format!("{error:#}"))
}

fn loads(linker: &Linker<CallState>, component: &[u8]) -> Result<(), String> {
    match SessionPolicyPre::new(links(linker, component)?) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{error:#}")),
    }
}

fn is_contract(resolve: &Resolve, interface: InterfaceId) -> bool {
    let package = resolve.interfaces[interface].package;
    package.is_some_and(|id| {
        let name = &resolve.packages[id].name;
        (&*name.namespace, &*name.name) == ("tenure", "registry")
    })
}

/// What differs from the contract, as far as it can be named.
fn contract_misfits(declared: &Declared) -> Vec<String> {
    let (host, world) = decode_world(COMPONENT_TYPE).expect("bindgen made it");
    let theirs = &declared.resolve.worlds[declared.world];
    let ours = &host.worlds[world];
    let mut found = Vec::new();

    for (key, item) in &theirs.imports {
        let name = declared.resolve.name_world_key(key);
        let WorldItem::Interface { id, .. } = item else {
            continue;
        };
        if !is_contract(&declared.resolve, *id) {
            continue;
        }
        let wanted = &declared.resolve.interfaces[*id];
        let Some(has) = counterpart(&host, &ours.imports, &declared.resolve, wanted) else {
            let given = names(&host, &ours.imports).join(" and ");
            found.push(format!(
                "it imports {name}, which this host does not have; of the contract it has {given}"
            ));
            continue;
        };
        for (function, wanted) in &wanted.functions {
            match has.functions.get(function) {
                None => found.push(format!(
                    "it imports the function {function} of {name}, which this host does not have"
                )),
                Some(has) => {
                    found.extend(different(&host, has, &declared.resolve, wanted, &name));
                }
            }
        }
    }
    for (key, item) in &ours.exports {
        let name = host.name_world_key(key);
        let WorldItem::Interface { id, .. } = item else {
            continue;
        };
        let has = &host.interfaces[*id];
        let Some(given) = counterpart(&declared.resolve, &theirs.exports, &host, has) else {
            let mut exports = names(&declared.resolve, &theirs.exports).join(", ");
            if exports.is_empty() {
                "nothing".clone_into(&mut exports);
            }
            found.push(format!("it does not export {name}; it exports {exports}"));
            continue;
        };
        for (function, wanted) in &has.functions {
            match given.functions.get(function) {
                None => found.push(format!(
                    "its {name} does not export the function {function}"
                )),
                Some(given) => {
                    found.extend(different(&host, wanted, &declared.resolve, given, &name));
                }
            }
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

/// The interface among `items` that stands for `wanted`.
fn counterpart<'a>(
    resolve: &'a Resolve,
    items: impl IntoIterator<Item = (&'a WorldKey, &'a WorldItem)>,
    wanted_in: &Resolve,
    wanted: &Interface,
) -> Option<&'a Interface> {
    let package = &wanted_in.packages[wanted.package?].name;
    items.into_iter().find_map(|(_, item)| {
        let WorldItem::Interface { id, .. } = item else {
            return None;
        };
        let interface = &resolve.interfaces[*id];
        let theirs = &resolve.packages[interface.package?].name;
        let stands = interface.name == wanted.name
            && (&theirs.namespace, &theirs.name) == (&package.namespace, &package.name)
            && same_track(theirs, package);
        stands.then_some(interface)
    })
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
    host: &Resolve,
    contract: &Function,
    component: &Resolve,
    function: &Function,
    interface: &str,
) -> Option<String> {
    let (contract_has, component_has) = (signature(host, contract), signature(component, function));
    (contract_has != component_has).then(|| {
        format!(
            "its {} of {interface} is {component_has}; the contract has {contract_has}",
            function.name
        )
    })
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
