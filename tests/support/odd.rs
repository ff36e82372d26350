//! Text that somebody has stumbled over, and any other.

use fastrand::Rng;

/// Of any characters, of any length up to one of these.
pub fn text(rng: &mut Rng, longest: &[usize]) -> String {
    const ODD: &[char] = &[
        '\0',
        '\n',
        '\r',
        '\t',
        '\u{7f}',
        '\u{85}',
        '\u{a0}',
        ' ',
        '"',
        '\\',
        '\'',
        '/',
        '%',
        '?',
        '#',
        ':',
        '.',
        '_',
        '-',
        ';',
        '{',
        '\u{feff}',
        '\u{200b}',
        '\u{202e}',
        '\u{2028}',
        '\u{d7ff}',
        '\u{e000}',
        '\u{fffd}',
        '\u{ffff}',
        '\u{1F512}',
        '\u{10ffff}',
        '\u{301}',
    ];
    let longest = *rng.choice(longest).unwrap();
    let length = rng.usize(0..=longest);
    (0..length)
        .map(|_| match rng.u8(..4) {
            0 => *rng.choice(ODD).unwrap(),
            1 => rng.char(..),
            _ => rng.alphanumeric(),
        })
        .collect()
}

/// For a path: every byte of it percent-encoded.
pub fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
