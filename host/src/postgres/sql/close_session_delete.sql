DELETE FROM lock_session WHERE session_id = $1
