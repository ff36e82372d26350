//! A PostgreSQL of the benchmark's own, with sessions in it.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use tenure::postgres::private::{DATABASE, PrivateCluster};
use tenure::{Database, DatabaseOptions, PinnedStatements};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

/// What a session's id is made from, so that `pgbench` can make it too.
pub const ID: &str = "md5(n::text)::uuid";

/// The rows of sessions that PostgreSQL has updated by its own count.
pub const UPDATES: &str =
    "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'lock_session'";
/// Those of them that touched no index.
pub const HOT_UPDATES: &str =
    "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'lock_session'";

pub struct Stage {
    cluster: PrivateCluster,
    client: Client,
    pub database: Database,
    pub statements: Arc<PinnedStatements>,
}

impl Stage {
    pub async fn new() -> Result<Self> {
        let cluster = PrivateCluster::start_temporary().await?;
        let url = cluster.url(DATABASE);
        let database = Database::new(&url, &DatabaseOptions::default())?;
        database.migrate().await?;
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        Ok(Self {
            cluster,
            client,
            statements: Arc::new(PinnedStatements::new(database.clone())),
            database,
        })
    }

    /// Lets go of the connections: a backend that ends has told all that it has counted. To
    /// be called once nobody else has a share in them.
    pub fn reconnect(&mut self) -> Result<()> {
        self.database = Database::new(&self.url(), &DatabaseOptions::default())?;
        self.statements = Arc::new(PinnedStatements::new(self.database.clone()));
        Ok(())
    }

    pub fn url(&self) -> String {
        self.cluster.url(DATABASE)
    }

    /// PostgreSQL's version and the settings that decide.
    pub async fn settings(&self) -> Result<String> {
        let row = self
            .client
            .query_one(
                "SELECT current_setting('server_version'), current_setting('fsync'),
                        current_setting('synchronous_commit'), current_setting('shared_buffers')",
                &[],
            )
            .await?;
        let [version, fsync, commit, buffers]: [String; 4] =
            std::array::from_fn(|column| row.get(column));
        Ok(format!(
            "PostgreSQL {version}, fsync {fsync}, synchronous_commit {commit}, \
             shared_buffers {buffers}"
        ))
    }

    /// Nothing but so many sessions, which live for a day.
    pub async fn sessions(&self, how_many: usize) -> Result<Arc<[Uuid]>> {
        self.client
            .batch_execute(&format!(
                "TRUNCATE lock_session CASCADE;
                 INSERT INTO lock_session (session_id, owner_id, expires_at)
                 SELECT {ID}, 'bench', now() + interval '1 day'
                   FROM generate_series(1, {how_many}) AS n;"
            ))
            .await?;
        self.client
            .batch_execute("VACUUM ANALYZE lock_session")
            .await?;
        self.client.batch_execute("CHECKPOINT").await?;
        let rows = self
            .client
            .query("SELECT session_id FROM lock_session", &[])
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    pub async fn execute(&self, sql: &str) -> Result<()> {
        Ok(self.client.batch_execute(sql).await?)
    }

    /// Waits until no session is dead.
    pub async fn until_reaped(&self) -> Result<()> {
        let dead = "SELECT FROM lock_session WHERE owner_id = 'dead' LIMIT 1";
        while self.client.query_opt(dead, &[]).await?.is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// So many locks for each session there is.
    pub async fn locks(&self, each: usize) -> Result<()> {
        self.execute(&format!(
            "INSERT INTO lock_entry
             SELECT session_id || '-' || n, 'bench', session_id,
                    nextval('fencing_token_seq'), now(), expires_at
               FROM lock_session, generate_series(1, {each}) AS n"
        ))
        .await
    }

    /// The one number that a query asks for.
    pub async fn count(&self, query: &str) -> Result<i64> {
        Ok(self.client.query_one(query, &[]).await?.get(0))
    }

    /// Fails unless a query counts so many more than `before`. A backend tells its statistics
    /// with some delay.
    pub async fn has_counted(&self, query: &str, before: i64, answers: u64) -> Result<()> {
        let mut counted = 0;
        for _ in 0..300 {
            counted = self.count(query).await? - before;
            if counted == answers as i64 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("there were {answers} answers, and PostgreSQL counts {counted}: {query}")
    }

    /// Processor time that PostgreSQL has used.
    pub async fn processor_time(&self) -> Result<Duration> {
        let backend: i32 = self
            .client
            .query_one("SELECT pg_backend_pid()", &[])
            .await?
            .get(0);
        Ok(of_children(parent(backend).unwrap_or(0)))
    }

    pub async fn stop(self) -> Result<()> {
        Ok(self.cluster.stop().await?)
    }
}

/// The fields of `/proc/PID/stat` after the name, which is in brackets.
fn stat(pid: i32) -> Option<Vec<i64>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(
        fields
            .split(' ')
            .map(|field| field.parse().unwrap_or(0))
            .collect(),
    )
}

fn parent(pid: i32) -> Option<i32> {
    i32::try_from(*stat(pid)?.get(1)?).ok()
}

/// Of the children of a process, those that have ended included.
fn of_children(pid: i32) -> Duration {
    let ended: i64 = stat(pid).map_or(0, |fields| fields[13] + fields[14]);
    let running: i64 = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(stat)
        .filter(|fields| fields[1] == i64::from(pid))
        .map(|fields| fields[11] + fields[12])
        .sum();
    // SAFETY: it only reads a constant of the system.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Duration::from_secs_f64((ended + running) as f64 / ticks as f64)
}

/// Processor time that this process has used.
pub fn own_processor_time() -> Duration {
    // SAFETY: all zeros is a value of this plain structure, which the call then fills.
    let usage = unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    [usage.ru_utime, usage.ru_stime]
        .map(|time| {
            Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
        })
        .iter()
        .sum()
}
