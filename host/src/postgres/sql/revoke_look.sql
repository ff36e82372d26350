SELECT fencing_token FROM lock_entry WHERE lock_key = $1
