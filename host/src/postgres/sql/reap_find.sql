SELECT session_id FROM lock_session
 WHERE ctid >= format('(%s,0)', $1::bigint)::tid
   AND ctid < format('(%s,0)', $2::bigint)::tid
   AND expires_at <= now()
 LIMIT $3
