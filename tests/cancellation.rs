//! Calls that are given up: dropped after one poll, after two, and so on until they are
//! over; or timed out. Each leaves no open transaction, no running statement, and nothing
//! half done.
//!
//! The pool under examination has one connection, so what a call leaves behind is what the
//! next call gets. Its statements may wait for a minute; so where one that waits for a lock
//! ends, it was cancelled.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure::postgres::{Statements, StoreError, sql};
use tenure::{
    Acquired, DatabaseOptions, Error, FencingToken, Heartbeat, Limits, PinnedStatements, Policy,
    PolicyEngine, Reaped, Renewed, Revoked, SessionId,
};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::database::TestDatabase;
use crate::support::host::{Host, LONG, engine, key, lifecycle};
use crate::support::policies;

/// When a call is dropped.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// As soon as it waits: what it has sent is not yet answered.
    Waiting,
    /// When it would go on: it is answered, but has not seen it.
    Woken,
}

/// Polls a future this often, each time only after it has been woken, and drops it; or
/// returns its output, if it is over by then.
async fn poll_n<F: Future>(polls: usize, moment: Moment, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        left -= 1;
        match moment {
            Moment::Waiting if left == 0 => Poll::Ready(None),
            Moment::Waiting | Moment::Woken => Poll::Pending,
        }
    })
    .await
}

struct Stage {
    database: TestDatabase,
    /// Sets up and looks on, past the pool.
    observer: Client,
    policy: Policy,
}

/// A session of a case, with the locks `{id}-a` and `{id}-b`.
struct Case {
    session: SessionId,
    token: FencingToken,
}

impl Case {
    fn key(&self, name: &str) -> tenure::LockKey {
        key(&format!("{}-{name}", self.session))
    }
}

impl Stage {
    async fn new() -> Self {
        Self::with_policy(lifecycle()).await
    }

    async fn with_policy(policy: Policy) -> Self {
        let database = TestDatabase::create().await;
        let observer = database.connect().await;
        Self {
            database,
            observer,
            policy,
        }
    }

    /// A host with one connection, which it has yet to make.
    fn host(&self) -> Host {
        let mut options = DatabaseOptions::default();
        options.connections = 1;
        options.lock_timeout = LONG;
        options.statement_timeout = LONG;
        Host::on(self.database.pool_with(&options), self.policy.clone())
    }

