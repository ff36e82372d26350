SELECT session_id FROM lock_session WHERE expires_at <= now() LIMIT $1
