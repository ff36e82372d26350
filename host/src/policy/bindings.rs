//! Generated from `wit/`.

wasmtime::component::bindgen!({
    path: "../wit",
    world: "session-policy",
    imports: { default: async | trappable },
    exports: { default: async },
    include_component_type: true,
});

/// Of the interfaces that a policy may import beside the contract, the one that has no crate.
pub(super) mod logging {
    wasmtime::component::bindgen!({
        path: "../wit/wasi/logging.wit",
        inline: "
            package tenure:host;
            world logging { import wasi:logging/logging@0.1.0-draft; }
        ",
    });
}
