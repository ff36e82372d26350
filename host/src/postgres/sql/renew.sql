UPDATE lock_entry e
   SET expires_at = now() + $3::bigint * interval '1 millisecond'
  FROM lock_session s
 WHERE e.lock_key = $1 AND e.fencing_token = $2 AND e.expires_at > now()
   AND s.session_id = e.session_id AND s.expires_at > now()
RETURNING e.expires_at
