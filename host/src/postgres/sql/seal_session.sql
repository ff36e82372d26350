UPDATE lock_session
   SET expires_at = created_at + interval '1 microsecond'
 WHERE session_id = $1 AND expires_at <= now()
