//! A wasmtime host of one's own: the example is run, so that it stays true.

use crate::support::database::TestDatabase;

#[path = "../host/examples/own_host.rs"]
#[expect(dead_code, reason = "the example's main, beside what it runs")]
mod example;

#[tokio::test]
async fn the_example_links_the_capability_without_the_registry() {
    let database = TestDatabase::create_empty().await;

    let told = example::run(&database.url()).await.unwrap();

    let [opened, alive, closed, dead, refused] = &told;
    let session = opened.strip_prefix("opened ").unwrap();
    assert!(session.parse::<tenure::SessionId>().is_ok(), "{session}");
    assert_eq!(alive, "alive: true");
    assert_eq!(closed, "closed, locks: 0");
    assert_eq!(dead, "alive: false");
    assert!(
        refused.starts_with("not opened: invalid argument: "),
        "{refused}"
    );
    assert_eq!(database.sessions().await, 0);
}
