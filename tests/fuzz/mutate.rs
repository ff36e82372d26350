//! Mutations of bytes and of JSON.

use fastrand::Rng;
use serde_json::{Map, Value, json};

use crate::support::odd;

/// Numbers around which something changes, as JSON spells them.
const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "1",
    "-1",
    "0.0",
    "1.5",
    "1e3",
    "1E+3",
    "1000.0",
    "999",
    "1000",
    "59999",
    "60000",
    "60001",
    "86400000",
    "86400001",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e999",
    "-1e-999",
];

/// Changes some bytes: flips, takes away, repeats, inserts, cuts, swaps.
pub fn bytes(rng: &mut Rng, bytes: &mut Vec<u8>, times: usize) {
    for _ in 0..times {
        if bytes.is_empty() {
            bytes.push(rng.u8(..));
            continue;
        }
        let at = rng.usize(..bytes.len());
        let until = (at + rng.usize(1..=16)).min(bytes.len());
        match rng.u8(..9) {
            0 => bytes[at] ^= 1 << rng.u8(..8),
            1 => bytes[at] = rng.u8(..),
            2 => bytes.insert(at, rng.u8(..)),
            3 => drop(bytes.drain(at..until)),
            4 => {
                let again = bytes[at..until].to_vec();
                bytes.splice(at..at, again);
            }
            5 => bytes.truncate(at),
            6 => {
                let number = *rng.choice(NUMBERS).unwrap();
                bytes.splice(at..until, number.bytes());
            }
            7 => {
                let odd = odd::text(rng, &[1, 8]);
                bytes.splice(at..at, odd.into_bytes());
            }
            _ => {
                let other = rng.usize(..bytes.len());
                bytes.swap(at, other);
            }
        }
    }
}

/// A body with one thing about it that is odd.
pub fn object(rng: &mut Rng, body: &mut Value) {
    let Some(object) = body.as_object_mut() else {
        *body = any(rng);
        return;
    };
    let names: Vec<_> = object.keys().cloned().collect();
    let name = rng.choice(&names).cloned();
    match (rng.u8(..8), name) {
        (0, Some(name)) => drop(object.remove(&name)),
        (1, _) => drop(object.insert(odd::text(rng, &[8]), any(rng))),
        (2, Some(name)) => {
            let value = object.remove(&name).unwrap();
            object.insert(name.to_uppercase(), value);
        }
        (3, _) => *body = any(rng),
        (_, Some(name)) => object[&name] = any(rng),
        (_, None) => {}
    }
}

/// Any JSON that a parser of this crate's can hold; see [`spelled`] for the numbers.
fn any(rng: &mut Rng) -> Value {
    match rng.u8(..9) {
        0 => Value::Null,
        1 => json!(rng.bool()),
        2 | 3 => json!({ NUMBER: rng.usize(..NUMBERS.len()) }),
        4 => json!([any(rng)]),
        5 => Value::Object(Map::from_iter([(odd::text(rng, &[8]), any(rng))])),
        6 => json!(rng.i64(..)),
        _ => json!(odd::text(rng, &[1, 64, 65, 128, 129, 1024, 5000])),
    }
}

/// Stands for a number that this crate's parser would change.
const NUMBER: &str = "a number";

/// The body as bytes, with its odd numbers as they are spelled.
pub fn spelled(body: &Value) -> Vec<u8> {
    let mut text = body.to_string();
    for (at, number) in NUMBERS.iter().enumerate() {
        text = text.replace(&json!({ NUMBER: at }).to_string(), number);
    }
    text.into_bytes()
}
