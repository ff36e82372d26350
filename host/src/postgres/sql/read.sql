SELECT e.owner_id, e.session_id, e.fencing_token, e.acquired_at, e.expires_at
  FROM lock_entry e
  JOIN lock_session s ON s.session_id = e.session_id
 WHERE e.lock_key = $1 AND e.expires_at > now() AND s.expires_at > now()
