//! Locks: taking, renewing, giving back, reading, revoking, reaping.

use std::future;
use std::time::Duration;

use tenure::postgres::{
    MAX_LOCK_TTL, MAX_OPERATOR_CHARS, MAX_REASON_CHARS, MIN_REASON_CHARS, REAP_BATCH,
};
use tenure::{
    Acquired, Error, FencingToken, Grant, Holder, InvalidKey, LockKey, Reaped, Renewed, Revocation,
    Revoked, SessionId,
};
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::support::database::TestDatabase;
use crate::support::host::{Host, LONG, key};

const REASON: &str = "stuck for hours";

async fn set_up() -> (TestDatabase, Host) {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    (database, host)
}

async fn open_as(host: &Host, owner: &str) -> SessionId {
    host.registry.open_session(owner, LONG).await.unwrap().id
}

async fn take(host: &Host, name: &str, session: &SessionId) -> Result<Acquired, Error> {
    host.locks.try_insert(&key(name), session, LONG).await
}

async fn extend(host: &Host, grant: &Grant) -> Result<Renewed, Error> {
    host.locks.extend(&grant.key, grant.token, LONG).await
}

async fn release(host: &Host, grant: &Grant) -> Result<bool, Error> {
    host.locks.delete_if_owner(&grant.key, grant.token).await
}

async fn revoke(host: &Host, name: &str) -> Revocation {
    let answer = host.locks.revoke(&key(name), "ops", REASON, None).await;
    match answer {
        Ok(Revoked::Done(revocation)) => revocation,
        other => panic!("{name} was not revoked: {other:?}"),
    }
}

fn next(token: FencingToken) -> FencingToken {
    (token.get() + 1).try_into().unwrap()
}

fn is_invalid<T: std::fmt::Debug>(answer: Result<T, Error>) {
    assert!(
        matches!(answer, Err(Error::InvalidArgument(_))),
        "{answer:?}"
    );
}

async fn revocations(database: &TestDatabase) -> i64 {
    database
        .scalar("SELECT count(*) FROM lock_revocation")
        .await
}

// Taking a lock.

#[tokio::test]
async fn a_free_key_is_granted_to_the_session_and_its_owner() {
    let (database, host) = set_up().await;
    let session = open_as(&host, "alice").await;

    let grant = host.lock("orders:2026.12_01-x", &session).await;

    assert_eq!(&*grant.key, "orders:2026.12_01-x");
    assert_eq!((grant.owner.as_str(), &grant.session), ("alice", &session));
    assert_eq!(grant.expires_at, grant.acquired_at + LONG);
    let row = database
        .connect()
        .await
        .query_one("SELECT * FROM lock_entry", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, &str>("lock_key"), &*grant.key);
    assert_eq!(row.get::<_, &str>("owner_id"), "alice");
    assert_eq!(row.get::<_, Uuid>("session_id"), session.uuid());
    assert_eq!(row.get::<_, i64>("fencing_token"), grant.token.get());
}

#[tokio::test]
async fn a_lapsed_key_is_granted_to_another_session_under_a_greater_token() {
    let (database, host) = set_up().await;
    let (first, second) = (host.open(LONG).await, host.open(LONG).await);
    let before = host.lock("k", &first).await;
    database.lapse("k").await;

    let after = host.lock("k", &second).await;

    assert_eq!(after.session, second);
    assert!(after.token > before.token);
    assert!(after.acquired_at > before.acquired_at);
    assert_eq!(database.locks().await, 1);
    // The first session lost a lock, not its life.
    let beat = host.registry.heartbeat(&first, LONG).await.unwrap();
    assert!(beat.is_alive());
}

#[tokio::test]
async fn a_session_takes_its_own_lock_again_under_a_greater_token() {
    let (database, host) = set_up().await;
    let session = host.open(LONG).await;
    let first = host.lock("k", &session).await;

    let second = host.lock("k", &session).await;

    assert!(second.token > first.token);
    assert_eq!(extend(&host, &first).await, Ok(Renewed::Lost));
    assert_eq!(release(&host, &first).await, Ok(false));
    assert_eq!(database.locks().await, 1);
    assert_eq!(host.locks.read(&key("k")).await, Ok(Some(second)));
}

