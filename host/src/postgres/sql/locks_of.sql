SELECT lock_key FROM lock_entry WHERE session_id = $1 ORDER BY lock_key LIMIT 100
