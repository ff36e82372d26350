SELECT count(*) FROM lock_entry WHERE session_id = $1
