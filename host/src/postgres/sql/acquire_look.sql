SELECT own.expires_at > now() AS session_live,
       e.owner_id, e.session_id, e.acquired_at, e.expires_at,
       e.session_id = asked.session_id AS own,
       e.expires_at > now() AS lease_live,
       h.expires_at > now() AS holder_live
  FROM (SELECT $1::text AS lock_key, $2::uuid AS session_id) AS asked
  LEFT JOIN lock_session own ON own.session_id = asked.session_id
  LEFT JOIN lock_entry e ON e.lock_key = asked.lock_key
  LEFT JOIN lock_session h ON h.session_id = e.session_id