    async fn case(&self) -> Case {
        let session = SessionId::from(Uuid::new_v4());
        let rows = self
            .observer
            .query(
                &format!(
                    "WITH s AS (
                         INSERT INTO lock_session (session_id, owner_id, expires_at)
                         VALUES ('{session}', 'tester', now() + interval '1 minute')
                         RETURNING *
                     )
                     INSERT INTO lock_entry
                     SELECT s.session_id || '-' || name, s.owner_id, s.session_id,
                            nextval('fencing_token_seq'), now(), s.expires_at
                       FROM s, unnest(ARRAY['a', 'b']) AS name
                     RETURNING fencing_token"
                ),
                &[],
            )
            .await
            .unwrap();
        let token = rows[0].get::<_, i64>(0).try_into().unwrap();
        Case { session, token }
    }

    async fn expired_case(&self) -> Case {
        let case = self.case().await;
        self.database.expire(&case.session).await;
        case
    }

    async fn lapsed_case(&self) -> Case {
        let case = self.case().await;
        self.database.lapse(&case.key("a")).await;
        case
    }

    async fn count(&self, query: &str) -> i64 {
        self.observer.query_one(query, &[]).await.unwrap().get(0)
    }

    /// How many rows there are of a session, and of its locks.
    async fn rows(&self, case: &Case) -> (i64, i64) {
        let id = &case.session;
        let row = self
            .observer
            .query_one(
                &format!(
                    "SELECT (SELECT count(*) FROM lock_session WHERE session_id = '{id}'),
                            (SELECT count(*) FROM lock_entry WHERE session_id = '{id}')"
                ),
                &[],
            )
            .await
            .unwrap();
        (row.get(0), row.get(1))
    }

    async fn holders(&self, key: &str) -> i64 {
        self.count(&format!(
            "SELECT count(*) FROM lock_entry WHERE lock_key = '{key}'"
        ))
        .await
    }

    /// Both are there or both are gone.
    async fn is_whole_or_gone(&self, case: &Case, done: bool) {
        let rows = self.rows(case).await;
        assert!(rows == (0, 0) || (rows == (1, 2) && !done), "{rows:?}");
    }

    async fn is_untouched(&self, case: &Case) {
        assert_eq!(self.rows(case).await, (1, 2));
    }

    /// Nothing is left of the calls of a host.
    async fn is_clean(&self, host: &Host) {
        let mut left = Vec::new();
        for _ in 0..1000 {
            left = busy(&self.observer).await;
            if left.is_empty() {
                let statements = PinnedStatements::new(host.pool.clone());
                let probe = async |id| {
                    let opened = statements.open_session(id, "probe", 60_000).await;
                    opened.map(drop)
                };
                assert!(!is_in_a_transaction(&self.observer, probe).await);
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("left behind: {left:?}");
    }

    /// Gives a call up at every poll of its, with a connection to make and with one that
    /// has been used; and looks after each.
    async fn give_up_everywhere<C, T>(
        &self,
        prepare: impl AsyncFn() -> C,
        call: impl AsyncFn(&Host, &C) -> T,
        check: impl AsyncFn(&C, Option<T>),
    ) {
        for used in [false, true] {
            for moment in [Moment::Waiting, Moment::Woken] {
                let mut polls = 0;
                loop {
                    polls += 1;
                    assert!(polls < 500, "it never ends");
                    let host = self.host();
                    if used {
                        // So that the statements are prepared, too.
                        let rehearsal = prepare().await;
                        call(&host, &rehearsal).await;
                    }
                    let case = prepare().await;
                    let output = poll_n(polls, moment, call(&host, &case)).await;
                    let done = output.is_some();
                    self.is_clean(&host).await;
                    check(&case, output).await;
                    if done {
                        break;
                    }
                }
                assert!(polls > 1, "over after {polls} polls: nothing was given up");
            }
        }
    }

    /// Gives a call up while it waits for a lock that another transaction keeps.
    async fn give_up_waiting<T: std::fmt::Debug>(
        &self,
        held: &str,
        call: impl AsyncFn(&Host) -> T,
    ) {
        let host = self.host();
        let holder = self.database.begin(held).await;
        tokio::select! {
            biased;
            answer = call(&host) => panic!("it did not wait: {answer:?}"),
            () = self.database.until_somebody_waits(1) => {}
        }
        // The lock is still held, so nothing but a cancellation ends the statement.
        self.is_clean(&host).await;
        drop(holder);
    }
}

/// The hosts' connections that run something or are in a transaction.
async fn busy(observer: &Client) -> Vec<String> {
    let rows = observer
        .query(
            "SELECT concat_ws(' ', pid, state, query) FROM pg_stat_activity
              WHERE datname = current_database() AND application_name = 'tenure'
                AND state <> 'idle'",
            &[],
        )
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Whether a connection is in the middle of a transaction: two sessions that are opened on
/// it, one after the other, are not there for others yet, or are of the same transaction.
async fn is_in_a_transaction<E: std::fmt::Debug>(
    observer: &Client,
    open: impl AsyncFn(Uuid) -> Result<(), E>,
) -> bool {
    let ids = vec![Uuid::new_v4(), Uuid::new_v4()];
    for id in &ids {
        open(*id).await.unwrap();
    }
    let transactions: i64 = observer
        .query_one(
            "SELECT count(DISTINCT xmin::text) FROM lock_session WHERE session_id = ANY($1)",
            &[&ids],
        )
        .await
        .unwrap()
        .get(0);
    if transactions == 2 {
        let gone = observer
            .execute(
                "DELETE FROM lock_session WHERE session_id = ANY($1)",
                &[&ids],
            )
            .await;
        assert_eq!(gone.unwrap(), 2);
    }
    transactions != 2
}

// The checks themselves.

#[tokio::test]
async fn the_check_notices_a_transaction_that_was_left_open() {
    let stage = Stage::new().await;
    let mut url: tokio_postgres::Config = stage.database.url().parse().unwrap();
    url.application_name("tenure");
    let (plain, connection) = url.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let probe = async |id| {
        let opened = plain
            .execute(sql::OPEN_SESSION, &[&id, &"probe", &60_000_i64])
            .await;
        opened.map(drop)
    };

    assert!(!is_in_a_transaction(&stage.observer, &probe).await);
    assert!(busy(&stage.observer).await.is_empty());
    plain.batch_execute("BEGIN").await.unwrap();
    assert!(is_in_a_transaction(&stage.observer, &probe).await);
    assert_eq!(busy(&stage.observer).await.len(), 1);
    plain.batch_execute("ROLLBACK").await.unwrap();
    assert!(!is_in_a_transaction(&stage.observer, &probe).await);
    assert!(busy(&stage.observer).await.is_empty());
}

#[tokio::test]
async fn the_check_notices_a_statement_that_goes_on_after_its_socket_is_closed() {
    let stage = Stage::new().await;
    let case = stage.case().await;
    let holder = stage.database.hold(&case.session).await;
    let mut url: tokio_postgres::Config = stage.database.url().parse().unwrap();
    url.application_name("tenure");
    let (plain, connection) = url.connect(tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let (id, ttl_ms) = (case.session.uuid(), 60_000_i64);

    tokio::select! {
        answer = async { plain.execute(sql::HEARTBEAT, &[&id, &ttl_ms]).await } => {
            panic!("{answer:?}")
        }
        () = stage.database.until_somebody_waits(1) => {}
    }
    drop(plain);
    connection.abort();

    assert_eq!(busy(&stage.observer).await.len(), 1);
    drop(holder);
}

#[tokio::test]
async fn polling_n_times_polls_n_times() {
    for moment in [Moment::Waiting, Moment::Woken] {
        for polls in 1..=4 {
            let mut polled = 0;
            let third_time = poll_fn(|context| {
                polled += 1;
                if polled == 3 {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            });
            let output = poll_n(polls, moment, third_time).await;
            assert_eq!((output.is_some(), polled), (polls >= 3, polls.min(3)));
        }
    }
}

// The registry.

#[tokio::test]
async fn opening_a_session() {
    let stage = Stage::new().await;
    let prepare = async || Uuid::new_v4().to_string();
    stage
        .give_up_everywhere(
            prepare,
            async |host, owner| host.registry.open_session(owner, LONG).await,
            async |owner, opened| {
                let query = format!("SELECT count(*) FROM lock_session WHERE owner_id = '{owner}'");
                let rows = stage.count(&query).await;
                match opened {
                    Some(opened) => {
                        let _ = opened.unwrap();
                        assert_eq!(rows, 1);
                    }
                    None => assert!(rows <= 1, "{rows}"),
                }
            },
        )
        .await;
}

#[tokio::test]
async fn a_heartbeat() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || stage.case().await,
            async |host, case| host.registry.heartbeat(&case.session, LONG).await,
            async |case, beat| {
                stage.is_untouched(case).await;
                assert!(beat.is_none_or(|beat| beat.unwrap().is_alive()));
            },
        )
        .await;
}

#[tokio::test]
async fn a_heartbeat_of_a_dead_session() {
    let stage = Stage::new().await;
    let afterwards = stage.host();
    stage
        .give_up_everywhere(
            async || stage.expired_case().await,
            async |host, case| host.registry.heartbeat(&case.session, LONG).await,
            async |case, beat| {
                stage.is_untouched(case).await;
                assert!(beat.is_none_or(|beat| beat == Ok(Heartbeat::Dead)));
                let again = afterwards.registry.heartbeat(&case.session, LONG).await;
                assert_eq!(again, Ok(Heartbeat::Dead));
            },
        )
        .await;
}

#[tokio::test]
async fn a_close() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || stage.case().await,
            async |host, case| host.registry.close_session(&case.session).await,
            async |case, closed| {
                stage.is_whole_or_gone(case, closed.is_some()).await;
                assert!(closed.is_none_or(|closed| closed.unwrap().locks_released == 2));
            },
        )
        .await;
}

