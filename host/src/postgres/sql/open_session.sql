INSERT INTO lock_session (session_id, owner_id, expires_at)
VALUES ($1, $2, now() + $3::bigint * interval '1 millisecond')
RETURNING expires_at
