-- The signed policies that were accepted. A signature says who made a policy, not that
-- it is the current one; so an older revision is refused after a newer one.
CREATE TABLE policy_revision (
    revision    bigint      NOT NULL,
    sha256      text        NOT NULL,
    accepted_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT policy_revision_pk PRIMARY KEY (revision),
    CONSTRAINT policy_revision_ck CHECK (revision > 0)
);