#[tokio::test]
async fn a_key_that_another_live_session_holds_is_not_granted() {
    let (_database, host) = set_up().await;
    let (holder, other) = (open_as(&host, "alice").await, open_as(&host, "bob").await);
    let grant = host.lock("k", &holder).await;

    let answer = take(&host, "k", &other).await;

    let expected = Holder {
        owner: "alice".to_owned(),
        acquired_at: grant.acquired_at,
        expires_at: grant.expires_at,
    };
    assert_eq!(answer, Ok(Acquired::Held(expected)));
    assert_eq!(host.locks.read(&key("k")).await, Ok(Some(grant)));
}

#[tokio::test]
async fn another_session_of_the_same_owner_is_another_holder() {
    let (_database, host) = set_up().await;
    let (first, second) = (open_as(&host, "alice").await, open_as(&host, "alice").await);
    let _ = host.lock("k", &first).await;

    let answer = take(&host, "k", &second).await;

    assert!(matches!(answer, Ok(Acquired::Held(_))), "{answer:?}");
}

#[tokio::test]
async fn a_session_that_is_not_alive_takes_nothing() {
    let (database, host) = set_up().await;
    let (closed, expired, reaped) = (
        host.open(LONG).await,
        host.open(LONG).await,
        host.open(LONG).await,
    );
    let never: SessionId = Uuid::new_v4().into();
    let _ = host.registry.close_session(&closed).await.unwrap();
    database.expire(&reaped).await;
    assert_eq!(host.locks.reap_expired().await.unwrap().sessions, 1);
    database.expire(&expired).await;

    for gone in [never, closed, reaped] {
        let answer = take(&host, "k", &gone).await;
        assert_eq!(answer, Err(Error::SessionUnknown(gone)));
    }
    let answer = take(&host, "k", &expired).await;
    assert_eq!(answer, Err(Error::SessionExpired(expired)));
    assert_eq!(database.locks().await, 0);
}

#[tokio::test]
async fn the_lease_of_a_lock_is_1_ms_to_24_hours() {
    let (database, host) = set_up().await;
    let session = host.open(LONG).await;

    for ttl in [
        Duration::ZERO,
        Duration::from_micros(999),
        MAX_LOCK_TTL + Duration::from_nanos(1),
        Duration::MAX,
    ] {
        is_invalid(host.locks.try_insert(&key("k"), &session, ttl).await);
    }
    assert_eq!(database.locks().await, 0);

    for ttl in [Duration::from_millis(1), MAX_LOCK_TTL] {
        let answer = host.locks.try_insert(&key("k"), &session, ttl).await;
        let Ok(Acquired::Granted(grant)) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(grant.expires_at, grant.acquired_at + ttl);
        for bad in [Duration::ZERO, MAX_LOCK_TTL + Duration::from_nanos(1)] {
            is_invalid(host.locks.extend(&key("k"), grant.token, bad).await);
        }
    }
}

#[tokio::test]
async fn what_is_no_key_reaches_no_statement_and_the_longest_key_works() {
    let (_database, host) = set_up().await;
    let session = host.open(LONG).await;
    for text in ["", "a b", "a/b", "\u{e9}", "a\0", &"k".repeat(129)] {
        assert_eq!(text.parse::<LockKey>(), Err(InvalidKey), "{text:?}");
    }

    let longest = "k".repeat(128);
    let grant = host.lock(&longest, &session).await;
    let read = host.locks.read(&key(&longest)).await;
    assert_eq!(read, Ok(Some(grant.clone())));
    // No key is another one's prefix or other case.
    for other in [&longest[1..], &longest.to_uppercase()] {
        assert_eq!(host.locks.read(&key(other)).await, Ok(None));
    }
    assert_eq!(release(&host, &grant).await, Ok(true));
}

