//! The program `tenure`, as a process.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, iter};

use serde_json::Value;

/// Generous: what is waited for comes at once on an idle machine.
const LIMIT: Duration = Duration::from_secs(180);

/// Waits for something to come about.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        sleep(Duration::from_millis(10));
    }
}

/// The program's file. Cargo gives a test only the programs of its own package, so it is
/// built once for each run, in the same profile and target folder as the tests. Beside one of
/// them, because cargo then gives the crates that they share the same features, and builds
/// none of them anew.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let tests = env::current_exe().unwrap();
        // target/PROFILE/deps/integration-HASH
        let profile = tests.ancestors().nth(2).and_then(Path::file_name).unwrap();
        let profile = match profile.to_str().unwrap() {
            "debug" => "dev",
            other => other,
        };
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
        // What Cargo has told this program about its package. Some build scripts ask to be
        // run again where that differs, so the two would undo each other's work for ever.
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            let about_us = text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_");
            if about_us || text == "OUT_DIR" {
                cargo.env_remove(&name);
            }
        }
        let built = cargo
            .args([
                "build",
                "--locked",
                "--bin",
                "tenure",
                "--test",
                "integration",
            ])
            .args(["--message-format", "json-render-diagnostics"])
            .args(["--profile", profile, "--target-dir"])
            .arg(target)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap())
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo");
        assert!(built.status.success(), "the program does not build");
        String::from_utf8(built.stdout)
            .unwrap()
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|message| message["target"]["name"] == "tenure")
            .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
            .expect("cargo names the program that it has built")
    })
}

/// A folder for a test's files, and for the private PostgreSQL. In the end no process may
/// have it on its command line.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        // Short, as a socket's path has to be.
        let path = env::temp_dir().join(format!("tenure-cli-{:016x}", fastrand::u64(..)));
        fs::create_dir(&path).unwrap();
        // PostgreSQL may run as another user.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a file or folder in it, as text.
    pub fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.0.join(name), text).unwrap();
        self.at(name)
    }

    /// Waits until no process has the folder on its command line.
    pub fn until_unused(&self) {
        until(
            &format!("the end of what uses {}", self.0.display()),
            || {
                processes_with(self.0.to_str().unwrap())
                    .is_empty()
                    .then_some(())
            },
        );
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.until_unused();
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The ids of the processes that have `text` on their command lines, and those lines.
pub fn processes_with(text: &str) -> Vec<(i32, String)> {
    if let Ok(processes) = fs::read_dir("/proc").map(|all| all.filter_map(Result::ok)) {
        return processes
            .filter_map(|process| {
                let id = process.file_name().to_str()?.parse().ok()?;
                let line = fs::read(process.path().join("cmdline")).ok()?;
                Some((id, String::from_utf8_lossy(&line).replace('\0', " ")))
            })
            .filter(|(_, line)| line.contains(text))
            .collect();
    }
    let listed = Command::new("ps")
        .args(["-Aww", "-o", "pid=,args="])
        .output();
    String::from_utf8_lossy(&listed.expect("/proc or ps").stdout)
        .lines()
        .filter(|line| line.contains(text))
        .filter_map(|line| {
            let (id, line) = line.trim_start().split_once(' ')?;
            Some((id.parse().ok()?, line.to_owned()))
        })
        .collect()
}

/// The program with these arguments, and none of the settings of whoever runs the tests.
pub fn tenure<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("TENURE_") {
            command.env_remove(name);
        }
    }
    command
}

/// What became of a command.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command that is to end by itself.
pub fn run(command: &mut Command) -> Ended {
    let folder = Folder::new();
    let mut child = start(command, &folder);
    let status = ended(&mut child);
    Ended {
        code: status.code(),
        stdout: fs::read_to_string(folder.at("stdout")).unwrap(),
        stderr: fs::read_to_string(folder.at("stderr")).unwrap(),
    }
}

/// Runs the program, which is to fail with this exit status, and returns its complaint.
#[track_caller]
pub fn complaint(command: &mut Command, code: i32) -> String {
    let ended = run(command);
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    ended.stderr
}

fn start(command: &mut Command, folder: &Folder) -> Child {
    command
        .stdout(File::create(folder.at("stdout")).unwrap())
        .stderr(File::create(folder.at("stderr")).unwrap())
        .spawn()
        .unwrap()
}

