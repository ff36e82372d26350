//! Clients of a host, whose calls are written down: of the embedded one, or by HTTP.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tenure::{FencingToken, SessionId};

use crate::checker::{Acquired, Call, Closed, History, Revoked};
use crate::witness::{Recorder, Witness};

/// Stands for a number that HTTP does not tell.
const UNTOLD: u32 = u32::MAX;

/// HTTP says only that a session was closed; the database says how many locks went with it.
/// Fails where the database knows nothing of a close that was answered, by whichever host.
pub fn fill_in_closes(history: &mut History) -> Result<(), String> {
    for event in &mut history.events {
        if let Call::Close {
            session,
            closed: Some(closed),
        } = &mut event.call
            && closed.existed
        {
            match history.deleted_with.get(session) {
                Some(locks) if closed.locks == UNTOLD => closed.locks = *locks,
                Some(_) => {}
                None => return Err(format!("closed, and the database has lost it: {event:?}")),
            }
        }
    }
    Ok(())
}

#[derive(Clone)]
pub enum Caller {
    Embedded(Witness),
    Http(Http),
}

impl Caller {
    pub async fn open(&self, ttl: Duration) -> Option<SessionId> {
        match self {
            Self::Embedded(host) => host.open(ttl).await,
            Self::Http(host) => host.open(ttl).await,
        }
    }

    pub async fn heartbeat(&self, session: &SessionId, ttl: Duration) -> Option<bool> {
        match self {
            Self::Embedded(host) => host.heartbeat(session, ttl).await,
            Self::Http(host) => host.heartbeat(session, ttl).await,
        }
    }

    pub async fn close(&self, session: &SessionId) {
        match self {
            Self::Embedded(host) => host.close(session).await,
            Self::Http(host) => host.close(session).await,
        }
    }

    /// The token, or where the session is over an error.
    pub async fn acquire(
        &self,
        key: &str,
        session: &SessionId,
        ttl: Duration,
    ) -> Result<Option<FencingToken>, ()> {
        match self {
            Self::Embedded(host) => host.acquire(key, session, ttl).await,
            Self::Http(host) => host.acquire(key, session, ttl).await,
        }
    }

    pub async fn renew(&self, key: &str, token: FencingToken, ttl: Duration) {
        match self {
            Self::Embedded(host) => host.renew(key, token, ttl).await,
            Self::Http(host) => host.renew(key, token, ttl).await,
        }
    }

    pub async fn release(&self, key: &str, token: FencingToken) {
        match self {
            Self::Embedded(host) => host.release(key, token).await,
            Self::Http(host) => host.release(key, token).await,
        }
    }

    pub async fn revoke(&self, key: &str, expected: Option<FencingToken>) {
        match self {
            Self::Embedded(host) => host.revoke(key, expected).await,
            Self::Http(host) => host.revoke(key, expected).await,
        }
    }
}

/// A host that is a process.
#[derive(Clone)]
pub struct Http {
    /// Where it listens, which is elsewhere after it was killed.
    url: Arc<Mutex<String>>,
    client: reqwest::Client,
    recorder: Arc<Recorder>,
}

/// Status and body, or nothing where the outcome is unknown.
type Answer = Option<(u16, Value)>;

/// What an answer says, which has to be one of these: status, `code` of an error, meaning.
fn read<T: Clone>(answer: &Answer, meanings: &[(u16, &str, T)]) -> Option<T> {
    let (status, body) = answer.as_ref()?;
    let code = body["code"].as_str().unwrap_or_default();
    let meaning = meanings
        .iter()
        .find(|(expected, name, _)| (status, code) == (expected, name));
    let (.., meaning) = meaning.unwrap_or_else(|| panic!("{status}: {body}"));
    Some(meaning.clone())
}

fn millis(ttl: Duration) -> Value {
    json!({ "ttlMillis": ttl.as_millis() as u64 })
}

impl Http {
    pub fn new(url: &Arc<Mutex<String>>, recorder: &Arc<Recorder>, patience: Duration) -> Self {
        Self {
            url: Arc::clone(url),
            client: reqwest::Client::builder()
                .timeout(patience)
                .build()
                .unwrap(),
            recorder: Arc::clone(recorder),
        }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        token: Option<FencingToken>,
        body: Option<Value>,
    ) -> Answer {
        let url = format!("{}/v1/{path}", self.url.lock().unwrap());
        let mut request = self.client.request(method, url);
        if let Some(token) = token {
            request = request.header("X-Fencing-Token", token.get());
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        let text = response.text().await.ok()?;
        // 503 is contention, and 500 a database that fails.
        if status >= 500 {
            return None;
        }
        let body = match text.as_str() {
            "" => Value::Null,
            text => serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}")),
        };
        Some((status, body))
    }

    async fn open(&self, ttl: Duration) -> Option<SessionId> {
        let mut body = millis(ttl);
        body["ownerId"] = "racer".into();
        let session = |answer: &Answer| {
            read(answer, &[(201, "", ())])?;
            let (_, body) = answer.as_ref()?;
            Some(body["sessionId"].as_str()?.parse::<SessionId>().unwrap())
        };
        let call = self.ask(Method::POST, "sessions", None, Some(body));
        let answer = self.recorder.record(call, |answer| {
            session(answer).map(|session| Call::Open { session, ttl })
        });
        session(&answer.await)
    }

