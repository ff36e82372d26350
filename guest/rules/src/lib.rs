//! The rules of Tenure's default policy: plain functions of their arguments, with no bindings
//! in sight.
#![deny(missing_docs)]
#![cfg_attr(not(test), no_std)]

/// The longest owner id, in characters.
pub const MAX_OWNER_CHARS: usize = 64;

/// The longest TTL, in milliseconds: 24 hours.
pub const MAX_TTL_MS: u64 = 24 * 60 * 60 * 1000;

/// A broken rule, as the caller reads it: which argument, and what it has to be.
pub type Broken = &'static str;

/// Who may open a session: an owner id is for people to read.
pub fn check_owner(owner: &str) -> Result<(), Broken> {
    // 4 bytes is the longest character, so this bounds the work on a huge argument.
    if owner.len() > 4 * MAX_OWNER_CHARS || owner.chars().count() > MAX_OWNER_CHARS {
        return Err("owner-id must have at most 64 characters");
    }
    if owner.chars().all(char::is_whitespace) {
        return Err("owner-id must not be blank");
    }
    if owner.chars().any(char::is_control) {
        return Err("owner-id must not contain control characters");
    }
    Ok(())
}

/// For how long a session may live without a heartbeat.
pub fn check_ttl(ttl_ms: u64) -> Result<(), Broken> {
    match ttl_ms {
        0 => Err("ttl-ms must be at least 1"),
        1..=MAX_TTL_MS => Ok(()),
        _ => Err("ttl-ms must be at most 86400000 (24 hours)"),
    }
}

/// What a session id looks like: a UUID, hyphenated, in either case.
pub fn check_session_id(id: &str) -> Result<(), Broken> {
    let is_uuid = id.len() == 36
        && id.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
    if is_uuid {
        Ok(())
    } else {
        Err("session-id must be a UUID of 36 characters")
    }
}

/// What the rows of a heartbeat mean. The id is the table's primary key, so there is
/// no third outcome; if there ever were, it would not be an answer.
pub fn is_alive(rows: u32) -> Result<bool, Broken> {
    match rows {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err("a heartbeat updated more than one session"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners() {
        let wide = "\u{1F512}"; // four bytes
        for (owner, ok) in [
            ("worker-7", true),
            ("a", true),
            (" padded ", true),
            ("Zo\u{eb} \u{4e2d}\u{6587}", true),
            (&"x".repeat(64), true),
            (&wide.repeat(64), true),
            ("\u{200b}", true), // a zero-width space is no white space to Unicode
            ("", false),
            (" ", false),
            ("\u{a0}\u{2003}\u{3000}", false), // no-break, em and ideographic space
            ("\u{2028}", false),               // line separator: white space
            (&"x".repeat(65), false),
            (&wide.repeat(65), false),
            (&"x".repeat(100_000), false),
            ("a\0b", false),
            ("a\nb", false),
            ("a\u{7f}", false),
            ("a\u{85}", false), // a C1 control
            ("\t", false),
        ] {
            assert_eq!(check_owner(owner).is_ok(), ok, "{owner:?}");
        }
    }

    #[test]
    fn ttls() {
        for (ttl, ok) in [
            (0, false),
            (1, true),
            (15_000, true),
            (86_399_999, true),
            (86_400_000, true),
            (86_400_001, false),
            (u64::MAX, false),
        ] {
            assert_eq!(check_ttl(ttl).is_ok(), ok, "{ttl}");
        }
    }

    #[test]
    fn session_ids() {
        for (id, ok) in [
            ("00000000-0000-0000-0000-000000000000", true),
            ("6f9619ff-8b86-d011-b42d-00cf4fc964ff", true),
            ("6F9619FF-8B86-D011-B42D-00CF4FC964FF", true),
            ("", false),
            ("6f9619ff8b86d011b42d00cf4fc964ff", false),
            ("6f9619ff-8b86-d011-b42d-00cf4fc964f", false),
            ("6f9619ff-8b86-d011-b42d-00cf4fc964ff0", false),
            ("{6f9619ff-8b86-d011-b42d-00cf4fc964f}", false),
            ("6f9619ff-8b86-d011-b42d_00cf4fc964ff", false),
            ("6f9619ff-8b86-d011-b42d-00cf4fc964fg", false),
            ("6f9619f-f8b86-d011-b42d-00cf4fc964ff", false),
            ("6f9619ff-8b86-d011-b42d-00cf4fc964\u{e9}", false), // 36 bytes, not ASCII
            ("'; DROP TABLE lock_session; --      ", false),
        ] {
            assert_eq!(check_session_id(id).is_ok(), ok, "{id:?}");
        }
    }

    #[test]
    fn rows() {
        assert_eq!(is_alive(0), Ok(false));
        assert_eq!(is_alive(1), Ok(true));
        assert!(is_alive(2).is_err());
        assert!(is_alive(u32::MAX).is_err());
    }
}
