SELECT expires_at > now() AS live FROM lock_session WHERE session_id = $1
