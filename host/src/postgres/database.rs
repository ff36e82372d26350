//! Connections: the pool, and the guard that keeps a connection with unfinished business
//! from going back to it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError,
    RecyclingMethod, Runtime, TimeoutType,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_postgres::Config;

use super::fault::{CONNECT_TIMED_OUT, Fault, StoreError, translate};
use super::tls::{Connector, TrustedAuthorities};

/// The most connections that only heartbeats use: for both of the batches that run at once, and
/// for those that run alone because a batch left them out.
const MOST_KEPT: usize = 4;

/// How many calls may wait for each connection that they can have. What waits behind these
/// would be answered late if the database is slow, and is no loss if it is fast.
const QUEUE: usize = 64;

/// How a host reaches its database.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DatabaseOptions {
    /// The most connections at once. A quarter of them, at least one and at most four, is kept
    /// for heartbeats, unless there is only one.
    pub connections: usize,
    /// The longest that a call that is no heartbeat waits for others to give a connection back,
    /// which then is contention: longer than a disturbance lasts, and no longer than everybody
    /// may wait while there is too much to do. Where 64 calls for each connection wait already,
    /// further ones are contention at once.
    pub queue_timeout: Duration,
    /// The longest that a call waits for a new connection, and a heartbeat for a free one.
    pub connect_timeout: Duration,
    /// The longest that a statement waits for another one's lock, which then is
    /// contention. Far under the shortest TTL in use: a heartbeat that waited would
    /// otherwise be judged by a clock that has moved on.
    pub lock_timeout: Duration,
    /// The longest that a statement runs, which then is contention: the server ends it. A
    /// server, or a network, that says nothing any more is given up after twice this time,
    /// which is contention too; that connection is not used again.
    pub statement_timeout: Duration,
    /// Whom to believe who the database is. With this, there is TLS on every connection;
    /// `sslmode=disable` is refused. Without it `sslmode` says whether there is, and the
    /// system's authorities are believed.
    pub authorities: Option<TrustedAuthorities>,
}

impl Default for DatabaseOptions {
    fn default() -> Self {
        Self {
            connections: 16,
            queue_timeout: Duration::from_millis(500),
            connect_timeout: Duration::from_secs(3),
            lock_timeout: Duration::from_millis(250),
            statement_timeout: Duration::from_secs(5),
            authorities: None,
        }
    }
}

/// A pool of connections to one database. Cloning it shares the pool.
#[derive(Clone, Debug)]
pub struct Database {
    pool: Pool,
    /// The connections that others than heartbeats may have.
    common: Arc<Semaphore>,
    /// Places to wait for these.
    queue: Arc<Semaphore>,
    /// As given, without the settings of the pool's connections.
    config: Config,
    connector: Connector,
    lock_timeout: Duration,
    statement_timeout: Duration,
    connect_timeout: Duration,
    queue_timeout: Duration,
}

