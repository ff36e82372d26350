INSERT INTO policy_revision (revision, sha256)
SELECT $1, $2
 WHERE NOT EXISTS (SELECT 1 FROM policy_revision WHERE revision > $1)
ON CONFLICT (revision) DO NOTHING
