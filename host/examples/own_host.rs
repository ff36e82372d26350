//! A wasmtime host of one's own, without `SessionRegistry`: the capability is linked into an
//! engine and a store that are this program's, and the policy is called directly.
//!
//! ```text
//! cargo run --example own_host -- 'postgres://user@host/lockdb'
//! ```
//!
//! What such a host takes on itself: limits on the policy (there are none here), and holding
//! the verdict against what the database did. What it keeps: the policy can run only the
//! one statement of the call's own name, once, with the caller's own owner or session.

use std::env;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tenure::policy::{
    CallRecord, LIFECYCLE, Operation, StatementsCtx, StatementsView, add_to_linker,
};
use tenure::{Database, DatabaseOptions, PinnedStatements};
use wasmtime::component::{
    Component, ComponentNamedList, ComponentType, InstancePre, Lift, Linker, Lower, TypedFunc,
};
use wasmtime::{Engine, Store};

/// What the store of a call holds. A real host has more in there, and lends a part of it.
struct State {
    statements: StatementsCtx,
    record: CallRecord,
}

impl State {
    fn view(&mut self) -> StatementsView<'_> {
        StatementsView {
            ctx: &self.statements,
            record: &mut self.record,
        }
    }
}

/// The contract's `registry-error`.
#[derive(ComponentType, Lift)]
#[component(variant)]
enum RegistryError {
    #[component(name = "invalid-argument")]
    InvalidArgument(String),
    #[component(name = "refused")]
    Refused(String),
    #[component(name = "contention")]
    Contention(String),
    #[component(name = "store")]
    Store(String),
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidArgument(text) => write!(f, "invalid argument: {text}"),
            Self::Refused(text) => write!(f, "refused: {text}"),
            Self::Contention(text) => write!(f, "contention, try again: {text}"),
            Self::Store(text) => write!(f, "store: {text}"),
        }
    }
}

const REGISTRY: &str = "tenure:registry/session-registry@0.1.0";

struct OwnHost {
    policy: InstancePre<State>,
    statements: StatementsCtx,
}

impl OwnHost {
    fn new(engine: &Engine, database: Database) -> wasmtime::Result<Self> {
        let mut linker = Linker::new(engine);
        add_to_linker(&mut linker, State::view)?;
        let policy = Component::from_binary(engine, LIFECYCLE)?;
        Ok(Self {
            policy: linker.instantiate_pre(&policy)?,
            statements: StatementsCtx::new(Arc::new(PinnedStatements::new(database))),
        })
    }

    /// A store, a record and an instance for each call: no memory between calls.
    async fn call<A, T>(&self, operation: Operation, arguments: A) -> Result<T, Box<dyn Error>>
    where
        A: ComponentNamedList + Lower,
        T: ComponentType + Lift + Send + Sync + 'static,
    {
        let name = operation.name();
        let state = State {
            statements: self.statements.clone(),
            record: CallRecord::new(operation),
        };
        let mut store = Store::new(self.policy.engine(), state);
        let instance = self.policy.instantiate_async(&mut store).await?;
        let interface = instance.get_export_index(&mut store, None, REGISTRY);
        let function = instance
            .get_export_index(&mut store, interface.as_ref(), name)
            .ok_or("the policy does not export it")?;
        let function: TypedFunc<A, (Result<T, RegistryError>,)> =
            instance.get_typed_func(&mut store, function)?;
        let (verdict,) = function.call_async(&mut store, arguments).await?;
        if let Some(violation) = store.data().record.violation() {
            return Err(format!("the policy {violation}").into());
        }
        verdict.map_err(|error| error.to_string().into())
    }

    async fn open_session(&self, owner: &str, ttl_ms: u64) -> Result<String, Box<dyn Error>> {
        let owner = owner.to_owned();
        let operation = Operation::OpenSession {
            owner: owner.clone(),
        };
        self.call(operation, (owner, ttl_ms)).await
    }

    async fn heartbeat(&self, session: &str, ttl_ms: u64) -> Result<bool, Box<dyn Error>> {
        let session = session.to_owned();
        let operation = Operation::Heartbeat {
            session: session.clone(),
        };
        self.call(operation, (session, ttl_ms)).await
    }

    async fn close_session(&self, session: &str) -> Result<u32, Box<dyn Error>> {
        let session = session.to_owned();
        let operation = Operation::CloseSession {
            session: session.clone(),
        };
        self.call(operation, (session,)).await
    }
}

/// Opens a session, keeps it alive, closes it, and finds it dead; returns what it was told.
pub async fn run(database_url: &str) -> Result<[String; 5], Box<dyn Error>> {
    let database = Database::new(database_url, &DatabaseOptions::default())?;
    database.migrate().await?;
    let host = OwnHost::new(&Engine::default(), database)?;

    let session = host.open_session("own-host", 15_000).await?;
    Ok([
        format!("opened {session}"),
        format!("alive: {}", host.heartbeat(&session, 15_000).await?),
        format!("closed, locks: {}", host.close_session(&session).await?),
        format!("alive: {}", host.heartbeat(&session, 15_000).await?),
        match host.open_session(" ", 15_000).await {
            Ok(session) => format!("opened {session}"),
            Err(error) => format!("not opened: {error}"),
        },
    ])
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).ok_or("usage: own_host DATABASE-URL")?;
    for line in run(&url).await? {
        println!("{line}");
    }
    Ok(())
}