#[tokio::test]
async fn a_waiting_caller_gets_the_lock_when_it_is_given_back() {
    let (database, host) = set_up().await;
    let (holder, waiter) = (host.open(LONG).await, host.open(LONG).await);
    let grant = host.lock("k", &holder).await;

    let (give_up, given_up) = tokio::sync::oneshot::channel::<()>();
    let waiting = tokio::spawn({
        let (locks, waiter) = (host.locks.clone(), waiter.clone());
        async move {
            let give_up = async { given_up.await.unwrap_or(()) };
            locks.acquire_until(&key("k"), &waiter, LONG, give_up).await
        }
    });
    // It has been told that the lock is held, and waits.
    database
        .until(
            1,
            "SELECT least(count(*), 1) FROM pg_stat_activity
              WHERE datname = current_database() AND application_name = 'tenure'
                AND state = 'idle' AND query LIKE 'SELECT own.expires_at%'",
        )
        .await;
    assert_eq!(release(&host, &grant).await, Ok(true));

    let answer = waiting.await.unwrap();
    let Ok(Acquired::Granted(next)) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(next.session, waiter);
    assert!(next.token > grant.token);
    drop(give_up);
}

#[tokio::test]
async fn a_waiting_caller_that_gives_up_is_told_who_holds_the_lock() {
    let (_database, host) = set_up().await;
    let (holder, waiter) = (open_as(&host, "alice").await, host.open(LONG).await);
    let _ = host.lock("k", &holder).await;

    let at_once = host
        .locks
        .acquire_until(&key("k"), &waiter, LONG, future::ready(()))
        .await;
    let later = host
        .locks
        .acquire(&key("k"), &waiter, LONG, Duration::from_millis(50))
        .await;

    for answer in [at_once, later] {
        let Ok(Acquired::Held(holder)) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(holder.owner, "alice");
    }
}

#[tokio::test]
async fn a_caller_that_does_not_wait_tries_once_and_one_that_does_once_more_at_the_end() {
    let (database, host) = set_up().await;
    let (holder, other) = (host.open(LONG).await, host.open(LONG).await);
    let _ = host.lock("k", &holder).await;
    database.count_attempts().await;
    let given_up = async |give_up: bool| {
        let give_up = async move {
            if !give_up {
                tokio::task::yield_now().await;
            }
        };
        host.locks
            .acquire_until(&key("k"), &other, LONG, give_up)
            .await
    };

    let at_once = host
        .locks
        .acquire(&key("k"), &other, LONG, Duration::ZERO)
        .await;
    assert!(matches!(at_once, Ok(Acquired::Held(_))), "{at_once:?}");
    assert_eq!(database.attempts().await, 1);

    let before = given_up(true).await;
    assert!(matches!(before, Ok(Acquired::Held(_))), "{before:?}");
    assert_eq!(database.attempts().await, 2);

    let later = given_up(false).await;
    assert!(matches!(later, Ok(Acquired::Held(_))), "{later:?}");
    assert_eq!(database.attempts().await, 4);
}

#[tokio::test]
async fn a_waiting_caller_whose_session_is_gone_waits_no_longer() {
    let (_database, host) = set_up().await;
    let holder = host.open(LONG).await;
    let _ = host.lock("k", &holder).await;
    let nobody: SessionId = Uuid::new_v4().into();

    let answer = host
        .locks
        .acquire_until(&key("k"), &nobody, LONG, future::pending())
        .await;

    assert_eq!(answer, Err(Error::SessionUnknown(nobody)));
}

// Renewing.

#[tokio::test]
async fn a_renewal_moves_the_end_and_keeps_the_token() {
    let (_database, host) = set_up().await;
    let session = host.open(LONG).await;
    let grant = host.lock("k", &session).await;

    let Ok(Renewed::Until(later)) = host.locks.extend(&key("k"), grant.token, LONG * 2).await
    else {
        panic!("it was lost");
    };
    let read = host.locks.read(&key("k")).await.unwrap().unwrap();

    assert!(later > grant.expires_at);
    assert_eq!(
        read,
        Grant {
            expires_at: later,
            ..grant.clone()
        }
    );
    // From now, not on top: it can also move back.
    let Ok(Renewed::Until(sooner)) = host.locks.extend(&key("k"), grant.token, LONG / 2).await
    else {
        panic!("it was lost");
    };
    assert!(sooner < grant.expires_at);
}

