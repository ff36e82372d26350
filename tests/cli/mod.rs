//! The program `tenure`, as a process: its commands and settings, the server, and the
//! server's private PostgreSQL; and the scripts that start it.

mod commands;
mod policy;
mod private;
mod scripts;
mod serve;
mod settings;
mod tls;

/// Stands for a password or a token: must not appear anywhere.
const SECRET: &str = "hunter2-correct-horse";
