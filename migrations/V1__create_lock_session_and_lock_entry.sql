-- Tokens of a key rise in grant order because they are drawn while the key is
-- owned (see acquire_grant.sql). CACHE 1: a block of numbers held by one
-- connection would hand out lower ones later. NO CYCLE: a token never repeats.
CREATE SEQUENCE fencing_token_seq AS bigint START WITH 1 INCREMENT BY 1 CACHE 1 NO CYCLE;

-- No index on expires_at, and free room on each page: a heartbeat then is a
-- heap-only (HOT) update, which touches no index.
CREATE TABLE lock_session (
    session_id uuid        NOT NULL,
    owner_id   text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    CONSTRAINT lock_session_pk PRIMARY KEY (session_id),
    CONSTRAINT lock_session_ttl_ck CHECK (expires_at > created_at)
) WITH (fillfactor = 70);

CREATE TABLE lock_entry (
    lock_key      text        NOT NULL,
    owner_id      text        NOT NULL,
    session_id    uuid        NOT NULL,
    fencing_token bigint      NOT NULL,
    acquired_at   timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz NOT NULL,
    CONSTRAINT lock_entry_pk PRIMARY KEY (lock_key),
    CONSTRAINT lock_entry_session_fk FOREIGN KEY (session_id)
        REFERENCES lock_session (session_id) ON DELETE CASCADE,
    CONSTRAINT lock_entry_token_ck CHECK (fencing_token > 0),
    CONSTRAINT lock_entry_ttl_ck CHECK (expires_at > acquired_at)
);

CREATE INDEX lock_entry_expiry_idx ON lock_entry (expires_at);
CREATE INDEX lock_entry_session_idx ON lock_entry (session_id);
