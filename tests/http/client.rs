//! A server, and a client of it that believes nothing.
//!
//! All requests go through [`Server::check`]: the document has the path, the method, the
//! status and the content type of the answer, and the body is as it says. Of an error the
//! document also names the code.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use axum::extract::Request as AxumRequest;
use axum::middleware::{Next, from_fn};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tenure::http::{App, BearerToken, GuessLimits, Listener, Peer, router};
use tenure::postgres::sql;
use tenure::{DatabaseOptions, SessionId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::database::TestDatabase;
use crate::support::host::{Host, LONG, lifecycle};

/// What the tests' servers grant to a request that asks for nothing.
pub const SESSION_TTL: u64 = 15_000;
pub const LOCK_TTL: u64 = 30_000;

pub const TOKEN: &str = "a-token-of-the-tests";

pub struct Server {
    pub database: TestDatabase,
    pub host: Host,
    address: SocketAddr,
    client: reqwest::Client,
    token: Option<&'static str>,
    document: Value,
    /// By schema.
    validators: Mutex<HashMap<String, jsonschema::Validator>>,
    requests: watch::Receiver<Requests>,
    stop: watch::Sender<bool>,
    /// The method and the path of each route that has answered with a success.
    answered: Mutex<Vec<(String, String)>>,
}

impl Server {
    pub async fn start() -> Self {
        let database = TestDatabase::create().await;
        let host = Host::new(&database);
        Self::of(database, host, |_| {}).await
    }

    /// Whose statements and calls wait for as long as a test may take.
    pub async fn patient() -> Self {
        let database = TestDatabase::create().await;
        let host = Host::patient(&database);
        Self::of(database, host, |_| {}).await
    }

    /// Whose statements hardly wait for a row that another transaction holds.
    pub async fn hasty() -> Self {
        let mut options = DatabaseOptions::default();
        options.lock_timeout = Duration::from_millis(20);
        let database = TestDatabase::create().await;
        let host = Host::on(database.pool_with(&options), lifecycle());
        Self::of(database, host, |_| {}).await
    }

    pub async fn with_policy(policy: &[u8]) -> Self {
        let database = TestDatabase::create().await;
        let host = Host::with_policy(&database, policy);
        Self::of(database, host, |_| {}).await
    }

    pub async fn with_token() -> Self {
        Self::with_limited_token(u32::MAX).await
    }

    /// Where so many wrong ones may come, and no more for as long as a test may take.
    pub async fn with_limited_token(guesses: u32) -> Self {
        let database = TestDatabase::create().await;
        let host = Host::new(&database);
        let mut limits = GuessLimits::default();
        limits.at_once = guesses;
        limits.every = Duration::from_secs(3600);
        let token = BearerToken::new(TOKEN).unwrap().with_limits(limits);
        Self::of(database, host, |app| app.token = Some(token)).await
    }

    pub async fn of(database: TestDatabase, host: Host, adjust: impl FnOnce(&mut App)) -> Self {
        let (stop, stopping) = watch::channel(false);
        let mut app = App {
            registry: host.registry.clone(),
            locks: host.locks.clone(),
            database: host.pool.clone(),
            session_ttl: Duration::from_millis(SESSION_TTL),
            lock_ttl: Duration::from_millis(LOCK_TTL),
            token: None,
            stopping,
        };
        adjust(&mut app);
        let token = app.token.is_some().then_some(TOKEN);
        let (count, requests) = watch::channel(Requests::default());
        let router = router(app).layer(from_fn(move |request, next| {
            counted(count.clone(), request, next)
        }));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = router.into_make_service_with_connect_info::<Peer>();
        tokio::spawn(axum::serve(Listener::new(listener), service).into_future());
        let mut server = Self {
            database,
            host,
            address,
            client: reqwest::Client::new(),
            token,
            document: Value::Null,
            validators: Mutex::default(),
            requests,
            stop,
            answered: Mutex::default(),
        };
        let mut request = server
            .client
            .get(format!("http://{address}/openapi.json"))
            .build()
            .unwrap();
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().unwrap();
            request.headers_mut().insert("authorization", value);
        }
        let answer = server.client.execute(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        server.document = answer.json().await.unwrap();
        server
    }

    pub fn document(&self) -> &Value {
        &self.document
    }

    pub fn stop(&self) {
        self.stop.send(true).unwrap();
    }

    pub fn request(&self, method: &str, target: &str) -> Request<'_> {
        let mut request = Request {
            server: self,
            method: method.to_owned(),
            target: target.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
        };
        if let Some(token) = self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        request
    }

    pub async fn get(&self, target: &str) -> Answer {
        self.request("GET", target).send().await
    }

    pub async fn delete(&self, target: &str) -> Answer {
        self.request("DELETE", target).send().await
    }

    pub async fn post(&self, target: &str, body: Value) -> Answer {
        self.request("POST", target).json(&body).send().await
    }

    /// Opens a session, and returns its id.
    pub async fn open(&self, owner: &str) -> SessionId {
        let answer = self
            .post(
                "/v1/sessions",
                json!({ "ownerId": owner, "ttlMillis": 60_000 }),
            )
            .await;
        answer.is(201)["sessionId"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    }

    pub async fn heartbeat(&self, session: &SessionId) -> Answer {
        let target = format!("/v1/sessions/{session}/heartbeat");
        self.request("POST", &target).send().await
    }

    pub async fn close(&self, session: &SessionId) -> Answer {
        self.delete(&format!("/v1/sessions/{session}")).await
    }

    pub async fn acquire(&self, key: &str, session: &SessionId) -> Answer {
        let body = json!({ "sessionId": session.to_string() });
        self.post(&format!("/v1/locks/{key}/acquire"), body).await
    }

    /// Takes a lock that has to be free, and returns its token.
    pub async fn lock(&self, key: &str, session: &SessionId) -> i64 {
        self.acquire(key, session).await.is(200)["fencingToken"]
            .as_i64()
            .unwrap()
    }

    pub async fn renew(&self, key: &str, token: impl ToString) -> Answer {
        self.request("POST", &format!("/v1/locks/{key}/renew"))
            .header("X-Fencing-Token", token.to_string())
            .send()
            .await
    }

    pub async fn release(&self, key: &str, token: impl ToString) -> Answer {
        self.request("DELETE", &format!("/v1/locks/{key}"))
            .header("X-Fencing-Token", token.to_string())
            .send()
            .await
    }

    /// A connection, to write to it what no client would.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends these very bytes. What they ask for has to be said again, since they may not
    /// even say it themselves; they have to ask for the connection's end.
    pub async fn send_bytes(&self, method: &str, target: &str, bytes: &[u8]) -> Answer {
        let mut connection = self.connect().await;
        let answer = exchange(&mut connection, bytes).await;
        self.check(method, target, None, answer)
    }

    /// Sends what reaches no route, so that the document can have nothing to say but what
    /// an error looks like.
    pub async fn send_garbage(&self, bytes: &[u8]) -> Answer {
        let mut connection = self.connect().await;
        let answer = exchange(&mut connection, bytes).await;
        self.check_error(&answer, &format!("{answer:?}"));
        answer
    }

    /// The database's time.
    pub async fn now(&self) -> String {
        self.database.scalar("SELECT clock_timestamp()::text").await
    }

    /// Waits until some caller has since found the lock that it wants in another's hands:
    /// only then is it looked whose they are.
    pub async fn until_a_caller_waits(&self, since: &str) {
        self.database
            .until(
                1,
                &format!(
                    "SELECT least(count(*), 1) FROM pg_stat_activity \
                     WHERE datname = current_database() AND application_name = 'tenure' \
                       AND query_start > '{since}' AND query = $look${}$look$",
                    sql::ACQUIRE_LOOK
                ),
            )
            .await;
    }

    /// Waits until so many requests are being worked on.
    pub async fn until_in_flight(&self, in_flight: usize) {
        self.until(|requests| requests.in_flight == in_flight).await;
    }

    /// Waits until so many requests were given up in the middle of the work, because their
    /// callers had gone.
    pub async fn until_given_up(&self, given_up: usize) {
        self.until(|requests| requests.given_up == given_up).await;
    }

    async fn until(&self, so: impl FnMut(&Requests) -> bool) {
        let mut requests = self.requests.clone();
        let found = tokio::time::timeout(LONG, requests.wait_for(so)).await;
        let Ok(found) = found else {
            panic!("it did not come to that: {:?}", self.requests.borrow());
        };
        drop(found.unwrap());
    }

    /// The methods that the document has for a path, and the path as the document spells it.
    fn documented(&self, target: &str) -> Option<(&str, &Value)> {
        let path = target.split('?').next().unwrap();
        let paths = self.document["paths"].as_object().unwrap();
        let fits = |template: &str| {
            let (given, wanted): (Vec<_>, Vec<_>) =
                (path.split('/').collect(), template.split('/').collect());
            // A parameter at the path's end is not empty, or else the path is another one.
            given.len() == wanted.len()
                && (given.last() == wanted.last() || given.last() != Some(&""))
                && given
                    .iter()
                    .zip(&wanted)
                    .all(|(given, wanted)| given == wanted || wanted.starts_with('{'))
        };
        paths
            .iter()
            .find(|(template, _)| fits(template))
            .map(|(template, item)| (template.as_str(), item))
    }

    /// Holds an answer against the document.
    fn check(&self, method: &str, target: &str, sent: Option<&[u8]>, answer: Answer) -> Answer {
        let what = format!("{method} {target:.200} -> {answer:?}");
        let head = method == "HEAD";
        if answer.status >= 400 && !head {
            self.check_error(&answer, &what);
        }
        let Some((template, item)) = self.documented(target) else {
            assert!(matches!(answer.status, 401 | 404 | 429), "{what}");
            if answer.status == 404 && !head {
                assert_eq!(answer.body["code"], "NOT_FOUND", "{what}");
            }
            return answer;
        };
        let documented = if head { "get" } else { &method.to_lowercase() };
        // Methods are what they are, letter by letter.
        let operation = match item.get(documented) {
            Some(operation) if head || method == documented.to_uppercase() => operation,
            _ => {
                assert!(matches!(answer.status, 401 | 405 | 429), "{what}");
                if answer.status == 405 {
                    check_allow(&answer, item, &what);
                    assert!(
                        head || answer.body["code"] == "METHOD_NOT_ALLOWED",
                        "{what}"
                    );
                }
                return answer;
            }
        };
        let Some(response) = operation["responses"].get(answer.status.to_string()) else {
            panic!("the document does not have this status: {what}");
        };
        match response.get("content") {
            // The headers are those of the answer that GET would get.
            _ if head => assert!(answer.bytes.is_empty(), "{what}"),
            None => assert!(
                answer.bytes.is_empty() && answer.header("content-type").is_none(),
                "{what}"
            ),
            Some(content) => {
                let content_type = answer.header("content-type").unwrap_or_default();
                let Some(media) = content.get(content_type) else {
                    panic!("the document does not have this type: {what}");
                };
                self.validate(&media["schema"], &answer.body, &what);
            }
        }
        if answer.status >= 400 {
            let described = response["description"].as_str().unwrap();
            let code = answer.body["code"].as_str().unwrap_or_default();
            let named = described
                .split(|c: char| !c.is_ascii_uppercase() && c != '_')
                .any(|word| word == code);
            assert!(
                head || named,
                "the document does not have this code: {what}"
            );
        } else {
            // What the server took, the document allows.
            if let Some(sent) = sent {
                self.check_request(operation, sent, &what);
            }
            let route = (method.to_owned(), template.to_owned());
            self.answered.lock().unwrap().push(route);
        }
        answer
    }

    fn check_error(&self, answer: &Answer, what: &str) {
        assert_eq!(
            answer.header("content-type"),
            Some("application/json"),
            "{what}"
        );
        let envelope = json!({ "$ref": "#/components/schemas/ErrorBody" });
        self.validate(&envelope, &answer.body, what);
        let body = &answer.body;
        assert!(!body["message"].as_str().unwrap().is_empty(), "{what}");
        let trace_id = body["traceId"].as_str().unwrap();
        assert_eq!(trace_id.len(), 32, "{what}");
        assert!(
            trace_id
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)),
            "{what}"
        );
        let retry_safe = body["retrySafe"].as_bool().unwrap();
        assert_eq!(body.get("retryAfterMillis").is_some(), retry_safe, "{what}");
        assert_eq!(answer.header("retry-after").is_some(), retry_safe, "{what}");
        assert_eq!(retry_safe, matches!(answer.status, 429 | 503), "{what}");
    }

    fn check_request(&self, operation: &Value, sent: &[u8], what: &str) {
        let Some(request) = operation.get("requestBody") else {
            return;
        };
        if sent.is_empty() {
            assert_ne!(request["required"], true, "{what}");
            return;
        }
        let schema = &request["content"]["application/json"]["schema"];
        self.validate(schema, &serde_json::from_slice(sent).unwrap(), what);
    }

    fn validate(&self, schema: &Value, value: &Value, what: &str) {
        let mut validators = self.validators.lock().unwrap();
        let validator = validators.entry(schema.to_string()).or_insert_with(|| {
            let whole = json!({ "allOf": [schema], "components": self.document["components"] });
            jsonschema::options()
                .with_draft(jsonschema::Draft::Draft202012)
                .should_validate_formats(true)
                .build(&whole)
                .unwrap()
        });
        let errors: Vec<_> = validator
            .iter_errors(value)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        drop(validators);
        assert!(errors.is_empty(), "{errors:?}: {what}");
    }

    /// The method and the path, as the document spells it, of each route that has answered
    /// with a success.
    pub fn answered(&self) -> Vec<(String, String)> {
        self.answered.lock().unwrap().clone()
    }
}