fn ended(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the program does not end");
        }
        sleep(Duration::from_millis(10));
    }
}

/// A server that runs.
pub struct Server {
    child: Child,
    /// With what it prints.
    folder: Folder,
    pub url: String,
    client: reqwest::Client,
}

impl Server {
    /// On a free port, with these arguments besides.
    pub fn start(arguments: &[&str]) -> Self {
        let arguments = ["serve", "--listen", "127.0.0.1:0"].iter().chain(arguments);
        Self::spawn(&mut tenure(arguments))
    }

    pub fn spawn(command: &mut Command) -> Self {
        let folder = Folder::new();
        let mut child = start(command, &folder);
        let banner = until("the banner", || {
            let banner = fs::read_to_string(folder.at("stdout")).unwrap();
            if let Some(status) = child.try_wait().unwrap() {
                let log = fs::read_to_string(folder.at("stderr")).unwrap();
                panic!("the server ended at its start, {status}: {log}");
            }
            // The last of the three lines is there, to its end.
            banner.contains("count=true\"\n").then_some(banner)
        });
        let url = banner
            .lines()
            .find_map(|line| line.trim().strip_prefix("listening on"))
            .expect(&banner)
            .trim()
            .to_owned();
        Self {
            child,
            folder,
            url,
            client: reqwest::Client::new(),
        }
    }

    pub fn banner(&self) -> String {
        fs::read_to_string(self.folder.at("stdout")).unwrap()
    }

    pub fn stderr(&self) -> String {
        fs::read_to_string(self.folder.at("stderr")).unwrap()
    }

    pub fn id(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: no memory is involved. The child has not been waited for: `wait` and
        // `stop` consume the server.
        assert_eq!(unsafe { libc::kill(self.id(), signal) }, 0);
    }

    /// Waits for its end; with what it has logged.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let status = ended(&mut self.child);
        (status, self.stderr())
    }

    /// Ends it in order.
    #[track_caller]
    pub fn stop(self) {
        self.signal(libc::SIGTERM);
        let (status, log) = self.wait();
        assert!(status.success(), "{status}: {log}");
    }

    pub fn kill(self) {
        self.signal(libc::SIGKILL);
        let _ = self.wait();
    }

    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = method.parse().unwrap();
        self.client.request(method, format!("{}{path}", self.url))
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        answer(self.request("POST", path).json(&body)).await
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        answer(self.request("GET", path)).await
    }

    /// The id of a new session.
    pub async fn open(&self, owner: &str, ttl_millis: u64) -> String {
        let body = serde_json::json!({ "ownerId": owner, "ttlMillis": ttl_millis });
        let (status, session) = self.post("/v1/sessions", body).await;
        assert_eq!(status, 201, "{session}");
        session["sessionId"].as_str().unwrap().to_owned()
    }

    /// The fencing token of a lock that has to be free.
    pub async fn lock(&self, key: &str, session: &str) -> i64 {
        let body = serde_json::json!({ "sessionId": session });
        let (status, grant) = self.post(&format!("/v1/locks/{key}/acquire"), body).await;
        assert_eq!(status, 200, "{grant}");
        grant["fencingToken"].as_i64().unwrap()
    }

    /// What it has logged, each line of which has to be JSON.
    pub fn log(&self) -> Vec<Value> {
        self.stderr()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    }

    /// Waits for an event to be logged with these fields.
    pub fn logged(&self, event: &str, fields: &Value) -> Value {
        until(&format!("{event} with {fields}"), || {
            // The last line may not be whole yet.
            let log = self.stderr();
            let whole = &log[..=log.rfind('\n')?];
            whole
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok())
                .find(|line| {
                    let expected = iter::once(("message", Value::from(event)));
                    let fields = fields.as_object().unwrap().iter();
                    expected
                        .chain(fields.map(|(name, value)| (name.as_str(), value.clone())))
                        .all(|(name, value)| line[name] == value)
                })
        })
    }
}

/// Status and body, which has to be JSON or nothing.
pub async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let body = response.text().await.unwrap();
    let body = match body.as_str() {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}")),
    };
    (status, body)
}

impl Drop for Server {
    fn drop(&mut self) {
        // Where a test fails. A private PostgreSQL ends through its guard.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
