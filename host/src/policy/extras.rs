//! What a policy may import beside the contract: its settings, a log, and a WASI that denies
//! everything. A policy that does not import them pays nothing for them.

use wasmtime::component::{HasData, Linker};
use wasmtime_wasi_config::WasiConfig;

use super::bindings::logging::wasi::logging::logging;
use super::call::CallState;
use super::log::{CallLog, Level};

pub(super) fn add_to_linker(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    wasmtime_wasi_config::add_to_linker(linker, |state| WasiConfig::from(state.settings()))?;
    logging::add_to_linker::<_, HasLog>(linker, |state| state.log())?;
    wasmtime_wasi::p2::add_to_linker_async(linker)
}

struct HasLog;

impl HasData for HasLog {
    type Data<'a> = &'a CallLog;
}

impl logging::Host for &CallLog {
    fn log(&mut self, level: logging::Level, context: String, message: String) {
        let level = match level {
            logging::Level::Trace => Level::Trace,
            logging::Level::Debug => Level::Debug,
            logging::Level::Info => Level::Info,
            logging::Level::Warn => Level::Warn,
            logging::Level::Error | logging::Level::Critical => Level::Error,
        };
        self.line(level, &context, &message);
    }
}
