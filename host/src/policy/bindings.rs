//! Generated from `wit/`.

wasmtime::component::bindgen!({
    path: "../wit",
    world: "session-policy",
    imports: { default: async | trappable },
    exports: { default: async },
    include_component_type: true,
});