    async fn heartbeat(&self, session: &SessionId, ttl: Duration) -> Option<bool> {
        let meanings = [
            (200, "", true),
            (404, "SESSION_UNKNOWN", false),
            (410, "SESSION_EXPIRED", false),
        ];
        let path = format!("sessions/{session}/heartbeat");
        let call = self.ask(Method::POST, &path, None, Some(millis(ttl)));
        let answer = self.recorder.record(call, |answer| {
            Some(Call::Heartbeat {
                session: session.clone(),
                ttl,
                alive: read(answer, &meanings),
            })
        });
        read(&answer.await, &meanings)
    }

    async fn close(&self, session: &SessionId) {
        let closed = |existed, locks| Closed { existed, locks };
        let meanings = [
            (204, "", closed(true, UNTOLD)),
            (404, "SESSION_UNKNOWN", closed(false, 0)),
        ];
        let path = format!("sessions/{session}");
        let call = self.ask(Method::DELETE, &path, None, None);
        let describe = |answer: &_| {
            Some(Call::Close {
                session: session.clone(),
                closed: read(answer, &meanings),
            })
        };
        let _ = self.recorder.record(call, describe).await;
    }

    async fn acquire(
        &self,
        key: &str,
        session: &SessionId,
        ttl: Duration,
    ) -> Result<Option<FencingToken>, ()> {
        let mut body = millis(ttl);
        body["sessionId"] = session.to_string().into();
        let understand = |answer: &Answer| {
            let granted = answer.as_ref().and_then(|(_, body)| {
                let token = body["fencingToken"].as_i64()?;
                Some(Acquired::Granted { token, at: None })
            });
            read(
                answer,
                &[
                    (200, "", granted.unwrap_or(Acquired::Held)),
                    (409, "LOCK_CONTENDED", Acquired::Held),
                    (404, "SESSION_UNKNOWN", Acquired::NoSession),
                    (410, "SESSION_EXPIRED", Acquired::NoSession),
                ],
            )
        };
        let path = format!("locks/{key}/acquire");
        let call = self.ask(Method::POST, &path, None, Some(body));
        let describe = |answer: &_| {
            Some(Call::Acquire {
                key: key.to_owned(),
                session: session.clone(),
                ttl,
                answer: understand(answer),
            })
        };
        match understand(&self.recorder.record(call, describe).await) {
            Some(Acquired::Granted { token, .. }) => Ok(Some(token.try_into().unwrap())),
            Some(Acquired::NoSession) => Err(()),
            Some(Acquired::Held) | None => Ok(None),
        }
    }

    async fn renew(&self, key: &str, token: FencingToken, ttl: Duration) {
        let path = format!("locks/{key}/renew");
        let call = self.ask(Method::POST, &path, Some(token), Some(millis(ttl)));
        let describe = |answer: &_| {
            Some(Call::Renew {
                key: key.to_owned(),
                token: token.get(),
                ttl,
                renewed: read(answer, &[(200, "", true), (409, "LOCK_LOST", false)]),
            })
        };
        let _ = self.recorder.record(call, describe).await;
    }

    async fn release(&self, key: &str, token: FencingToken) {
        let path = format!("locks/{key}");
        let call = self.ask(Method::DELETE, &path, Some(token), None);
        let describe = |answer: &_| {
            Some(Call::Release {
                key: key.to_owned(),
                token: token.get(),
                released: read(answer, &[(204, "", true), (409, "LOCK_LOST", false)]),
            })
        };
        let _ = self.recorder.record(call, describe).await;
    }

    async fn revoke(&self, key: &str, expected: Option<FencingToken>) {
        let mut body = json!({ "operator": "ops", "reason": "for a test" });
        if let Some(expected) = expected {
            body["expectedToken"] = expected.get().into();
        }
        let path = format!("locks/{key}/revoke");
        let call = self.ask(Method::POST, &path, None, Some(body));
        let describe = |answer: &Answer| {
            let number = |name: &str| {
                let (_, body) = answer.as_ref()?;
                body[name].as_i64()
            };
            let done = match (number("revokedToken"), number("newTokenFloor")) {
                (Some(token), Some(floor)) => Revoked::Done { token, floor },
                _ => Revoked::No,
            };
            let meanings = [
                (200, "", done),
                (404, "LOCK_NOT_HELD", Revoked::No),
                (409, "TOKEN_MISMATCH", Revoked::No),
            ];
            Some(Call::Revoke {
                key: key.to_owned(),
                expected: expected.map(FencingToken::get),
                answer: read(answer, &meanings),
            })
        };
        let _ = self.recorder.record(call, describe).await;
    }
}

/// The rule that is not in the checker: what was answered is durable.
mod tests {
    use super::*;
    use crate::checker::Event;

    fn closed(existed: bool) -> History {
        let call = Call::Close {
            session: uuid::Uuid::from_u128(1).into(),
            closed: Some(Closed {
                existed,
                locks: UNTOLD,
            }),
        };
        let (from, to) = (Duration::ZERO, Duration::from_millis(1));
        History {
            events: vec![Event { from, to, call }],
            ..History::default()
        }
    }

    #[test]
    fn a_close_that_the_database_has_lost() {
        assert!(fill_in_closes(&mut closed(true)).is_err());
        assert!(fill_in_closes(&mut closed(false)).is_ok());

        let mut kept = closed(true);
        let session = uuid::Uuid::from_u128(1).into();
        kept.deleted_with.insert(session, 3);
        fill_in_closes(&mut kept).unwrap();
        let Call::Close { closed, .. } = &kept.events[0].call else {
            unreachable!();
        };
        assert_eq!(closed.map(|closed| closed.locks), Some(3));
    }
}