#[tokio::test]
async fn a_list_of_locks() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || stage.case().await,
            async |host, case| host.registry.locks_of(&case.session).await,
            async |case, keys| {
                stage.is_untouched(case).await;
                assert!(keys.is_none_or(|keys| keys.unwrap().len() == 2));
            },
        )
        .await;
}

#[tokio::test]
async fn a_heartbeat_after_which_the_host_closes_the_session() {
    let policy = Policy::load(engine(), policies::FALSE_ON_ONE_ROW).unwrap();
    let stage = Stage::with_policy(policy).await;
    stage
        .give_up_everywhere(
            async || stage.case().await,
            async |host, case| host.registry.heartbeat(&case.session, LONG).await,
            async |case, beat| {
                stage.is_whole_or_gone(case, beat.is_some()).await;
                assert!(beat.is_none_or(|beat| beat == Ok(Heartbeat::Dead)));
            },
        )
        .await;
}

// The locks.

#[tokio::test]
async fn taking_a_free_lock() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || stage.case().await,
            async |host, case| {
                let key = case.key("free");
                host.locks.try_insert(&key, &case.session, LONG).await
            },
            async |case, answer| {
                let (session, locks) = stage.rows(case).await;
                assert_eq!(
                    (session, locks),
                    (1, 2 + stage.holders(&case.key("free")).await)
                );
                if let Some(answer) = answer {
                    assert!(matches!(answer, Ok(Acquired::Granted(_))), "{answer:?}");
                    assert_eq!(locks, 3);
                }
            },
        )
        .await;
}

