//! Every statement that the host can run, letter for letter.
//!
//! The ones of the session statements stand again in `wit/statements.wit`; a test
//! compares them.

macro_rules! pinned {
    ($($(#[$doc:meta])* $name:ident = $file:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = include_str!(concat!("sql/", $file)).trim_ascii_end();)*

        /// Each statement with the name of its file.
        pub const ALL: &[(&str, &str)] = &[$(($file, $name)),*];
    };
}

pinned! {
    /// Inserts a session.
    OPEN_SESSION = "open_session.sql";
    /// Extends a live session. The hot path.
    HEARTBEAT = "heartbeat.sql";
    /// The same for many at once, but for those that somebody else has locked.
    HEARTBEAT_MANY = "heartbeat_many.sql";
    /// First of the three that close a session: takes its row's lock.
    CLOSE_SESSION_LOCK = "close_session_lock.sql";
    /// Second: counts its locks, and takes their rows' locks.
    CLOSE_SESSION_COUNT = "close_session_count.sql";
    /// Third: deletes it, and its locks by the cascade.
    CLOSE_SESSION_DELETE = "close_session_delete.sql";
    /// Lists a session's keys.
    LOCKS_OF = "locks_of.sql";
    /// Makes the death of a lapsed session final, under its row's lock.
    SEAL_SESSION = "seal_session.sql";
    /// Whether a session stands, and lives.
    SESSION_STATE = "session_state.sql";
    /// Owns a key, held or free, until the transaction ends.
    OWN_KEY = "own_key.sql";
    /// Grants an owned key, if it is free, lapsed or the session's own.
    ACQUIRE_GRANT = "acquire_grant.sql";
    /// Who is in the way of a grant.
    ACQUIRE_LOOK = "acquire_look.sql";
    /// Extends a grant.
    RENEW = "renew.sql";
    /// Gives a grant back.
    RELEASE = "release.sql";
    /// How many locks hang on a session.
    COUNT_OF = "count_of.sql";
    /// Reads one key.
    READ = "read.sql";
    /// Takes a grant away and records it.
    REVOKE = "revoke.sql";
    /// Under which token a key is held.
    REVOKE_LOOK = "revoke_look.sql";
    /// Makes every later token greater than a number.
    FENCE_RAISE = "fence_raise.sql";
    /// How many pages the table of sessions has.
    REAP_EXTENT = "reap_extent.sql";
    /// Finds sessions that seem dead, on some of them.
    REAP_FIND = "reap_find.sql";
    /// Deletes those of some sessions that are dead.
    REAP_SESSIONS = "reap_sessions.sql";
    /// Deletes grants whose lease is over.
    REAP_ENTRIES = "reap_entries.sql";
    /// Notes a signed policy, unless a newer one was noted.
    ACCEPT_REVISION = "accept_revision.sql";
    /// The newest signed policy that was noted.
    HIGHEST_REVISION = "highest_revision.sql";
}
