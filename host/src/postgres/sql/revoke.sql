WITH revoked AS (
    DELETE FROM lock_entry
     WHERE lock_key = $1 AND ($2::bigint IS NULL OR fencing_token = $2)
    RETURNING lock_key, owner_id, fencing_token
)
INSERT INTO lock_revocation (lock_key, prev_owner, prev_token, operator, reason)
SELECT lock_key, owner_id, fencing_token, $3, $4 FROM revoked
RETURNING id, prev_owner, prev_token, nextval('fencing_token_seq') AS token_floor
