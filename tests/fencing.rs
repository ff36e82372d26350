//! Fencing: the example is run, so that it stays true; and tokens after a restore.

use std::time::Duration;

use tenure::{Error, FencingToken};

use crate::support::database::TestDatabase;
use crate::support::host::Host;
use crate::support::program::{complaint, run, tenure};

#[path = "../host/examples/fenced_resource.rs"]
#[expect(dead_code, reason = "the example's main, beside what it runs")]
mod example;

fn token(number: i64) -> FencingToken {
    number.try_into().unwrap()
}

#[tokio::test]
async fn the_late_write_of_a_holder_that_was_stopped_is_refused() {
    let database = TestDatabase::create_empty().await;

    let told = example::run(&database.url(), Duration::from_millis(200)).await;

    let told = told.unwrap();
    let [stopped, taken] = told.tokens;
    assert!(stopped < taken);
    assert_eq!(told.late, Err(taken));
    assert_eq!(told.lines, ["first: 1", "second: 1", "second: 2"]);
}

#[tokio::test]
async fn every_token_after_a_raise_is_above_it_and_none_is_lowered() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(crate::support::host::LONG).await;
    // Of a sequence that was never drawn from.
    assert_eq!(host.locks.raise_fence(token(1)).await, Ok(token(1)));
    assert_eq!(host.lock("a", &session).await.token, token(2));

    assert_eq!(host.locks.raise_fence(token(1000)).await, Ok(token(1000)));
    assert_eq!(host.lock("a", &session).await.token, token(1001));
    assert_eq!(host.locks.raise_fence(token(7)).await, Ok(token(1001)));
    assert_eq!(host.lock("a", &session).await.token, token(1002));

    let last = host.locks.raise_fence(token(i64::MAX)).await;
    assert!(matches!(last, Err(Error::InvalidArgument(_))), "{last:?}");
}

#[tokio::test]
async fn a_raise_waits_for_whoever_draws_a_token_and_draws_none_back() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let drawing = database.begin("SELECT nextval('fencing_token_seq')").await;

    let raised = host.locks.raise_fence(token(1000)).await;
    assert!(matches!(raised, Err(Error::Contention(_))), "{raised:?}");

    drawing.batch_execute("COMMIT").await.unwrap();
    assert_eq!(host.locks.raise_fence(token(1000)).await, Ok(token(1000)));
}

#[tokio::test]
async fn the_command_raises_the_fence_of_a_restored_database() {
    let database = TestDatabase::create().await;
    let url = database.url();
    let fence = |above: &str| tenure(["fence", "raise", "--above", above, "--database-url", &url]);

    let raised = run(&mut fence("5000"));
    assert_eq!(raised.code, Some(0), "{raised:?}");
    assert_eq!(
        raised.stdout,
        "every token from now on is greater than 5000\n"
    );
    let host = Host::new(&database);
    let session = host.open(crate::support::host::LONG).await;
    assert_eq!(host.lock("a", &session).await.token, token(5001));

    for wrong in ["0", "-1", "many", "9223372036854775808"] {
        complaint(&mut fence(wrong), 2);
    }
    complaint(&mut fence("9223372036854775807"), 1);
}