#[tokio::test]
async fn taking_the_lock_of_a_dead_session() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || (stage.expired_case().await, stage.case().await),
            async |host, (dead, contender)| {
                let session = &contender.session;
                host.locks.try_insert(&dead.key("a"), session, LONG).await
            },
            async |(dead, contender), answer| {
                stage.is_whole_or_gone(dead, answer.is_some()).await;
                let (session, locks) = stage.rows(contender).await;
                assert!(session == 1 && (locks == 2 || locks == 3), "{locks}");
                if let Some(answer) = answer {
                    assert!(matches!(answer, Ok(Acquired::Granted(_))), "{answer:?}");
                    assert_eq!(locks, 3);
                }
            },
        )
        .await;
}

#[tokio::test]
async fn taking_a_lock_for_a_dead_session() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || stage.expired_case().await,
            async |host, case| {
                let key = case.key("free");
                host.locks.try_insert(&key, &case.session, LONG).await
            },
            async |case, answer| {
                stage.is_untouched(case).await;
                let dead = Err(Error::SessionExpired(case.session.clone()));
                assert!(answer.is_none_or(|answer| answer == dead));
            },
        )
        .await;
}

#[tokio::test]
async fn waiting_for_a_lock_that_is_held() {
    let stage = Stage::new().await;
    let wait = Duration::from_millis(30);
    stage
        .give_up_everywhere(
            async || (stage.case().await, stage.case().await),
            async |host, (holder, waiter)| {
                let (key, session) = (holder.key("a"), &waiter.session);
                host.locks.acquire(&key, session, LONG, wait).await
            },
            async |(holder, waiter), answer| {
                stage.is_untouched(holder).await;
                stage.is_untouched(waiter).await;
                if let Some(answer) = answer {
                    assert!(matches!(answer, Ok(Acquired::Held(_))), "{answer:?}");
                }
            },
        )
        .await;
}

