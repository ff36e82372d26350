SELECT pg_relation_size('lock_session') / current_setting('block_size')::bigint