#[tokio::test]
async fn a_renewal_is_lost_after_a_lapse_and_revives_nothing() {
    let (database, host) = set_up().await;
    let session = host.open(LONG).await;
    let grant = host.lock("k", &session).await;
    database.lapse("k").await;

    assert_eq!(extend(&host, &grant).await, Ok(Renewed::Lost));
    assert_eq!(extend(&host, &grant).await, Ok(Renewed::Lost));
    assert_eq!(host.locks.read(&key("k")).await, Ok(None));
}

#[tokio::test]
async fn a_renewal_is_lost_after_a_revocation_a_release_and_another_ones_grant() {
    let (database, host) = set_up().await;
    let (session, other) = (host.open(LONG).await, host.open(LONG).await);

    let revoked = host.lock("k", &session).await;
    let _ = revoke(&host, "k").await;
    assert_eq!(extend(&host, &revoked).await, Ok(Renewed::Lost));

    let released = host.lock("k", &session).await;
    assert_eq!(release(&host, &released).await, Ok(true));
    assert_eq!(extend(&host, &released).await, Ok(Renewed::Lost));

    let lapsed = host.lock("k", &session).await;
    database.lapse("k").await;
    let others = host.lock("k", &other).await;
    assert_eq!(extend(&host, &lapsed).await, Ok(Renewed::Lost));
    assert_eq!(host.locks.read(&key("k")).await, Ok(Some(others)));
}

#[tokio::test]
async fn a_renewal_is_lost_with_the_session_dead_reaped_or_closed() {
    let (database, host) = set_up().await;
    let (dead, closed) = (host.open(LONG).await, host.open(LONG).await);
    let of_dead = host.lock("d", &dead).await;
    let of_closed = host.lock("c", &closed).await;

    database.expire(&dead).await;
    assert_eq!(extend(&host, &of_dead).await, Ok(Renewed::Lost));
    let _ = host.locks.reap_expired().await.unwrap();
    assert_eq!(extend(&host, &of_dead).await, Ok(Renewed::Lost));

    let _ = host.registry.close_session(&closed).await.unwrap();
    assert_eq!(extend(&host, &of_closed).await, Ok(Renewed::Lost));
}

#[tokio::test]
async fn a_renewal_under_another_token_or_of_another_key_changes_nothing() {
    let (_database, host) = set_up().await;
    let session = host.open(LONG).await;
    let (k, l) = (
        host.lock("k", &session).await,
        host.lock("l", &session).await,
    );

    for (name, token) in [("k", l.token), ("k", next(l.token)), ("m", k.token)] {
        let answer = host.locks.extend(&key(name), token, LONG * 2).await;
        assert_eq!(answer, Ok(Renewed::Lost), "{name} {token}");
    }
    assert_eq!(host.locks.read(&key("k")).await, Ok(Some(k)));
    assert_eq!(host.locks.read(&key("l")).await, Ok(Some(l)));
}

// Giving back.

#[tokio::test]
async fn a_release_is_true_and_then_false() {
    let (database, host) = set_up().await;
    let session = host.open(LONG).await;
    let grant = host.lock("k", &session).await;

    assert_eq!(release(&host, &grant).await, Ok(true));
    assert_eq!(release(&host, &grant).await, Ok(false));

    assert_eq!(database.locks().await, 0);
    let again = host.lock("k", &session).await;
    assert!(again.token > grant.token);
    assert_eq!(release(&host, &grant).await, Ok(false));
    assert_eq!(host.locks.read(&key("k")).await, Ok(Some(again)));
}