#[tokio::test]
async fn a_renewal() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || stage.case().await,
            async |host, case| host.locks.extend(&case.key("a"), case.token, LONG).await,
            async |case, renewed| {
                stage.is_untouched(case).await;
                if let Some(renewed) = renewed {
                    assert!(matches!(renewed, Ok(Renewed::Until(_))), "{renewed:?}");
                }
            },
        )
        .await;
}

#[tokio::test]
async fn a_release() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || stage.case().await,
            async |host, case| {
                let key = case.key("a");
                host.locks.delete_if_owner(&key, case.token).await
            },
            async |case, released| {
                let rows = stage.rows(case).await;
                assert!(rows == (1, 1) || (rows == (1, 2) && released.is_none()));
                assert!(released.is_none_or(|released| released == Ok(true)));
            },
        )
        .await;
}

#[tokio::test]
async fn a_read() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || stage.case().await,
            async |host, case| host.locks.read(&case.key("a")).await,
            async |case, read| {
                stage.is_untouched(case).await;
                assert!(read.is_none_or(|read| read.unwrap().unwrap().token == case.token));
            },
        )
        .await;
}

#[tokio::test]
async fn counting_the_locks_of_a_session() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || stage.case().await,
            async |host, case| host.locks.count_of(&case.session).await,
            async |_, count| assert!(count.is_none_or(|count| count == Ok(2))),
        )
        .await;
}

#[tokio::test]
async fn asking_whether_a_session_stands() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || stage.case().await,
            async |host, case| host.locks.session_stands(&case.session).await,
            async |_, stands| assert!(stands.is_none_or(|stands| stands == Ok(true))),
        )
        .await;
}

#[tokio::test]
async fn a_revocation() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || stage.case().await,
            async |host, case| {
                let (key, reason) = (case.key("a"), "stuck for hours");
                host.locks.revoke(&key, "ops", reason, None).await
            },
            async |case, revoked| {
                let records = stage
                    .count(&format!(
                        "SELECT count(*) FROM lock_revocation WHERE lock_key = '{}'",
                        case.key("a")
                    ))
                    .await;
                // The grant is gone and recorded, or neither.
                assert_eq!(stage.rows(case).await, (1, 2 - records));
                if let Some(revoked) = revoked {
                    assert!(matches!(revoked, Ok(Revoked::Done(_))), "{revoked:?}");
                    assert_eq!(records, 1);
                }
            },
        )
        .await;
}

#[tokio::test]
async fn a_revocation_of_what_nobody_holds() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || stage.case().await,
            async |host, case| {
                let (key, reason) = (case.key("free"), "stuck for hours");
                host.locks.revoke(&key, "ops", reason, None).await
            },
            async |case, revoked| {
                stage.is_untouched(case).await;
                assert!(revoked.is_none_or(|revoked| revoked == Ok(Revoked::NotHeld)));
            },
        )
        .await;
}

#[tokio::test]
async fn a_round_of_the_reaper() {
    let stage = Stage::new().await;
    let cleaner = stage.host();
    stage
        .give_up_everywhere(
            async || {
                let _ = cleaner.locks.reap_expired().await.unwrap();
                [
                    stage.expired_case().await,
                    stage.expired_case().await,
                    stage.lapsed_case().await,
                ]
            },
            async |host, _| host.locks.reap_expired().await,
            async |[first, second, lapsed], reaped| {
                stage.is_whole_or_gone(first, reaped.is_some()).await;
                stage.is_whole_or_gone(second, reaped.is_some()).await;
                let rows = stage.rows(lapsed).await;
                assert!(rows == (1, 1) || (rows == (1, 2) && reaped.is_none()));
                let all = Reaped {
                    sessions: 2,
                    grants: 1,
                };
                assert!(reaped.is_none_or(|reaped| reaped == Ok(all)));
            },
        )
        .await;
}

