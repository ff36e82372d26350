SELECT revision, sha256 FROM policy_revision ORDER BY revision DESC LIMIT 1
