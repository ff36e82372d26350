-- What an operator took away, and why. Append-only: the trigger refuses every
-- change, so that the record stays what it was.
CREATE TABLE lock_revocation (
    id         bigserial   NOT NULL,
    lock_key   text        NOT NULL,
    prev_owner text        NOT NULL,
    prev_token bigint      NOT NULL,
    operator   text        NOT NULL,
    reason     text        NOT NULL,
    revoked_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT lock_revocation_pk PRIMARY KEY (id)
);

CREATE FUNCTION lock_revocation_is_append_only() RETURNS trigger
    LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'lock_revocation is append-only: % is not allowed', TG_OP
        USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE TRIGGER lock_revocation_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON lock_revocation
    FOR EACH STATEMENT EXECUTE FUNCTION lock_revocation_is_append_only();