/// It never ends by itself.
#[tokio::test]
async fn the_running_reaper() {
    let stage = Stage::new().await;
    for moment in [Moment::Waiting, Moment::Woken] {
        for polls in 1..30 {
            let host = stage.host();
            let case = stage.expired_case().await;
            let reaper = host.locks.clone().reap_every(Duration::from_millis(1));

            assert_eq!(poll_n(polls, moment, reaper).await, None);

            stage.is_clean(&host).await;
            stage.is_whole_or_gone(&case, false).await;
        }
    }
}

#[tokio::test]
async fn a_ping() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || (),
            async |host, ()| host.pool.ping().await,
            async |(), pong| assert!(pong.is_none_or(|pong| pong == Ok(()))),
        )
        .await;
}

// Calls that wait for what another transaction keeps.

fn session_row(case: &Case) -> String {
    format!(
        "SELECT FROM lock_session WHERE session_id = '{}' FOR UPDATE",
        case.session
    )
}

fn lock_row(case: &Case) -> String {
    format!(
        "SELECT FROM lock_entry WHERE lock_key = '{}' FOR UPDATE",
        case.key("a")
    )
}

#[tokio::test]
async fn a_heartbeat_and_a_close_that_wait_for_the_session() {
    let stage = Stage::new().await;
    let case = stage.case().await;
    let held = session_row(&case);

    stage
        .give_up_waiting(&held, async |host| {
            host.registry.heartbeat(&case.session, LONG).await
        })
        .await;
    stage
        .give_up_waiting(&held, async |host| {
            host.registry.close_session(&case.session).await
        })
        .await;

    stage.is_untouched(&case).await;
}

#[tokio::test]
async fn a_close_that_waits_for_a_lock() {
    let stage = Stage::new().await;
    let case = stage.case().await;

    stage
        .give_up_waiting(&lock_row(&case), async |host| {
            host.registry.close_session(&case.session).await
        })
        .await;

    stage.is_untouched(&case).await;
}

#[tokio::test]
async fn a_heartbeat_that_waits_in_order_to_seal_a_dead_session() {
    let stage = Stage::new().await;
    let case = stage.expired_case().await;

    stage
        .give_up_waiting(&session_row(&case), async |host| {
            host.registry.heartbeat(&case.session, LONG).await
        })
        .await;

    stage.is_untouched(&case).await;
}

#[tokio::test]
async fn calls_that_wait_for_a_lock() {
    let stage = Stage::new().await;
    let case = stage.case().await;
    let (a, held) = (case.key("a"), lock_row(&case));

    stage
        .give_up_waiting(&held, async |host| {
            host.locks.try_insert(&a, &case.session, LONG).await
        })
        .await;
    stage
        .give_up_waiting(&held, async |host| {
            host.locks.acquire(&a, &case.session, LONG, LONG).await
        })
        .await;
    stage
        .give_up_waiting(&held, async |host| {
            host.locks.extend(&a, case.token, LONG).await
        })
        .await;
    stage
        .give_up_waiting(&held, async |host| {
            host.locks.delete_if_owner(&a, case.token).await
        })
        .await;
    stage
        .give_up_waiting(&held, async |host| {
            host.locks.revoke(&a, "ops", "stuck for hours", None).await
        })
        .await;

    stage.is_untouched(&case).await;
    let revoked = "SELECT count(*) FROM lock_revocation";
    assert_eq!(stage.count(revoked).await, 0);
}

#[tokio::test]
async fn a_reaper_and_a_contender_that_wait_for_the_lock_of_a_dead_session() {
    let stage = Stage::new().await;
    let (dead, contender) = (stage.expired_case().await, stage.case().await);
    let held = lock_row(&dead);

    stage
        .give_up_waiting(&held, async |host| host.locks.reap_expired().await)
        .await;
    stage
        .give_up_waiting(&held, async |host| {
            let session = &contender.session;
            host.locks.try_insert(&dead.key("b"), session, LONG).await
        })
        .await;

    stage.is_untouched(&dead).await;
    stage.is_untouched(&contender).await;
}

