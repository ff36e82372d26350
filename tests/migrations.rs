//! The schema and its history.

use tenure::Database;
use tenure::postgres::MigrationError;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::support::database::TestDatabase;
use crate::support::host::{Host, LONG};

const VERSIONS: [&str; 4] = [
    "V1__create_lock_session_and_lock_entry",
    "V2__create_lock_revocation",
    "V3__create_policy_revision",
    "V4__make_room_for_heartbeats",
];

async fn history(client: &Client) -> Vec<(i32, String)> {
    let rows = client
        .query(
            "SELECT version, name FROM refinery_schema_history ORDER BY version",
            &[],
        )
        .await
        .unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn expected_history() -> Vec<(i32, String)> {
    (1..)
        .zip(VERSIONS)
        .map(|(version, name)| (version, name[4..].to_owned()))
        .collect()
}

/// Spells out a whole schema, so that two can be compared.
async fn schema(client: &Client) -> Vec<String> {
    let rows = client
        .query(
            "SELECT concat_ws(' ', 'column', table_name, column_name, data_type, is_nullable,
                              column_default)
               FROM information_schema.columns WHERE table_schema = 'public'
             UNION ALL
             SELECT concat_ws(' ', 'constraint', conrelid::regclass, conname,
                              pg_get_constraintdef(oid))
               FROM pg_constraint WHERE connamespace = 'public'::regnamespace
             UNION ALL
             SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'public'
             UNION ALL
             SELECT 'trigger ' || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
             ORDER BY 1",
            &[],
        )
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// What migrating says when it should not work.
async fn failure(pool: &Database) -> MigrationError {
    match pool.migrate().await {
        Err(error) => error,
        Ok(applied) => panic!("it applied {applied:?}"),
    }
}

// Applying them.

#[tokio::test]
async fn an_empty_database_gets_every_version() {
    let database = TestDatabase::create_empty().await;

    let applied = database.pool().migrate().await.unwrap();

    assert_eq!(applied, VERSIONS);
    assert_eq!(history(&database.connect().await).await, expected_history());
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    let _ = host.lock("k", &session).await;
}

#[tokio::test]
async fn the_second_time_nothing_is_done_and_nothing_is_lost() {
    let database = TestDatabase::create_empty().await;
    let host = Host::new(&database);
    let _ = host.pool.migrate().await.unwrap();
    let client = database.connect().await;
    let before = schema(&client).await;
    let session = host.open(LONG).await;
    let _ = host.lock("k", &session).await;

    let again = [
        host.pool.migrate().await.unwrap(),
        database.pool().migrate().await.unwrap(),
    ];

    assert_eq!(again, [Vec::<String>::new(), Vec::new()]);
    assert_eq!(schema(&client).await, before);
    assert_eq!(history(&client).await, expected_history());
    assert_eq!(database.locks().await, 1);
}

#[tokio::test]
async fn hosts_that_migrate_at_once_apply_each_version_once() {
    let database = TestDatabase::create_empty().await;
    // Holds the first of them up in the middle of the first version, and the others behind
    // it: a table of that name, not yet committed, is one to wait for.
    let in_the_way = database.begin("CREATE TABLE lock_session ()").await;
    let hosts: Vec<_> = (0..8)
        .map(|_| {
            let pool = database.pool();
            tokio::spawn(async move { pool.migrate().await })
        })
        .collect();
    database.until_somebody_waits(8).await;
    in_the_way.batch_execute("ROLLBACK").await.unwrap();

    let mut applied = Vec::new();
    for host in hosts {
        applied.push(host.await.unwrap().unwrap());
    }

    applied.sort();
    let (last, others) = applied.split_last().unwrap();
    assert_eq!(last, &VERSIONS);
    assert!(others.iter().all(Vec::is_empty), "{others:?}");
    assert_eq!(history(&database.connect().await).await, expected_history());
}

#[tokio::test]
async fn a_database_with_the_first_version_only_gets_the_rest() {
    let database = TestDatabase::create().await;
    let client = database.connect().await;
    let whole = schema(&client).await;
    client
        .batch_execute(
            "DROP TABLE lock_revocation;
             DROP FUNCTION lock_revocation_is_append_only;
             DROP TABLE policy_revision;
             DELETE FROM refinery_schema_history WHERE version > 1",
        )
        .await
        .unwrap();

    assert_eq!(database.pool().migrate().await.unwrap(), VERSIONS[1..]);

    assert_eq!(schema(&client).await, whole);
}

#[tokio::test]
async fn a_version_that_fails_is_rolled_back_and_those_before_it_stay() {
    let database = TestDatabase::create_empty().await;
    let client = database.connect().await;
    // The last object of the second version is in the way.
    client
        .batch_execute(
            "CREATE FUNCTION lock_revocation_is_append_only() RETURNS trigger
                LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        )
        .await
        .unwrap();

    let error = failure(&database.pool()).await;

    assert!(matches!(error, MigrationError::Store(_)), "{error:?}");
    let text = error.to_string();
    assert!(
        text.starts_with("the database failed: ")
            && text.contains(r#"function "lock_revocation_is_append_only" already exists"#),
        "{text}"
    );
    assert_eq!(history(&client).await, expected_history()[..1]);
    let left: Option<String> = database
        .scalar("SELECT to_regclass('lock_revocation')::text")
        .await;
    assert_eq!(left, None);

    client
        .batch_execute("DROP FUNCTION lock_revocation_is_append_only")
        .await
        .unwrap();
    assert_eq!(database.pool().migrate().await.unwrap(), VERSIONS[1..]);
}

#[tokio::test]
async fn a_host_that_was_killed_while_it_migrated_is_in_nobodys_way() {
    let database = TestDatabase::create_empty().await;
    let in_the_way = database.begin("CREATE TABLE lock_session ()").await;
    let pool = database.pool();
    let killed = tokio::spawn(async move { pool.migrate().await });
    database.until_somebody_waits(1).await;
    let ended: bool = database
        .scalar(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
              WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .await;
    assert!(ended);
    assert!(killed.await.unwrap().is_err());
    in_the_way.batch_execute("ROLLBACK").await.unwrap();

    assert_eq!(database.pool().migrate().await.unwrap(), VERSIONS);
}

// Histories that do not fit. Each is an error, and changes nothing.

async fn refuses(history_edit: &str) -> MigrationError {
    let database = TestDatabase::create().await;
    let client = database.connect().await;
    client.batch_execute(history_edit).await.unwrap();
    let before = (schema(&client).await, history(&client).await);

    let error = failure(&database.pool()).await;

    assert_eq!((schema(&client).await, history(&client).await), before);
    error
}

#[tokio::test]
async fn an_edited_version_is_refused() {
    let error = refuses(
        "UPDATE refinery_schema_history SET checksum = (checksum::numeric - 1)::text
          WHERE version = 1",
    )
    .await;

    assert!(matches!(error, MigrationError::HistoryWasEdited(_)));
    assert_eq!(
        error.to_string(),
        "migration V1__create_lock_session_and_lock_entry was applied in another form than \
         this version of tenure has; either the file or the database's \
         refinery_schema_history was edited: restore the original"
    );
}

#[tokio::test]
async fn a_renamed_version_is_refused() {
    let error =
        refuses("UPDATE refinery_schema_history SET name = 'something_else' WHERE version = 2")
            .await;

    assert!(matches!(error, MigrationError::HistoryWasEdited(_)));
    assert!(
        error
            .to_string()
            .starts_with("migration V2__something_else was applied in another")
    );
}

#[tokio::test]
async fn a_newer_database_is_refused() {
    let error = refuses(
        "INSERT INTO refinery_schema_history
         SELECT 5, 'from_the_future', applied_on, '1' FROM refinery_schema_history
          WHERE version = 2",
    )
    .await;

    assert!(matches!(error, MigrationError::DatabaseIsNewer(_)));
    assert_eq!(
        error.to_string(),
        "the database has migration V5__from_the_future, which this version of tenure does \
         not know; it was migrated by a newer one: upgrade tenure, or point it at another \
         database"
    );
}

#[tokio::test]
async fn a_history_without_one_of_its_versions_is_refused() {
    let error = refuses("DELETE FROM refinery_schema_history WHERE version = 1").await;

    assert!(matches!(error, MigrationError::HistoryHasAHole(_)));
    assert_eq!(
        error.to_string(),
        "migration V1__create_lock_session_and_lock_entry was never applied, though later \
         ones were; restore the database's refinery_schema_history from a backup"
    );
}

#[tokio::test]
async fn a_history_that_cannot_be_read_is_refused() {
    for damage in [
        "UPDATE refinery_schema_history SET checksum = 'none' WHERE version = 1",
        "UPDATE refinery_schema_history SET applied_on = 'yesterday' WHERE version = 2",
        "UPDATE refinery_schema_history SET name = NULL WHERE version = 2",
    ] {
        let database = TestDatabase::create().await;
        let client = database.connect().await;
        client.batch_execute(damage).await.unwrap();
        let before = schema(&client).await;

        let error = failure(&database.pool()).await;

        assert!(
            matches!(error, MigrationError::HistoryIsDamaged),
            "{damage}"
        );
        assert_eq!(
            error.to_string(),
            "the table refinery_schema_history is damaged; restore it from a backup"
        );
        assert_eq!(schema(&client).await, before);
        // The lock on migrations goes with the connection.
        database
            .until(
                0,
                "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
                  WHERE datname = current_database() AND locktype = 'advisory'",
            )
            .await;
    }
}

// What the contract says of the schema, asked of the catalog.

#[tokio::test]
async fn the_columns_are_those_of_the_contract() {
    let database = TestDatabase::create().await;
    let rows = database
        .connect()
        .await
        .query(
            "SELECT format('%s.%s %s%s%s', c.relname, a.attname,
                           format_type(a.atttypid, a.atttypmod),
                           CASE WHEN a.attnotnull THEN ' not null' END,
                           ' default ' || pg_get_expr(d.adbin, d.adrelid))
               FROM pg_class c
               JOIN pg_attribute a ON a.attrelid = c.oid
               LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
              WHERE c.relkind = 'r' AND c.relname LIKE 'lock\\_%'
                AND a.attnum > 0 AND NOT a.attisdropped
              ORDER BY array_position(ARRAY['lock_session', 'lock_entry', 'lock_revocation'],
                                      c.relname::text), a.attnum",
            &[],
        )
        .await
        .unwrap();
    let columns: Vec<String> = rows.iter().map(|row| row.get(0)).collect();

    assert_eq!(
        columns,
        [
            "lock_session.session_id uuid not null",
            "lock_session.owner_id text not null",
            "lock_session.created_at timestamp with time zone not null default now()",
            "lock_session.expires_at timestamp with time zone not null",
            "lock_entry.lock_key text not null",
            "lock_entry.owner_id text not null",
            "lock_entry.session_id uuid not null",
            "lock_entry.fencing_token bigint not null",
            "lock_entry.acquired_at timestamp with time zone not null default now()",
            "lock_entry.expires_at timestamp with time zone not null",
            "lock_revocation.id bigint not null default nextval('lock_revocation_id_seq'::regclass)",
            "lock_revocation.lock_key text not null",
            "lock_revocation.prev_owner text not null",
            "lock_revocation.prev_token bigint not null",
            "lock_revocation.operator text not null",
            "lock_revocation.reason text not null",
            "lock_revocation.revoked_at timestamp with time zone not null default now()",
        ]
    );
}

#[tokio::test]
async fn the_constraints_are_those_of_the_contract() {
    let database = TestDatabase::create().await;
    let rows = database
        .connect()
        .await
        .query(
            "SELECT concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(oid))
               FROM pg_constraint
              WHERE conrelid::regclass::text LIKE 'lock\\_%' AND contype <> 'n'
              ORDER BY 1",
            &[],
        )
        .await
        .unwrap();
    let constraints: Vec<String> = rows.iter().map(|row| row.get(0)).collect();

    assert_eq!(
        constraints,
        [
            "lock_entry lock_entry_pk PRIMARY KEY (lock_key)",
            "lock_entry lock_entry_session_fk FOREIGN KEY (session_id) \
             REFERENCES lock_session(session_id) ON DELETE CASCADE",
            "lock_entry lock_entry_token_ck CHECK ((fencing_token > 0))",
            "lock_entry lock_entry_ttl_ck CHECK ((expires_at > acquired_at))",
            "lock_revocation lock_revocation_pk PRIMARY KEY (id)",
            "lock_session lock_session_pk PRIMARY KEY (session_id)",
            "lock_session lock_session_ttl_ck CHECK ((expires_at > created_at))",
        ]
    );
}

#[tokio::test]
async fn the_constraints_refuse_what_they_are_there_for() {
    let database = TestDatabase::create().await;
    let session = Host::new(&database).open(LONG).await;
    let client = database.connect().await;
    let entry = |token: &str, session: &str, expires: &str| {
        format!(
            "INSERT INTO lock_entry (lock_key, owner_id, session_id, fencing_token, expires_at)
             VALUES ('k', 'o', {session}, {token}, {expires})"
        )
    };
    let (later, own) = ("now() + interval '1 s'", format!("'{session}'"));

    for (constraint, code, statement) in [
        (
            "lock_session_ttl_ck",
            SqlState::CHECK_VIOLATION,
            "INSERT INTO lock_session (session_id, owner_id, expires_at)
             VALUES (gen_random_uuid(), 'o', now())"
                .to_owned(),
        ),
        (
            "lock_entry_token_ck",
            SqlState::CHECK_VIOLATION,
            entry("0", &own, later),
        ),
        (
            "lock_entry_ttl_ck",
            SqlState::CHECK_VIOLATION,
            entry("1", &own, "now()"),
        ),
        (
            "lock_entry_session_fk",
            SqlState::FOREIGN_KEY_VIOLATION,
            entry("1", "gen_random_uuid()", later),
        ),
    ] {
        let error = client.batch_execute(&statement).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(
            (error.constraint(), error.code()),
            (Some(constraint), &code)
        );
    }
    client
        .batch_execute(&entry("1", &own, later))
        .await
        .unwrap();
    let error = client.batch_execute(&entry("2", &own, later)).await;
    let code = error.unwrap_err().code().cloned();
    assert_eq!(code, Some(SqlState::UNIQUE_VIOLATION));
}

#[tokio::test]
async fn the_indexes_are_those_of_the_contract_and_none_is_on_what_a_heartbeat_changes() {
    let database = TestDatabase::create().await;
    let rows = database
        .connect()
        .await
        .query(
            "SELECT indexdef FROM pg_indexes
              WHERE schemaname = 'public' AND tablename LIKE 'lock\\_%' ORDER BY indexname",
            &[],
        )
        .await
        .unwrap();
    let indexes: Vec<String> = rows.iter().map(|row| row.get(0)).collect();

    // An index on lock_session.expires_at would make every heartbeat a cold update.
    assert_eq!(
        indexes,
        [
            "CREATE INDEX lock_entry_expiry_idx ON public.lock_entry USING btree (expires_at)",
            "CREATE UNIQUE INDEX lock_entry_pk ON public.lock_entry USING btree (lock_key)",
            "CREATE INDEX lock_entry_session_idx ON public.lock_entry USING btree (session_id)",
            "CREATE UNIQUE INDEX lock_revocation_pk ON public.lock_revocation USING btree (id)",
            "CREATE UNIQUE INDEX lock_session_pk ON public.lock_session USING btree (session_id)",
        ]
    );
}

#[tokio::test]
async fn heartbeats_are_heap_only_updates() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    for _ in 0..50 {
        assert!(
            host.registry
                .heartbeat(&session, LONG)
                .await
                .unwrap()
                .is_alive()
        );
    }
    // A backend's counters are there once it has reported them, at the latest at its end.
    drop(host);
    database
        .until(
            50,
            "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'lock_session'",
        )
        .await;
    let hot: i64 = database
        .scalar("SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'lock_session'")
        .await;

    assert_eq!(hot, 50);
}

#[tokio::test]
async fn the_sequence_of_tokens_never_repeats_and_hands_out_no_blocks() {
    let database = TestDatabase::create().await;
    let row = database
        .connect()
        .await
        .query_one(
            "SELECT data_type::text, start_value, increment_by, min_value, max_value, cycle,
                    cache_size
               FROM pg_sequences WHERE sequencename = 'fencing_token_seq'",
            &[],
        )
        .await
        .unwrap();

    assert_eq!(row.get::<_, &str>("data_type"), "bigint");
    assert_eq!(row.get::<_, i64>("start_value"), 1);
    assert_eq!(row.get::<_, i64>("increment_by"), 1);
    assert_eq!(row.get::<_, i64>("min_value"), 1);
    assert_eq!(row.get::<_, i64>("max_value"), i64::MAX);
    assert!(!row.get::<_, bool>("cycle"));
    assert_eq!(row.get::<_, i64>("cache_size"), 1);
}

#[tokio::test]
async fn the_trigger_that_keeps_the_record_of_revocations_is_there_and_on() {
    let database = TestDatabase::create().await;
    let row = database
        .connect()
        .await
        .query_one(
            "SELECT pg_get_triggerdef(oid), tgenabled::text FROM pg_trigger WHERE NOT tgisinternal",
            &[],
        )
        .await
        .unwrap();

    assert_eq!(
        row.get::<_, &str>(0),
        "CREATE TRIGGER lock_revocation_append_only BEFORE DELETE OR UPDATE OR TRUNCATE \
         ON public.lock_revocation FOR EACH STATEMENT EXECUTE FUNCTION \
         lock_revocation_is_append_only()"
    );
    assert_eq!(row.get::<_, &str>(1), "O");
}
