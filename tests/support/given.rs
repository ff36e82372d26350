//! Numbers that whoever runs the tests may give.

use std::env;

/// The environment variable's number, if it has one.
pub fn number(name: &str) -> Option<u64> {
    let value = env::var(name).ok().filter(|value| !value.is_empty())?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

/// What a test's chances depend on: `TENURE_TEST_SEED`, or another each time. A test that
/// fails shows it.
pub fn seed() -> u64 {
    let seed = number("TENURE_TEST_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("TENURE_TEST_SEED={seed}");
    seed
}
