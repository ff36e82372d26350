SELECT count(*)
  FROM (SELECT FROM lock_entry WHERE session_id = $1 FOR UPDATE) AS locked
