//! Where the server's policy comes from: a file, or the program itself; and what it has to
//! pass.

use std::fs::{self, File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ArgMatches;
use notify::{RecursiveMode, Watcher as _};
use tenure::http::MAX_COMPONENT;
use tenure::policy::LIFECYCLE;
use tenure::rollout::{Candidate, Origin, Requirements, Rollout, TrustedKeys};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::settings::{POLICY_FILE, POLICY_KEY, POLICY_SHA256, Settings};

/// How long a folder has to be quiet before its files are read. Whoever copies a file in
/// place then has the time to finish.
const QUIET: Duration = Duration::from_millis(200);

/// How long to wait for quiet in a folder that is never.
const PATIENCE: Duration = Duration::from_secs(2);

/// The policy that the settings name.
pub fn candidate(settings: &Settings) -> Result<Candidate> {
    let Some(path) = settings.get(POLICY_FILE).map(PathBuf::from) else {
        return Ok(Candidate {
            component: LIFECYCLE.into(),
            signature: None,
            origin: Origin::Embedded,
        });
    };
    let read = || -> Result<Candidate> {
        let mut component = Vec::new();
        // One read of one open file: what is checked is what runs.
        File::open(&path)?
            .take(MAX_COMPONENT as u64 + 1)
            .read_to_end(&mut component)?;
        ensure!(
            component.len() <= MAX_COMPONENT,
            "it has more than {MAX_COMPONENT} bytes"
        );
        let signature = match fs::read_to_string(signature_of(&path)) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => bail!("its signature: {error}"),
        };
        Ok(Candidate {
            component: component.into(),
            signature,
            origin: Origin::File(path.clone()),
        })
    };
    read().with_context(|| format!("cannot read the policy {}", path.display()))
}

/// `FILE.sig`
pub fn signature_of(policy: &Path) -> PathBuf {
    let mut path = policy.as_os_str().to_owned();
    path.push(".sig");
    path.into()
}

/// What policies have to pass.
pub fn requirements(settings: &Settings) -> Result<Requirements> {
    let mut requirements = Requirements::default();
    if let Some(pins) = settings.get(POLICY_SHA256) {
        for pin in pins.split(',').map(str::trim) {
            if pin.len() != 64 || !pin.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(settings.refuse(
                    POLICY_SHA256,
                    "a digest has 64 hexadecimal digits, as sha256sum prints it",
                ));
            }
            requirements.pins.push(pin.to_owned());
        }
    }
    if let Some(path) = settings.get(POLICY_KEY) {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read the keys in policy.key {path}"))?;
        let keys = TrustedKeys::from_pem(&text).with_context(|| format!("policy.key {path}"))?;
        requirements.keys = Some(keys);
    }
    Ok(requirements)
}

/// Applies the settings and the policy's file anew, as they are now. What does not pass
/// changes nothing, and is logged.
pub async fn reload(rollout: &Rollout, matches: &ArgMatches) {
    let outcome = async {
        let settings = Settings::resolve(matches)?;
        let candidate = candidate(&settings)?;
        let options = settings.policy_options()?;
        Ok::<_, anyhow::Error>(rollout.configure(Some(candidate), options).await?)
    }
    .await;
    if let Err(error) = outcome {
        tracing::error!(error = format!("{error:#}"), "policy_rejected");
    }
}

/// Reloads whenever one of the files has changed: the policy, its signature, the
/// configuration. Returns only if their folders cannot be watched.
pub async fn watch(rollout: Rollout, matches: ArgMatches, settings: &Settings) -> Result<()> {
    let mut files: Vec<PathBuf> = Vec::new();
    if let Some(policy) = settings.get(POLICY_FILE).map(PathBuf::from) {
        files.push(signature_of(&policy));
        files.push(policy);
    }
    files.extend(settings.file().map(Path::to_path_buf));
    if files.is_empty() {
        return std::future::pending().await;
    }
    let changed = std::sync::Arc::new(Notify::new());
    let notifier = changed.clone();
    // Whatever happens in the folders: a file may be replaced through a link or by a rename.
    let mut watcher = notify::recommended_watcher(move |_| notifier.notify_one())?;
    for file in &files {
        let folder = match file.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        watcher
            .watch(folder, RecursiveMode::NonRecursive)
            .with_context(|| format!("cannot watch the folder {}", folder.display()))?;
    }
    // They may have changed between the start and here.
    let mut seen = fingerprints(&files);
    reload(&rollout, &matches).await;
    loop {
        changed.notified().await;
        let quiet = async { while timeout(QUIET, changed.notified()).await.is_ok() {} };
        tokio::select! {
            () = quiet => {}
            () = sleep(PATIENCE) => {}
        }
        let now = fingerprints(&files);
        if now != seen {
            seen = now;
            reload(&rollout, &matches).await;
        }
    }
}

/// Tells a file from what it was before.
type Fingerprint = Option<(u64, u64, i64, i64)>;

fn fingerprints(files: &[PathBuf]) -> Vec<Fingerprint> {
    let of = |data: Metadata| (data.ino(), data.len(), data.mtime(), data.mtime_nsec());
    files
        .iter()
        .map(|file| fs::metadata(file).ok().map(of))
        .collect()
}
