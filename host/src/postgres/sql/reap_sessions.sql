WITH dead AS MATERIALIZED (
    SELECT session_id FROM lock_session
     WHERE session_id = ANY($1::uuid[]) AND expires_at <= now()
     ORDER BY session_id
       FOR UPDATE SKIP LOCKED
)
DELETE FROM lock_session s USING dead
 WHERE s.session_id = dead.session_id
RETURNING s.session_id, s.owner_id,
          (SELECT count(*) FROM lock_entry e WHERE e.session_id = s.session_id) AS locks
