//! Components, mutated: those that load are policies, bounded like any other, and of the rest
//! it is said that they are none.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use tenure::policy::LIFECYCLE;
use tenure::policy::conformance::{self, Inspection, Model, Settings};
use tenure::{Error, Limits, Policy, PolicyEngine, PolicyOptions, Profile, SessionRegistry};
use tokio::sync::mpsc;
use tokio::time::timeout;
use wasmparser::{Parser, Payload};

use crate::support::host::LONG;
use crate::support::policies;
use crate::{mutate, panics, rounds};

const COMPONENTS: &[&[u8]] = &[
    LIFECYCLE,
    policies::ADMISSION,
    policies::CLAMP,
    policies::LOOPS_FOR_EVER,
    policies::EATS_MEMORY,
    policies::LOOKS_AROUND_WASI,
    policies::GROWS_TABLES,
    include_bytes!("../fixtures/components/lifecycle-0.1.0.wasm"),
];

/// Rounds, enough of them for some that load and some that do not.
const FEW: usize = 120;

/// Instructions that take and give the same, so that one can stand for another: comparisons
/// and calculations with two numbers of 32 bits.
const ALIKE: [RangeInclusive<u8>; 2] = [0x46..=0x4f, 0x6a..=0x78];

/// Where the sections of the outermost component are, and of the modules in it.
fn sections(component: &[u8]) -> Vec<Range<usize>> {
    let payloads = Parser::new(0).parse_all(component);
    payloads
        .map_while(Result::ok)
        .filter_map(|payload| match payload {
            Payload::ModuleSection {
                unchecked_range, ..
            } => Some(unchecked_range),
            other => other.as_section().map(|(_, range)| range),
        })
        .collect()
}

/// Where the functions are, and the data that they begin with.
fn code_and_data(component: &[u8]) -> Vec<Range<usize>> {
    let payloads = Parser::new(0).parse_all(component);
    payloads
        .map_while(Result::ok)
        .filter_map(|payload| match payload {
            Payload::CodeSectionEntry(body) => Some(body.range()),
            Payload::DataSection(data) => Some(data.range()),
            _ => None,
        })
        .collect()
}

/// Changes what the code does, and hardly ever whether it is code.
fn miscomputing(rng: &mut Rng, component: &mut [u8]) {
    let places = code_and_data(component);
    for _ in 0..rng.usize(1..=30) {
        let place = rng.choice(&places).unwrap().clone();
        let byte = &mut component[rng.usize(place)];
        if let Some(alike) = ALIKE.iter().find(|alike| alike.contains(byte)) {
            *byte = rng.u8(alike.clone());
        }
    }
}

fn mutated(rng: &mut Rng) -> Vec<u8> {
    let mut component = rng.choice(COMPONENTS).unwrap().to_vec();
    let sections = sections(&component);
    match rng.u8(..10) {
        0 => component.truncate(rng.usize(..component.len())),
        1 => {
            // One over another, whatever its length says.
            let (from, to) = (
                rng.choice(&sections).unwrap().clone(),
                rng.choice(&sections).unwrap().clone(),
            );
            let from = component[from].to_vec();
            component.splice(to, from);
        }
        2 => {
            let again = component[rng.choice(&sections).unwrap().clone()].to_vec();
            component.extend_from_slice(&again);
        }
        3 => {
            let times = rng.usize(1..=8);
            mutate::bytes(rng, &mut component, times);
        }
        4 => {
            // Names, which are text in between.
            let at = rng.usize(..component.len());
            let found = component[at..].iter().position(u8::is_ascii_lowercase);
            if let Some(letter) = found {
                component[at + letter] = rng.u8(b'a'..=b'z');
            }
        }
        5..8 => miscomputing(rng, &mut component),
        // Nothing moves, so that most of it still parses.
        _ => {
            let section = rng.choice(&sections).unwrap().clone();
            for _ in 0..rng.usize(1..=3) {
                let at = rng.usize(section.clone());
                component[at] = match rng.bool() {
                    true => component[at] ^ (1 << rng.u8(..8)),
                    false => rng.u8(..),
                };
            }
        }
    }
    component
}

/// What became of a component: how far it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    Nothing,
    Inspected,
    /// It misbehaved in a call, which failed.
    Failed,
    Answered,
}

/// All that a host does with a component, until it calls it.
async fn reached(engine: &PolicyEngine, component: &[u8]) -> Reached {
    let inspected = Inspection::of(component);
    let mut options = PolicyOptions::default();
    options.profile = Profile::Interpreted;
    let loaded = Policy::load_with(engine, component, &options);
    let policy = match (inspected, loaded) {
        (_, Ok(policy)) => policy,
        (Ok(_), Err(error)) => {
            assert!(!error.to_string().is_empty());
            return Reached::Inspected;
        }
        (Err(_), Err(_)) => return Reached::Nothing,
    };
    let registry = SessionRegistry::new(policy, Arc::new(Model::default()));
    let ttl = Duration::from_secs(10);
    let opened = registry.open_session("tester", ttl).await;
    let id = match &opened {
        Ok(session) => session.id.to_string(),
        Err(_) => "00000000-0000-4000-8000-000000000000".to_owned(),
    };
    let outcomes = [
        opened.map(drop),
        registry.heartbeat(&id, ttl).await.map(drop),
        registry.locks_of(&id).await.map(drop),
        registry.close_session(&id).await.map(drop),
    ];
    // The model has no faults, and the deadline is far behind every limit of a call.
    for outcome in &outcomes {
        let bounded = !matches!(outcome, Err(Error::DeadlineExceeded(_)));
        assert!(bounded, "{outcomes:?}");
    }
    let failed = |outcome| matches!(outcome, &Err(Error::Policy(_)));
    match outcomes.iter().any(failed) {
        true => Reached::Failed,
        false => Reached::Answered,
    }
}

/// What `tenure policy check` does with a component.
fn checked(rng: &mut Rng, component: &[u8], reached: Reached) {
    let mut settings = Settings::default();
    settings.seed = rng.u64(..);
    settings.operations = 20;
    settings.options.profile = Profile::Interpreted;
    let report = conformance::check(&settings, component);
    assert!(!report.passed() || reached >= Reached::Failed);
}

#[tokio::test]
async fn a_broken_component_is_refused_or_bounded() {
    let mut limits = Limits::default();
    limits.calls_in_flight = 4;
    limits.deadline = LONG;
    let engine = PolicyEngine::new(limits).unwrap();

    // A thread of its own, which is waited for no longer than it may take.
    let (done, mut outcomes) = mpsc::unbounded_channel();
    let worker = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let before = panics();
        for mut rng in rounds("components", FEW as u64) {
            let component = mutated(&mut rng);
            let reached = runtime.block_on(reached(&engine, &component));
            if rng.u8(..4) == 0 {
                checked(&mut rng, &component, reached);
            }
            assert_eq!(panics(), before);
            done.send(reached).unwrap();
        }
    });
    let mut all = Vec::new();
    while let Some(reached) = timeout(LONG, outcomes.recv())
        .await
        .expect("one takes longer than all of them should")
    {
        all.push(reached);
    }
    worker.join().unwrap();
    for wanted in [
        Reached::Nothing,
        Reached::Inspected,
        Reached::Failed,
        Reached::Answered,
    ] {
        // In a moment there may be none.
        let found = all.len() < FEW || all.contains(&wanted);
        assert!(found, "{wanted:?} is not among {all:?}");
    }
}