// Calls that time out.

/// A host with one connection that waits for locks for a minute.
fn impatient(stage: &Stage, deadline: Duration, statement_timeout: Duration) -> Host {
    let mut limits = Limits::default();
    limits.deadline = deadline;
    limits.calls_in_flight = 4;
    let engine = PolicyEngine::new(limits).unwrap();
    let mut options = DatabaseOptions::default();
    options.connections = 1;
    options.lock_timeout = LONG;
    options.statement_timeout = statement_timeout;
    Host::on(
        stage.database.pool_with(&options),
        Policy::load(&engine, tenure::policy::LIFECYCLE).unwrap(),
    )
}

#[tokio::test]
async fn a_call_that_reaches_its_deadline_cancels_its_statement() {
    let stage = Stage::new().await;
    let case = stage.case().await;
    let deadline = Duration::from_millis(300);
    let host = impatient(&stage, deadline, LONG);
    // So that the time goes to the statement, not to the connection.
    host.pool.ping().await.unwrap();
    let holder = stage.database.hold(&case.session).await;

    let beat = host.registry.heartbeat(&case.session, LONG).await;
    assert_eq!(beat, Err(Error::DeadlineExceeded(deadline)));
    stage.is_clean(&host).await;

    let close = host.registry.close_session(&case.session).await;
    assert_eq!(close, Err(Error::DeadlineExceeded(deadline)));
    stage.is_clean(&host).await;

    stage.is_untouched(&case).await;
    drop(holder);
}

#[tokio::test]
async fn a_statement_that_reaches_its_time_limit_is_contention_and_over() {
    let stage = Stage::new().await;
    let case = stage.case().await;
    let host = impatient(&stage, LONG, Duration::from_millis(50));
    let holder = stage.database.hold(&case.session).await;
    holder.batch_execute(&lock_row(&case)).await.unwrap();
    let backend = "SELECT min(pid)::bigint FROM pg_stat_activity
                    WHERE datname = current_database() AND application_name = 'tenure'";
    host.pool.ping().await.unwrap();
    let before = stage.count(backend).await;

    let a = case.key("a");
    let contention = [
        host.registry.heartbeat(&case.session, LONG).await.err(),
        host.registry.close_session(&case.session).await.err(),
        host.locks.try_insert(&a, &case.session, LONG).await.err(),
        host.locks.extend(&a, case.token, LONG).await.err(),
        host.locks.delete_if_owner(&a, case.token).await.err(),
        host.locks.revoke(&a, "ops", "for a test", None).await.err(),
    ];

    for error in contention {
        let text = "canceling statement due to statement timeout".to_owned();
        assert_eq!(error, Some(Error::Contention(text)));
    }
    stage.is_clean(&host).await;
    stage.is_untouched(&case).await;
    // All of that on one connection, which is as good as ever.
    assert_eq!(stage.count(backend).await, before);
    drop(holder);
}

/// [`StoreError`] is what the trait answers; a call through it is given up the same way.
#[tokio::test]
async fn a_statement_on_its_own_is_given_up_like_a_call() {
    let stage = Stage::new().await;
    stage
        .give_up_everywhere(
            async || stage.case().await,
            async |host, case| -> Result<Option<u32>, StoreError> {
                let statements: Arc<dyn Statements> =
                    Arc::new(PinnedStatements::new(host.pool.clone()));
                statements.close_session(case.session.uuid()).await
            },
            async |case, closed| {
                stage.is_whole_or_gone(case, closed.is_some()).await;
                assert!(closed.is_none_or(|closed| closed == Ok(Some(2))));
            },
        )
        .await;
}