fn check_allow(answer: &Answer, item: &Value, what: &str) {
    let mut expected: Vec<_> = ["get", "post", "delete"]
        .into_iter()
        .filter(|method| item.get(method).is_some())
        .map(str::to_uppercase)
        .collect();
    if item.get("get").is_some() {
        expected.push("HEAD".to_owned());
    }
    expected.sort();
    let allow = answer.header("allow").unwrap_or_default();
    let mut allowed: Vec<_> = allow
        .split(',')
        .map(|name| name.trim().to_owned())
        .collect();
    allowed.sort();
    assert_eq!(allowed, expected, "{what}");
}

#[derive(Debug, Default)]
struct Requests {
    in_flight: usize,
    given_up: usize,
}

async fn counted(
    count: watch::Sender<Requests>,
    request: AxumRequest,
    next: Next,
) -> axum::response::Response {
    struct Counted {
        count: watch::Sender<Requests>,
        answered: bool,
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            self.count.send_modify(|requests| {
                requests.in_flight -= 1;
                requests.given_up += usize::from(!self.answered);
            });
        }
    }
    count.send_modify(|requests| requests.in_flight += 1);
    let mut counted = Counted {
        count,
        answered: false,
    };
    let response = next.run(request).await;
    counted.answered = true;
    response
}

