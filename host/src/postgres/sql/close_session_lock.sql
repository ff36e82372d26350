SELECT session_id FROM lock_session WHERE session_id = $1 FOR UPDATE
