UPDATE lock_session
   SET expires_at = now() + $2::bigint * interval '1 millisecond'
 WHERE session_id = $1 AND expires_at > now()
RETURNING expires_at