pub struct Request<'a> {
    server: &'a Server,
    method: String,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

impl Request<'_> {
    pub fn header(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Takes back every header of this name.
    pub fn without(mut self, name: &str) -> Self {
        self.headers
            .retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self
    }

    pub fn json(self, body: &Value) -> Self {
        self.text(body.to_string())
    }

    /// A body that says that it is JSON.
    pub fn text(self, body: impl Into<Vec<u8>>) -> Self {
        self.header("Content-Type", "application/json").body(body)
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub async fn send(self) -> Answer {
        let Self {
            server,
            method,
            target,
            headers,
            body,
        } = self;
        let url = format!("http://{}{target}", server.address);
        let mut request = server
            .client
            .request(method.parse().unwrap(), url)
            .body(body.clone());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let bytes = response.bytes().await.unwrap().to_vec();
        let answer = Answer::new(status, headers, bytes);
        server.check(&method, &target, Some(&body), answer)
    }

    /// Sends it letter by letter, without a client that would tidy it up.
    pub async fn send_as_is(self) -> Answer {
        let mut connection = self.server.connect().await;
        let answer = exchange(&mut connection, &self.bytes()).await;
        self.server
            .check(&self.method, &self.target, Some(&self.body), answer)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!(
            "{} {} HTTP/1.1\r\nHost: tenure\r\nConnection: close\r\n",
            self.method, self.target
        )
        .into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        if !self.body.is_empty() {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n", self.body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// Writes, and reads to the connection's end.
async fn exchange(connection: &mut TcpStream, request: &[u8]) -> Answer {
    // The server may answer, and close, before it has read everything.
    let _ = connection.write_all(request).await;
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(LONG, connection.read_to_end(&mut bytes)).await;
    let read = read.expect("the server keeps the connection open");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let Some((head, _)) = text.split_once("\r\n\r\n") else {
        panic!("no answer: {read:?} {text:?}");
    };
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap();
    let status: u16 = match status.split(' ').collect::<Vec<_>>()[..] {
        ["HTTP/1.1" | "HTTP/1.0", status, ..] => status.parse().unwrap(),
        _ => panic!("{status:?}"),
    };
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        let name: reqwest::header::HeaderName = name.parse().unwrap();
        headers.append(name, value.parse().unwrap());
    }
    Answer::new(status, headers, bytes[head.len() + 4..].to_vec())
}

pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub bytes: Vec<u8>,
    /// Null where there is none.
    pub body: Value,
}

impl Answer {
    fn new(status: u16, headers: HeaderMap, bytes: Vec<u8>) -> Self {
        let body = if bytes.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&bytes)
                .unwrap_or_else(|_| panic!("{status}: {:?}", String::from_utf8_lossy(&bytes)))
        };
        Self {
            status,
            headers,
            bytes,
            body,
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The body of an answer with this status.
    #[track_caller]
    pub fn is(&self, status: u16) -> &Value {
        assert_eq!(self.status, status, "{self:?}");
        &self.body
    }

    /// The body of an error with this status and this code.
    #[track_caller]
    pub fn is_error(&self, status: u16, code: &str) -> &Value {
        assert_eq!(
            (self.status, &self.body["code"]),
            (status, &Value::from(code)),
            "{self:?}"
        );
        &self.body
    }

    /// An error that blames this field.
    #[track_caller]
    pub fn blames(&self, field: &str) {
        let body = self.is_error(400, "VALIDATION_FAILED");
        assert_eq!(body["details"]["field"], field, "{self:?}");
        let message = body["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{field}: ")), "{self:?}");
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:.600}", self.status, self.body.to_string())
    }
}

/// A time as the answers have it, in milliseconds since 1970.
pub fn millis(time: &Value) -> u64 {
    let time = humantime::parse_rfc3339(time.as_str().unwrap()).unwrap();
    let since = time.duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}
