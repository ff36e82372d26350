INSERT INTO lock_entry AS e (lock_key, owner_id, session_id, fencing_token, acquired_at, expires_at)
SELECT $1, s.owner_id, s.session_id, nextval('fencing_token_seq'), statement_timestamp(),
       statement_timestamp() + $3::bigint * interval '1 millisecond'
  FROM lock_session s
 WHERE s.session_id = $2 AND s.expires_at > statement_timestamp()
   AND NOT EXISTS (SELECT 1 FROM lock_entry h
                    WHERE h.lock_key = $1 AND h.session_id <> s.session_id
                      AND h.expires_at > statement_timestamp())
   FOR KEY SHARE OF s
ON CONFLICT (lock_key) DO UPDATE
   SET owner_id = excluded.owner_id, session_id = excluded.session_id,
       fencing_token = excluded.fencing_token,
       acquired_at = excluded.acquired_at, expires_at = excluded.expires_at
 WHERE e.session_id = excluded.session_id OR e.expires_at <= statement_timestamp()
RETURNING owner_id, session_id, fencing_token, acquired_at, expires_at