#[tokio::test]
async fn a_release_under_another_token_or_of_another_key_changes_nothing() {
    let (database, host) = set_up().await;
    let session = host.open(LONG).await;
    let grant = host.lock("k", &session).await;
    let _ = host.lock("l", &session).await;

    for (name, token) in [
        ("k", next(grant.token)),
        ("k", i64::MAX.try_into().unwrap()),
        ("l", grant.token),
        ("m", grant.token),
    ] {
        let answer = host.locks.delete_if_owner(&key(name), token).await;
        assert_eq!(answer, Ok(false), "{name} {token}");
    }
    assert_eq!(database.locks().await, 2);
    assert_eq!(host.locks.read(&key("k")).await, Ok(Some(grant)));
}

#[tokio::test]
async fn a_lapsed_lock_can_be_given_back_while_it_stands() {
    let (database, host) = set_up().await;
    let session = host.open(LONG).await;
    let grant = host.lock("k", &session).await;
    database.lapse("k").await;

    assert_eq!(release(&host, &grant).await, Ok(true));
    assert_eq!(database.locks().await, 0);
}

// Reading.

#[tokio::test]
async fn reading_shows_a_live_grant_and_nothing_else() {
    let (database, host) = set_up().await;
    let (session, dead) = (host.open(LONG).await, host.open(LONG).await);
    assert_eq!(host.locks.read(&key("live")).await, Ok(None));

    let live = host.lock("live", &session).await;
    let _ = host.lock("lapsed", &session).await;
    let _ = host.lock("of-the-dead", &dead).await;
    database.lapse("lapsed").await;
    database.expire(&dead).await;

    assert_eq!(host.locks.read(&key("live")).await, Ok(Some(live)));
    assert_eq!(host.locks.read(&key("lapsed")).await, Ok(None));
    assert_eq!(host.locks.read(&key("of-the-dead")).await, Ok(None));
}

#[tokio::test]
async fn a_session_counts_its_locks_and_lapsed_ones_too() {
    let (database, host) = set_up().await;
    let (session, other) = (host.open(LONG).await, host.open(LONG).await);
    assert_eq!(host.locks.count_of(&session).await, Ok(0));
    for name in ["a", "b", "c"] {
        let _ = host.lock(name, &session).await;
    }
    let _ = host.lock("d", &other).await;
    database.lapse("a").await;

    assert_eq!(host.locks.count_of(&session).await, Ok(3));
    assert_eq!(host.locks.count_of(&other).await, Ok(1));
    assert_eq!(host.locks.count_of(&Uuid::new_v4().into()).await, Ok(0));
}

#[tokio::test]
async fn a_session_stands_until_it_is_closed_or_reaped() {
    let (database, host) = set_up().await;
    let (closed, dead) = (host.open(LONG).await, host.open(LONG).await);
    assert_eq!(host.locks.session_stands(&closed).await, Ok(true));

    let _ = host.registry.close_session(&closed).await.unwrap();
    assert_eq!(host.locks.session_stands(&closed).await, Ok(false));

    database.expire(&dead).await;
    assert_eq!(host.locks.session_stands(&dead).await, Ok(true));
    let _ = host.locks.reap_expired().await.unwrap();
    assert_eq!(host.locks.session_stands(&dead).await, Ok(false));

    let never = Uuid::new_v4().into();
    assert_eq!(host.locks.session_stands(&never).await, Ok(false));
}

// Revoking.

