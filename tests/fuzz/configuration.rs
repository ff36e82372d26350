//! Configuration files, mutated, through the program: it shows what is in force, or says which
//! file, and where in it or of which setting, something is wrong.

use std::fs;

use fastrand::Rng;

use crate::support::odd;
use crate::support::program::{Folder, run, tenure};
use crate::{mutate, rounds};

const RIGHT: &str = r#"
listen = "127.0.0.1:7400"
database-url = "postgres://tenure@db/lockdb"
insecure = false
log = "info,tenure=debug"

[database]
connections = 16

[lock]
backend = "pg"
session.ttl = "15s"
default.ttl = "30s"
reaper.interval = "250ms"

[policy]
profile = "strict"
cpu = "100ms"
stack = 262144
transfer = 262144
host-calls = 1000
deadline = "5s"
calls = 1024

[policy.setting]
max-ttl-ms = 5000
"naming.characters" = 'a-z'
"#;

/// What stands in the place of a value.
fn value(rng: &mut Rng) -> String {
    const ODD: &[&str] = &[
        "",
        "''",
        "'0s'",
        "'1ns'",
        "'99999999999999999999y'",
        "'15s 15s'",
        "'-1s'",
        "-1",
        "0",
        "18446744073709551616",
        "0x10",
        "1_000",
        "inf",
        "nan",
        "1979-05-27T07:32:00Z",
        "[[]]",
        "{}",
        "{ a = 1 }",
        "true",
        "'[::]:1'",
        "\"\"\"\n\"\"\"",
        "'\u{1F512}'",
    ];
    match rng.u8(..3) {
        0 => format!("{:?}", odd::text(rng, &[1, 8, 1000])),
        _ => (*rng.choice(ODD).unwrap()).to_owned(),
    }
}

fn file(rng: &mut Rng) -> Vec<u8> {
    let mut lines: Vec<_> = RIGHT.lines().map(str::to_owned).collect();
    for _ in 0..rng.usize(..=2) {
        let at = rng.usize(..lines.len());
        match rng.u8(..4) {
            0 => drop(lines.remove(at)),
            1 => {
                let again = lines[at].clone();
                lines.push(again);
            }
            _ => {
                if let Some((key, _)) = lines[at].split_once(" = ") {
                    lines[at] = format!("{key} = {}", value(rng));
                }
            }
        }
    }
    let mut file = lines.join("\n").into_bytes();
    let times = rng.usize(..=3);
    mutate::bytes(rng, &mut file, times);
    file
}

#[test]
fn any_configuration_is_taken_or_it_is_said_what_is_wrong() {
    let folder = Folder::new();
    let path = folder.at("tenure.toml");
    let settings = run(&mut tenure(["config"])).stdout;
    let keys: Vec<_> = settings
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let (mut taken, mut refused) = (0, 0);
    for mut rng in rounds("configuration", 300) {
        let file = file(&mut rng);
        fs::write(&path, &file).unwrap();
        let ended = run(&mut tenure(["config", "--config", &path]));
        let text = String::from_utf8_lossy(&file);
        match ended.code {
            Some(0) => taken += 1,
            Some(1) => {
                refused += 1;
                let why = ended.stderr.as_str();
                let places = ["line ", "UTF-8", "has to be", "there is no setting"];
                let named = keys.iter().chain(&places).any(|what| why.contains(what));
                assert!(why.contains(&path) && named, "{text}\n-> {why}");
                assert!(!why.contains("panicked"), "{text}\n-> {why}");
            }
            _ => panic!("{text}\n-> {ended:?}"),
        }
    }
    assert!(taken > 0 && refused > 0, "{taken} {refused}");
}