impl Database {
    /// A pool for the database at `url`, a connection string of either of libpq's forms
    /// (`postgres://user@host/name` or `host=... dbname=...`). Connects at the first use,
    /// so this neither waits nor needs the database to be up.
    ///
    /// Its `sslmode` is `disable`, `require`, or by default `prefer`: TLS if the server has it.
    /// Where there is TLS, the server has to show a certificate that is valid for the host's
    /// name and comes from a trusted authority, as with libpq's `verify-full`; there is no
    /// falling back.
    ///
    /// Fails with [`StoreError::Other`] where `url` cannot be read.
    pub fn new(url: &str, options: &DatabaseOptions) -> Result<Self, StoreError> {
        let mut given: Config = url.parse()?;
        if given.get_application_name().is_none() {
            given.application_name("tenure");
        }
        given.connect_timeout(options.connect_timeout);
        let connector = Connector::settle(&mut given, options.authorities.as_ref())?;

        let settings = [
            // Bounds the wait for a row: see `lock_timeout`.
            ("lock_timeout", millis(options.lock_timeout)),
            ("statement_timeout", millis(options.statement_timeout)),
            // The last line of defence: no transaction of ours is ever left idle.
            (
                "idle_in_transaction_session_timeout",
                millis(options.statement_timeout),
            ),
            // The statements rest on what each of these means, whatever the database's
            // own defaults are.
            ("default_transaction_isolation", "read committed".to_owned()),
            ("default_transaction_read_only", "off".to_owned()),
            // An answer of `true` is durable.
            ("synchronous_commit", "on".to_owned()),
            // A plan made for one argument is no plan for the next.
            ("plan_cache_mode", "force_generic_plan".to_owned()),
            // Nor is one that was made while the table was small: every statement that
            // has an index uses it, row by row. What has none is not affected.
            ("enable_seqscan", "off".to_owned()),
            ("enable_hashjoin", "off".to_owned()),
            ("enable_mergejoin", "off".to_owned()),
            ("enable_bitmapscan", "off".to_owned()),
            // No statement is worth compiling, and the costs that the above adds say so.
            ("jit", "off".to_owned()),
        ];
        // By statement, since a pooler takes no settings when a connection is made.
        let set = settings.map(|(name, value)| format!("SET {name} = '{value}';"));
        let set: Arc<str> = set.concat().into();
        let limit = options.connect_timeout;
        let set_up = Hook::async_fn(move |client: &mut ClientWrapper, _| {
            let set = Arc::clone(&set);
            Box::pin(async move {
                match timeout(limit, client.batch_execute(&set)).await {
                    Ok(done) => done.map_err(HookError::Backend),
                    Err(_) => Err(HookError::message(CONNECT_TIMED_OUT)),
                }
            })
        });

        let manager = Manager::from_config(
            given.clone(),
            connector.0.clone(),
            // Cheapest, and enough: `Connection` gives a connection back only when all
            // that it sent is answered, and no method checks what `Connection` rules out.
            ManagerConfig {
                recycling_method: RecyclingMethod::Fast,
            },
        );
        let limit = Some(limit);
        let pool = Pool::builder(manager)
            .max_size(options.connections)
            .wait_timeout(limit)
            .create_timeout(limit)
            .recycle_timeout(limit)
            .post_create(set_up)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| StoreError::Other(error.to_string()))?;
        // Of one connection, none can be kept.
        let kept = (options.connections / 4).clamp(1, MOST_KEPT);
        let common = options.connections.saturating_sub(kept).max(1);
        Ok(Self {
            pool,
            common: Arc::new(Semaphore::new(common)),
            queue: Arc::new(Semaphore::new(common * QUEUE)),
            config: given,
            connector,
            lock_timeout: options.lock_timeout,
            statement_timeout: options.statement_timeout,
            connect_timeout: options.connect_timeout,
            queue_timeout: options.queue_timeout,
        })
    }

    /// Answers once the database does. Any fault is an error.
    pub async fn ping(&self) -> Result<(), StoreError> {
        // A host that is busy is not one whose database does not answer.
        let connection = self.urgent_connection().await?;
        let outcome = connection
            .bounded(connection.simple_query("SELECT 1"))
            .await;
        connection.finish(outcome).map(drop)
    }

    /// A connection of its own, outside of the pool and without its settings, for work that
    /// takes its time. Only connecting does not.
    pub(crate) async fn dedicated(&self) -> Result<tokio_postgres::Client, StoreError> {
        // The configuration's own limit ends when the socket is connected, and a server may
        // still say nothing after that.
        let (client, connection) = timeout(
            self.connect_timeout,
            self.config.connect(self.connector.0.clone()),
        )
        .await
        .map_err(|_| translate(Fault::TimedOut(CONNECT_TIMED_OUT)))??;
        // Ends when the client is dropped.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::warn!(%error, "a dedicated database connection ended");
            }
        });
        Ok(client)
    }

    pub(super) fn lock_timeout(&self) -> Duration {
        self.lock_timeout
    }

    pub(super) fn statement_timeout(&self) -> Duration {
        self.statement_timeout
    }

    /// Takes a connection from the pool, waiting for one at most as long as configured, and not
    /// at all where too many wait already.
    pub(crate) async fn connection(&self) -> Result<Connection, StoreError> {
        let place = self.queue.try_acquire().map_err(|_| {
            StoreError::Contention(format!(
                "more calls than the database keeps up with: {QUEUE} wait for each connection"
            ))
        })?;
        let share = timeout(self.queue_timeout, self.common.clone().acquire_owned())
            .await
            .map_err(|_| PoolError::Timeout(TimeoutType::Wait))?
            .expect("it is never closed");
        drop(place);
        self.take(Some(share)).await
    }

    /// Like [`connection`](Self::connection), past all who wait for that: a session must not
    /// die of a queue. For what is worth it, and as brief as a heartbeat.
    pub(crate) async fn urgent_connection(&self) -> Result<Connection, StoreError> {
        self.take(None).await
    }

    async fn take(&self, share: Option<OwnedSemaphorePermit>) -> Result<Connection, StoreError> {
        Ok(Connection {
            object: Some(self.pool.get().await?),
            _share: share,
            silence_limit: self.statement_timeout * 2,
            connector: self.connector.clone(),
            cancel_limit: self.connect_timeout,
        })
    }
}

