WITH lapsed AS MATERIALIZED (
    SELECT lock_key FROM lock_entry
     WHERE expires_at <= now()
     ORDER BY expires_at
     LIMIT $1
       FOR UPDATE SKIP LOCKED
)
DELETE FROM lock_entry e USING lapsed
 WHERE e.lock_key = lapsed.lock_key
RETURNING e.lock_key, e.owner_id, e.fencing_token
