DELETE FROM lock_entry WHERE lock_key = $1 AND fencing_token = $2
