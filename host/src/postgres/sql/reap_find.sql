SELECT session_id FROM lock_session
 WHERE ctid >= $1::text::tid AND ctid < $2::text::tid AND expires_at <= now()
 LIMIT $3
