SELECT setval('fencing_token_seq', greatest(last_value, $1)) FROM fencing_token_seq