#[tokio::test]
async fn a_revocation_takes_the_grant_away_and_is_recorded() {
    let (database, host) = set_up().await;
    let session = open_as(&host, "alice").await;
    let grant = host.lock("k", &session).await;

    let revocation = revoke(&host, "k").await;

    assert_eq!(revocation.owner, "alice");
    assert_eq!(revocation.token, grant.token);
    assert!(revocation.token_floor > grant.token);
    assert_eq!(database.locks().await, 0);
    let row = database
        .connect()
        .await
        .query_one(
            "SELECT *, abs(extract(epoch FROM now() - revoked_at)) < 3600 AS recent
               FROM lock_revocation",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>("id"), revocation.id);
    assert_eq!(row.get::<_, &str>("lock_key"), "k");
    assert_eq!(row.get::<_, &str>("prev_owner"), "alice");
    assert_eq!(row.get::<_, i64>("prev_token"), grant.token.get());
    assert_eq!(row.get::<_, &str>("operator"), "ops");
    assert_eq!(row.get::<_, &str>("reason"), REASON);
    assert!(row.get::<_, bool>("recent"));
    // The lock is lost, the session lives on and may take it again, above the floor.
    assert_eq!(release(&host, &grant).await, Ok(false));
    let again = host.lock("k", &session).await;
    assert!(again.token > revocation.token_floor);
}

#[tokio::test]
async fn the_next_grant_to_another_session_is_above_the_floor_too() {
    let (_database, host) = set_up().await;
    let (session, other) = (host.open(LONG).await, host.open(LONG).await);
    let _ = host.lock("k", &session).await;

    let first = revoke(&host, "k").await;
    let grant = host.lock("k", &other).await;
    let second = revoke(&host, "k").await;

    assert!(grant.token > first.token_floor);
    assert_eq!(second.token, grant.token);
    assert!(second.token_floor > grant.token);
    assert!(second.id > first.id);
}

#[tokio::test]
async fn a_key_that_nobody_holds_is_not_revoked() {
    let (database, host) = set_up().await;

    let answer = host.locks.revoke(&key("k"), "ops", REASON, None).await;

    assert_eq!(answer, Ok(Revoked::NotHeld));
    assert_eq!(revocations(&database).await, 0);
}

#[tokio::test]
async fn a_revocation_that_expects_another_token_leaves_the_grant_alone() {
    let (database, host) = set_up().await;
    let session = host.open(LONG).await;
    let old = host.lock("k", &session).await;
    let grant = host.lock("k", &session).await;

    for expected in [old.token, next(grant.token)] {
        let answer = host
            .locks
            .revoke(&key("k"), "ops", REASON, Some(expected))
            .await;
        assert_eq!(answer, Ok(Revoked::OtherToken(grant.token)));
    }
    assert_eq!(host.locks.read(&key("k")).await, Ok(Some(grant.clone())));
    assert_eq!(revocations(&database).await, 0);

    let expected = Some(grant.token);
    let answer = host.locks.revoke(&key("k"), "ops", REASON, expected).await;
    assert!(matches!(answer, Ok(Revoked::Done(_))), "{answer:?}");
    assert_eq!(revocations(&database).await, 1);
    let answer = host.locks.revoke(&key("k"), "ops", REASON, expected).await;
    assert_eq!(answer, Ok(Revoked::NotHeld));
    assert_eq!(revocations(&database).await, 1);
}

#[tokio::test]
async fn a_grant_that_has_lapsed_but_stands_is_revoked_as_well() {
    let (database, host) = set_up().await;
    let session = host.open(LONG).await;
    let grant = host.lock("k", &session).await;
    database.lapse("k").await;

    assert_eq!(revoke(&host, "k").await.token, grant.token);
    assert_eq!(database.locks().await, 0);
}

#[tokio::test]
async fn a_revocation_needs_an_operator_and_a_reason() {
    let (database, host) = set_up().await;
    let session = host.open(LONG).await;
    let grant = host.lock("k", &session).await;
    let long = |count| "\u{e9}".repeat(count);

    for (operator, reason) in [
        ("", REASON),
        (" \t\u{a0}", REASON),
        (&long(MAX_OPERATOR_CHARS + 1), REASON),
        ("o\0ps", REASON),
        ("o\nps\r", REASON),
        ("ops", ""),
        ("ops", &long(MIN_REASON_CHARS - 1)),
        ("ops", "   short   "),
        ("ops", &long(MAX_REASON_CHARS + 1)),
        ("ops", "stuck \0 for hours"),
    ] {
        is_invalid(host.locks.revoke(&key("k"), operator, reason, None).await);
    }
    assert_eq!(host.locks.read(&key("k")).await, Ok(Some(grant)));
    assert_eq!(revocations(&database).await, 0);

    for (operator, reason) in [
        ("o", long(MIN_REASON_CHARS)),
        (&long(MAX_OPERATOR_CHARS), long(MAX_REASON_CHARS)),
    ] {
        let answer = host.locks.revoke(&key("k"), operator, &reason, None).await;
        assert!(matches!(answer, Ok(Revoked::Done(_))), "{answer:?}");
        let _ = host.lock("k", &session).await;
    }
}

#[tokio::test]
async fn the_record_of_revocations_is_append_only() {
    let (database, host) = set_up().await;
    let session = host.open(LONG).await;
    let _ = host.lock("k", &session).await;
    let _ = revoke(&host, "k").await;
    let client = database.connect().await;

    for (what, statement) in [
        ("UPDATE", "UPDATE lock_revocation SET reason = 'another'"),
        ("UPDATE", "UPDATE lock_revocation SET id = 2 WHERE false"),
        ("DELETE", "DELETE FROM lock_revocation"),
        ("TRUNCATE", "TRUNCATE lock_revocation"),
        (
            "DELETE",
            "MERGE INTO lock_revocation USING (VALUES (1)) AS t (x) ON true
             WHEN MATCHED THEN DELETE",
        ),
    ] {
        let error = client.batch_execute(statement).await.unwrap_err();
        let error = error.as_db_error().expect(statement);
        assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
        assert_eq!(
            error.message(),
            format!("lock_revocation is append-only: {what} is not allowed")
        );
    }
    let reason: String = database.scalar("SELECT reason FROM lock_revocation").await;
    assert_eq!(reason, REASON);
}

// Reaping.

#[tokio::test]
async fn the_reaper_removes_what_is_over_and_nothing_else() {
    let (database, host) = set_up().await;
    let (live, dead, bare) = (
        host.open(LONG).await,
        host.open(LONG).await,
        host.open(LONG).await,
    );
    let kept = host.lock("live", &live).await;
    let _ = host.lock("lapsed", &live).await;
    for name in ["dead-1", "dead-2", "dead-and-lapsed"] {
        let _ = host.lock(name, &dead).await;
    }
    database.lapse("lapsed").await;
    database.lapse("dead-and-lapsed").await;
    database.expire(&dead).await;
    database.expire(&bare).await;

    let first = host.locks.reap_expired().await.unwrap();
    let second = host.locks.reap_expired().await.unwrap();

    let expected = Reaped {
        sessions: 2,
        grants: 1,
    };
    assert_eq!((first, second), (expected, Reaped::default()));
    assert_eq!(database.sessions().await, 1);
    assert_eq!(database.locks().await, 1);
    assert_eq!(host.locks.read(&key("live")).await, Ok(Some(kept)));
    assert!(
        host.registry
            .heartbeat(&live, LONG)
            .await
            .unwrap()
            .is_alive()
    );
}

#[tokio::test]
async fn the_reaper_takes_a_batch_at_a_time() {
    let (database, host) = set_up().await;
    let batch = REAP_BATCH;
    let live = host.open(LONG).await;
    database
        .execute(&format!(
            "INSERT INTO lock_session (session_id, owner_id, created_at, expires_at)
             SELECT gen_random_uuid(), 'dead', now() - interval '2 hours', now() - interval '1 hour'
               FROM generate_series(1, {batch} + 1);
             INSERT INTO lock_entry
             SELECT 'k' || n, 'tester', '{live}', nextval('fencing_token_seq'),
                    now() - interval '2 hours', now() - interval '1 hour'
               FROM generate_series(1, {batch} + 2) AS n"
        ))
        .await;

    for (sessions, grants) in [(batch, batch), (1, 2), (0, 0)] {
        let reaped = host.locks.reap_expired().await;
        assert_eq!(reaped, Ok(Reaped { sessions, grants }));
    }
    assert_eq!(database.sessions().await, 1);
}

#[tokio::test]
async fn the_running_reaper_goes_on_after_a_full_batch_and_after_a_fault() {
    let (database, host) = set_up().await;
    database
        .execute(&format!(
            "INSERT INTO lock_session (session_id, owner_id, created_at, expires_at)
             SELECT gen_random_uuid(), 'dead', now() - interval '2 hours', now() - interval '1 hour'
               FROM generate_series(1, {REAP_BATCH} * 2 + 1)"
        ))
        .await;
    const SESSIONS: &str = "SELECT count(*) FROM lock_session";

    // A round an hour: what is not done in the first is not done.
    let reaper = tokio::spawn(host.locks.clone().reap_every(LONG * 60));
    database.until(0, SESSIONS).await;
    reaper.abort();

    // The first to delete fails; a sequence does not roll back.
    database
        .execute(
            "CREATE SEQUENCE attempts;
             CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF nextval('attempts') = 1 THEN RAISE 'once'; END IF;
                 RETURN OLD;
             END $$;
             CREATE TRIGGER fail_once BEFORE DELETE ON lock_session
                FOR EACH ROW EXECUTE FUNCTION fail_once()",
        )
        .await;
    let session = host.open(LONG).await;
    database.expire(&session).await;
    let reaper = tokio::spawn(host.locks.clone().reap_every(Duration::from_millis(5)));
    database.until(0, SESSIONS).await;
    reaper.abort();
    let attempts: i64 = database.scalar("SELECT last_value FROM attempts").await;
    assert_eq!(attempts, 2);
}

/// More than a round looks through.
#[tokio::test]
async fn the_running_reaper_comes_by_every_session_of_a_large_table() {
    let (database, host) = set_up().await;
    const SESSIONS: i64 = 200_000;
    const COUNT: &str = "SELECT count(*) FROM lock_session";
    database
        .execute(&format!(
            "INSERT INTO lock_session (session_id, owner_id, expires_at)
             SELECT gen_random_uuid(), n::text, now() + interval '1 hour'
               FROM generate_series(1, {SESSIONS}) AS n"
        ))
        .await;
    let dies = |which: &str| {
        format!(
            "UPDATE lock_session SET created_at = now() - interval '2 hours',
                    expires_at = now() - interval '1 hour' WHERE {which}"
        )
    };
    let reaper = tokio::spawn(host.locks.clone().reap_every(Duration::from_millis(5)));
    // The last, and when the reaper has been there, the first.
    database
        .execute(&dies(&format!("owner_id = '{SESSIONS}'")))
        .await;
    database.until(SESSIONS - 1, COUNT).await;
    database.execute(&dies("owner_id = '1'")).await;
    database.until(SESSIONS - 2, COUNT).await;
    reaper.abort();
}

#[tokio::test]
async fn what_somebody_sits_on_does_not_keep_the_reaper_from_the_rest() {
    let (database, host) = set_up().await;
    // The slice's full batch of dead ones, and one far behind them.
    database
        .execute(&format!(
            "INSERT INTO lock_session (session_id, owner_id, created_at, expires_at)
             SELECT gen_random_uuid(), 'locked', now() - interval '2 hours', now() - interval '1 hour'
               FROM generate_series(1, {REAP_BATCH});
             INSERT INTO lock_session (session_id, owner_id, expires_at)
             SELECT gen_random_uuid(), 'live', now() + interval '1 hour'
               FROM generate_series(1, 50000);
             INSERT INTO lock_session (session_id, owner_id, created_at, expires_at)
             VALUES (gen_random_uuid(), 'dead', now() - interval '2 hours', now() - interval '1 hour')"
        ))
        .await;
    let holder = database
        .begin("SELECT FROM lock_session WHERE owner_id = 'locked' FOR UPDATE")
        .await;
    let reaper = tokio::spawn(host.locks.clone().reap_every(Duration::from_millis(5)));
    database
        .until(
            0,
            "SELECT count(*) FROM lock_session WHERE owner_id = 'dead'",
        )
        .await;
    reaper.abort();
    holder.batch_execute("ROLLBACK").await.unwrap();
}
