WITH live AS MATERIALIZED (
    SELECT s.ctid AS tid, beat.ttl_ms
      FROM unnest($1::uuid[], $2::bigint[]) AS beat(session_id, ttl_ms)
      JOIN lock_session s USING (session_id)
     WHERE s.expires_at > now()
     ORDER BY s.session_id
       FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE lock_session s
   SET expires_at = now() + live.ttl_ms * interval '1 millisecond'
  FROM live
 WHERE s.ctid = live.tid AND s.expires_at > now()
RETURNING s.session_id, s.expires_at