/// Whether the error is the connection's end.
fn has_ended(error: &tokio_postgres::Error) -> bool {
    error.is_closed()
        || error.code().is_some_and(|code| {
            // FATAL: the server hangs up next.
            code.code().starts_with("57P") || code.code().starts_with("08")
        })
}

fn millis(duration: Duration) -> String {
    // 0 would turn a time-out off.
    duration.as_millis().max(1).to_string()
}

/// A connection that is in use, and is presumed to have unfinished business.
///
/// [`finish`](Self::finish) gives it back to the pool. Dropped without that (a cancelled
/// call, a deadline, a server that is silent) it is taken out of the pool, what it runs is
/// cancelled, and its socket is closed, upon which PostgreSQL rolls back.
pub(crate) struct Connection {
    object: Option<Object>,
    /// Given back with the connection.
    _share: Option<OwnedSemaphorePermit>,
    silence_limit: Duration,
    connector: Connector,
    cancel_limit: Duration,
}

/// Why what was asked of a connection has no answer.
pub(crate) enum Unanswered {
    /// It failed.
    Failed(tokio_postgres::Error),
    /// Nothing was heard for this long, and something may still be under way.
    Silence(Duration),
}

impl From<tokio_postgres::Error> for Unanswered {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Failed(error)
    }
}

impl Connection {
    /// Waits for what the connection was asked, but not for ever: the server's own limits end
    /// a statement, and this one is for a connection that has gone silent.
    pub(crate) async fn bounded<T>(
        &self,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Unanswered> {
        match timeout(self.silence_limit, work).await {
            Ok(outcome) => Ok(outcome?),
            Err(_) => Err(Unanswered::Silence(self.silence_limit)),
        }
    }

    /// Gives the connection back, unless it is silent or has broken. To be called when
    /// everything that was sent has been answered and no transaction is open.
    pub(crate) fn finish<T, E: Into<Unanswered>>(
        mut self,
        outcome: Result<T, E>,
    ) -> Result<T, StoreError> {
        match outcome.map_err(Into::into) {
            Err(Unanswered::Silence(limit)) => Err(translate(Fault::TimedOut(&format!(
                "the database was silent for {} ms",
                limit.as_millis()
            )))),
            Err(Unanswered::Failed(error)) => {
                // What the server reports is an answer. After anything else, such as nonsense
                // on the wire, nobody knows what the connection would say next.
                if has_ended(&error) {
                    // It may not have noticed yet, and nobody else is to run into it.
                    drop(self.object.take().map(Object::take));
                } else if error.as_db_error().is_some() {
                    drop(self.object.take());
                }
                Err(error.into())
            }
            Ok(value) => {
                drop(self.object.take());
                Ok(value)
            }
        }
    }
}

impl Deref for Connection {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        // `finish` consumes the guard, and `drop` is the only other place that empties it.
        self.object.as_ref().expect("a connection until the end")
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(object) = self.object.take() else {
            return;
        };
        let client = Object::take(object);
        let limit = self.cancel_limit;
        let connector = self.connector.0.clone();
        // What has ended has no statement to cancel.
        if client.is_closed() {
            return;
        }
        // Outside of a runtime there is nobody left to wait for a statement either.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // Without this the statement would go on, with its locks, until it ends
                // by itself. Closing the socket alone does not stop it.
                match timeout(limit, client.cancel_token().cancel_query(connector)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "could not cancel an abandoned statement");
                    }
                    Err(_) => tracing::debug!(
                        "could not cancel an abandoned statement: the server is silent"
                    ),
                }
                drop(client);
            });
        }
    }
}
