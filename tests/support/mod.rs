//! What the tests share: a database for each, hosts on it, the program as a
//! process, the fixture policies.

pub mod database;
pub mod given;
pub mod host;
pub mod odd;
pub mod program;
pub mod proxy;
pub mod server;
pub mod tls;
pub mod toolchain;

/// The fixture policies, built by the build script: a constant for each.
pub mod policies {
    use wac_graph::types::Package;
    use wac_graph::{CompositionGraph, EncodeOptions, plug};

    include!(concat!(env!("OUT_DIR"), "/policies.rs"));

    /// `middleware` in front of `policy`, as `wac plug` does it.
    pub fn compose(middleware: &[u8], policy: &[u8]) -> Vec<u8> {
        let mut graph = CompositionGraph::new();
        let [middleware, policy] =
            [("test:middleware", middleware), ("test:policy", policy)].map(|(name, component)| {
                let package =
                    Package::from_bytes(name, None, component, graph.types_mut()).unwrap();
                graph.register_package(package).unwrap()
            });
        plug(&mut graph, vec![policy], middleware).unwrap();
        graph.encode(EncodeOptions::default()).unwrap()
    }
}
