//! The settings: one table, from which the flags, the environment variables, the keys of the
//! file and `tenure config` are made, so that all of them spell the same key.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Arg, ArgAction, ArgMatches};
use tenure::{Limits, PolicyOptions, Profile};

/// One setting.
pub struct Setting {
    /// As the file spells it. The flag has dashes for the dots; the variable has
    /// underscores and capitals, and begins with `TENURE_`.
    pub key: &'static str,
    /// What it is when nobody says; `None` where there is no value then.
    pub default: Option<&'static str>,
    value_name: &'static str,
    help: &'static str,
    /// May hold a password, and is not shown.
    secret: bool,
}

impl Setting {
    fn flag(&self) -> String {
        self.key.replace('.', "-")
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        format!(
            "TENURE_{}",
            self.key.replace(['.', '-'], "_").to_uppercase()
        )
    }

    fn is_switch(&self) -> bool {
        self.value_name.is_empty()
    }

    /// Whether it is a table of its own: the flag, once for each key; the variable, in lines;
    /// and in the file a table.
    fn is_table(&self) -> bool {
        self.value_name == KEY_VALUE
    }
}

pub const LISTEN: &str = "listen";
pub const DATABASE_URL: &str = "database-url";
pub const DATA_DIR: &str = "data-dir";
pub const DATABASE_CA: &str = "database.ca";
pub const DATABASE_CONNECTIONS: &str = "database.connections";
pub const AUTH_TOKEN_FILE: &str = "auth-token-file";
pub const INSECURE: &str = "insecure";
pub const TLS_CERT: &str = "tls.cert";
pub const TLS_KEY: &str = "tls.key";
pub const SESSION_TTL: &str = "lock.session.ttl";
pub const LOCK_TTL: &str = "lock.default.ttl";
pub const BACKEND: &str = "lock.backend";
pub const REAPER_INTERVAL: &str = "lock.reaper.interval";
pub const ADMIN_LISTEN: &str = "admin.listen";
pub const ADMIN_TOKEN_FILE: &str = "admin.token-file";
pub const POLICY_FILE: &str = "policy.file";
pub const POLICY_SHA256: &str = "policy.sha256";
pub const POLICY_KEY: &str = "policy.key";
pub const POLICY_DEADLINE: &str = "policy.deadline";
pub const POLICY_CALLS: &str = "policy.calls";
pub const POLICY_INSTANCES: &str = "policy.instances";
pub const POLICY_CPU: &str = "policy.cpu";
pub const POLICY_STACK: &str = "policy.stack";
pub const POLICY_TRANSFER: &str = "policy.transfer";
pub const POLICY_HOST_CALLS: &str = "policy.host-calls";
pub const POLICY_PROFILE: &str = "policy.profile";
pub const POLICY_SETTING: &str = "policy.setting";
pub const LOG: &str = "log";

/// Calls of an instance that is reused: what making it costs is then a hundredth of it, and
/// one that leaks has little time to.
const REUSED: u32 = 100;

const CONFIG: &str = "config";
const KEY_VALUE: &str = "KEY=VALUE";

/// All of them.
pub const SETTINGS: &[Setting] = &[
    Setting {
        key: LISTEN,
        default: Some("127.0.0.1:7400"),
        value_name: "ADDRESS",
        help: "Where to listen. Any other address than a loopback one needs auth-token-file, or \
               insecure",
        secret: false,
    },
    Setting {
        key: DATABASE_URL,
        default: None,
        value_name: "URL",
        help: "The PostgreSQL to use, as postgres://user@host/name. Without it, one is started \
               and kept in data-dir",
        secret: true,
    },
    Setting {
        key: DATA_DIR,
        default: None,
        value_name: "FOLDER",
        help: "The folder of the private PostgreSQL. By default /var/lib/tenure for root, and \
               ~/.local/share/tenure for others",
        secret: false,
    },
    Setting {
        key: DATABASE_CA,
        default: None,
        value_name: "FILE",
        help: "The certificates of the authorities that the database's may come from, in PEM. \
               Then there is TLS to the database for certain. By default the system's, and \
               sslmode in database-url says whether there is",
        secret: false,
    },
    Setting {
        key: DATABASE_CONNECTIONS,
        default: Some("16"),
        value_name: "NUMBER",
        help: "The most connections to the database",
        secret: false,
    },
    Setting {
        key: AUTH_TOKEN_FILE,
        default: None,
        value_name: "FILE",
        help: "A file with the token that every request has to show, as `Authorization: Bearer \
               TOKEN`: one line of 16 or more visible ASCII characters",
        secret: false,
    },
    Setting {
        key: INSECURE,
        default: Some("false"),
        value_name: "",
        help: "Listen on an address that others can reach, without a token",
        secret: false,
    },
    Setting {
        key: TLS_CERT,
        default: None,
        value_name: "FILE",
        help: "The certificate to show to clients, followed by those between it and its \
               authority, in PEM. Then there is TLS, and nothing else, on listen. SIGHUP reads \
               it and its key again",
        secret: false,
    },
    Setting {
        key: TLS_KEY,
        default: None,
        value_name: "FILE",
        help: "The private key of tls.cert, in PEM",
        secret: false,
    },
    Setting {
        key: SESSION_TTL,
        default: Some("15s"),
        value_name: "DURATION",
        help: "How long a session lives without a heartbeat, where a request does not say",
        secret: false,
    },
    Setting {
        key: LOCK_TTL,
        default: Some("30s"),
        value_name: "DURATION",
        help: "How long a lock's own lease is, where a request does not say",
        secret: false,
    },
    Setting {
        key: BACKEND,
        default: Some("pg"),
        value_name: "NAME",
        help: "Where sessions and locks are kept. There is `pg`, PostgreSQL",
        secret: false,
    },
    Setting {
        key: REAPER_INTERVAL,
        default: Some("1s"),
        value_name: "DURATION",
        help: "How often to remove dead sessions and lapsed locks",
        secret: false,
    },
    Setting {
        key: ADMIN_LISTEN,
        default: None,
        value_name: "ADDRESS",
        help: "Where operators look at the policy and change it: unix:PATH, or a loopback \
               address, which needs admin.token-file",
        secret: false,
    },
    Setting {
        key: ADMIN_TOKEN_FILE,
        default: None,
        value_name: "FILE",
        help: "A file with the token of the operators, as auth-token-file is for clients",
        secret: false,
    },
    Setting {
        key: POLICY_FILE,
        default: None,
        value_name: "FILE",
        help: "The policy, a component. Replacing the file swaps it, as does SIGHUP. By default \
               the one that the program has",
        secret: false,
    },
    Setting {
        key: POLICY_SHA256,
        default: None,
        value_name: "DIGESTS",
        help: "The SHA-256 of every policy that may be loaded, separated by commas",
        secret: false,
    },
    Setting {
        key: POLICY_KEY,
        default: None,
        value_name: "FILE",
        help: "Ed25519 public keys, in PEM. A policy then needs a signature of one of them beside \
               it, in FILE.sig, and may not be older than one that was accepted before",
        secret: false,
    },
    Setting {
        key: POLICY_DEADLINE,
        default: Some("5s"),
        value_name: "DURATION",
        help: "The longest that a call of the policy takes, the database included",
        secret: false,
    },
    Setting {
        key: POLICY_CALLS,
        default: Some("1024"),
        value_name: "NUMBER",
        help: "The most calls of the policy at once. Others than heartbeats have three quarters of \
               that, as many more wait, and further ones are told to try again",
        secret: false,
    },
    Setting {
        key: POLICY_INSTANCES,
        default: Some("fresh"),
        value_name: "fresh|reuse",
        help: "A fresh instance of the policy for each call, or one for many calls, which is \
               faster, and leaves it to the policy to keep nothing between them",
        secret: false,
    },
    Setting {
        key: POLICY_CPU,
        default: Some("100ms"),
        value_name: "DURATION",
        help: "The most processor time of a call of the policy, waiting aside",
        secret: false,
    },
    Setting {
        key: POLICY_STACK,
        default: Some("262144"),
        value_name: "BYTES",
        help: "The most stack of a call of the policy",
        secret: false,
    },
    Setting {
        key: POLICY_TRANSFER,
        default: Some("262144"),
        value_name: "BYTES",
        help: "The most that a call of the policy may pass to the host at once",
        secret: false,
    },
    Setting {
        key: POLICY_HOST_CALLS,
        default: Some("1000"),
        value_name: "NUMBER",
        help: "How often a call of the policy may call the host",
        secret: false,
    },
    Setting {
        key: POLICY_PROFILE,
        default: Some("strict"),
        value_name: "PROFILE",
        help: "The most room that a policy may take: `strict`, enough for compiled languages, or \
               `interpreted`, for JavaScript and Python",
        secret: false,
    },
    Setting {
        key: POLICY_SETTING,
        default: None,
        value_name: KEY_VALUE,
        help: "A setting of the policy's own, which it reads as wasi:config/store. Can be given \
               several times; in the variable, one a line; in the file, as a table",
        secret: false,
    },
    Setting {
        key: LOG,
        default: Some("info"),
        value_name: "FILTER",
        help: "What to log: error, warn, info, debug or trace, or a filter such as \
               `info,tenure=debug`",
        secret: false,
    },
];

/// The flags, one for each setting.
pub fn arguments() -> Vec<Arg> {
    let config = Arg::new(CONFIG)
        .long(CONFIG)
        .value_name("FILE")
        .help("A TOML file with settings [env: TENURE_CONFIG]");
    std::iter::once(config)
        .chain(SETTINGS.iter().map(|setting| {
            let default = match setting.default {
                Some(default) if !setting.is_switch() => format!(" [default: {default}]"),
                _ => String::new(),
            };
            let arg = Arg::new(setting.key).long(setting.flag()).help(format!(
                "{} [env: {}]{default}",
                setting.help,
                setting.variable()
            ));
            let arg = match setting.key {
                POLICY_FILE => arg.visible_alias("policy"),
                _ => arg,
            };
            if setting.is_switch() {
                arg.action(ArgAction::SetTrue)
            } else if setting.is_table() {
                arg.action(ArgAction::Append).value_name(setting.value_name)
            } else {
                arg.value_name(setting.value_name)
            }
        }))
        .collect()
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File(PathBuf),
    Variable(String),
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// What is in force.
#[derive(Debug)]
pub struct Settings {
    values: BTreeMap<&'static str, (String, Origin)>,
    /// The table [`POLICY_SETTING`].
    policy: BTreeMap<String, (String, Origin)>,
    file: Option<PathBuf>,
}

impl Settings {
    /// From the flags, the environment and the file that they name.
    pub fn resolve(matches: &ArgMatches) -> Result<Self> {
        let file = matches
            .get_one::<String>(CONFIG)
            .cloned()
            .map_or_else(|| variable("TENURE_CONFIG"), |file| Ok(Some(file)))?;
        let mut settings = Self {
            values: BTreeMap::new(),
            policy: BTreeMap::new(),
            file: file.map(PathBuf::from),
        };
        for setting in SETTINGS {
            if let Some(default) = setting.default {
                settings.set(setting, default.to_owned(), &Origin::Default)?;
            }
        }
        if let Some(path) = settings.file.clone() {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read the configuration {}", path.display()))?;
            for (setting, value) in
                from_file(&text).with_context(|| format!("in {}", path.display()))?
            {
                settings.set(setting, value, &Origin::File(path.clone()))?;
            }
        }
        for setting in SETTINGS {
            if let Some(value) = variable(&setting.variable())? {
                let origin = Origin::Variable(setting.variable());
                if setting.is_table() {
                    for line in value.lines().filter(|line| !line.trim().is_empty()) {
                        settings.set(setting, line.to_owned(), &origin)?;
                    }
                } else {
                    settings.set(setting, value, &origin)?;
                }
            }
            let origin = Origin::Flag(format!("--{}", setting.flag()));
            if setting.is_switch() {
                if matches.get_flag(setting.key) {
                    settings.set(setting, "true".to_owned(), &origin)?;
                }
            } else {
                for value in matches
                    .get_many::<String>(setting.key)
                    .into_iter()
                    .flatten()
                {
                    settings.set(setting, value.clone(), &origin)?;
                }
            }
        }
        settings.check()?;
        Ok(settings)
    }

    /// Takes the place of an earlier value; in a table, of the one with the same key.
    fn set(&mut self, setting: &Setting, value: String, origin: &Origin) -> Result<()> {
        if setting.is_table() {
            match value.split_once('=') {
                Some((key, value)) if !key.is_empty() => {
                    let entry = (value.to_owned(), origin.clone());
                    self.policy.insert(key.to_owned(), entry);
                }
                _ => bail!(
                    "{} = {value:?} (from {origin}): write it as {KEY_VALUE}",
                    setting.key
                ),
            }
        } else {
            self.values.insert(setting.key, (value, origin.clone()));
        }
        Ok(())
    }

    /// Every value has to be readable, whichever subcommand needs it.
    fn check(&self) -> Result<()> {
        for key in [
            SESSION_TTL,
            LOCK_TTL,
            REAPER_INTERVAL,
            POLICY_DEADLINE,
            POLICY_CPU,
        ] {
            let bounds = Duration::from_millis(1)..=Duration::from_secs(24 * 60 * 60);
            if !bounds.contains(&self.duration(key)?) {
                return Err(self.refuse(key, "it has to be from 1ms to 24h"));
            }
        }
        let session_ttl = self.duration(SESSION_TTL)?;
        if !(1..=60).contains(&session_ttl.as_secs()) || session_ttl > Duration::from_secs(60) {
            return Err(self.refuse(SESSION_TTL, "it has to be from 1s to 60s"));
        }
        let lock_ttl = self.duration(LOCK_TTL)?;
        if lock_ttl < Duration::from_secs(1) || lock_ttl > tenure::postgres::MAX_LOCK_TTL {
            return Err(self.refuse(LOCK_TTL, "it has to be from 1s to 24h"));
        }
        for key in [
            DATABASE_CONNECTIONS,
            POLICY_CALLS,
            POLICY_HOST_CALLS,
            POLICY_TRANSFER,
        ] {
            if self.parse::<u32>(key)? == 0 {
                return Err(self.refuse(key, "it has to be at least 1"));
            }
        }
        if self.get(BACKEND) != Some("pg") {
            return Err(self.refuse(BACKEND, "the only backend is `pg`"));
        }
        if self.get(DATA_DIR).is_some_and(str::is_empty) {
            return Err(self.refuse(DATA_DIR, "it has to name a folder"));
        }
        // Less would not do for the host's own first frames; more than this, times all calls
        // in flight, is more than a machine has.
        if !(16 * 1024..=16 * 1024 * 1024).contains(&self.parse::<usize>(POLICY_STACK)?) {
            return Err(self.refuse(POLICY_STACK, "it has to be from 16384 to 16777216"));
        }
        self.parse::<Profile>(POLICY_PROFILE)?;
        self.limits()?;
        self.parse::<bool>(INSECURE)?;
        self.parse::<std::net::SocketAddr>(LISTEN)?;
        Ok(())
    }

    /// The file that settings were read from, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// A value, where there is one.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(|(value, _)| value.as_str())
    }

    /// A value that has a default, parsed.
    pub fn parse<T>(&self, key: &str) -> Result<T>
    where
        T: FromStr,
        T::Err: fmt::Display,
    {
        let value = self.get(key).unwrap_or_default();
        value
            .parse()
            .map_err(|error: T::Err| self.refuse(key, &error.to_string()))
    }

    /// A duration that has a default, such as `1s` or `250ms`.
    pub fn duration(&self, key: &str) -> Result<Duration> {
        humantime::parse_duration(self.get(key).unwrap_or_default())
            .map_err(|error| self.refuse(key, &format!("{error}; write it as 15s or 250ms")))
    }

    /// What a call of the policy may use.
    pub fn limits(&self) -> Result<Limits> {
        let mut limits = Limits::default();
        limits.cpu = self.duration(POLICY_CPU)?;
        limits.stack = self.parse(POLICY_STACK)?;
        limits.transfer = self.parse(POLICY_TRANSFER)?;
        limits.host_calls = self.parse(POLICY_HOST_CALLS)?;
        limits.deadline = self.duration(POLICY_DEADLINE)?;
        limits.calls_in_flight = self.parse(POLICY_CALLS)?;
        limits.calls_per_instance = match self.get(POLICY_INSTANCES) {
            Some("fresh") => 1,
            Some("reuse") => REUSED,
            _ => return Err(self.refuse(POLICY_INSTANCES, "it has to be fresh or reuse")),
        };
        Ok(limits)
    }

    /// What the policy is loaded with.
    pub fn policy_options(&self) -> Result<PolicyOptions> {
        let mut options = PolicyOptions::default();
        options.profile = self.parse(POLICY_PROFILE)?;
        options.settings = self
            .policy
            .iter()
            .map(|(key, (value, _))| (key.clone(), value.clone()))
            .collect();
        Ok(options)
    }

    /// Says which value is wrong, where it comes from, and why; a secret one is not shown.
    pub fn refuse(&self, key: &str, why: &str) -> anyhow::Error {
        let secret = SETTINGS.iter().any(|s| s.key == key && s.secret);
        match self.values.get(key) {
            Some((_, origin)) if secret => anyhow!("{key} (from {origin}): {why}"),
            Some((value, origin)) => anyhow!("{key} = {value:?} (from {origin}): {why}"),
            None => anyhow!("{key}: {why}"),
        }
    }

    /// Each setting with its value, for people, and where that comes from.
    pub fn shown(&self) -> impl Iterator<Item = (String, String, String)> {
        SETTINGS.iter().flat_map(|setting| {
            let key = setting.key.to_owned();
            match self.values.get(setting.key) {
                None if setting.is_table() && !self.policy.is_empty() => self
                    .policy
                    .iter()
                    .map(|(name, (value, origin))| {
                        (format!("{key}.{name}"), value.clone(), origin.to_string())
                    })
                    .collect(),
                None => match default_data_dir() {
                    Ok(folder) if setting.key == DATA_DIR && self.get(DATABASE_URL).is_none() => {
                        let folder = folder.display().to_string();
                        vec![(key, folder, Origin::Default.to_string())]
                    }
                    _ => vec![(key, "(none)".to_owned(), String::new())],
                },
                Some((_, origin)) if setting.secret => {
                    vec![(key, "(hidden)".to_owned(), origin.to_string())]
                }
                Some((value, origin)) => vec![(key, value.clone(), origin.to_string())],
            }
        })
    }
}

/// An empty variable counts as none, which is how one is taken back.
fn variable(name: &str) -> Result<Option<String>> {
    match env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => bail!("{name} is not UTF-8"),
    }
}

/// The settings in a file.
fn from_file(text: &str) -> Result<Vec<(&'static Setting, String)>> {
    let table: toml::Table = text.parse().map_err(|error| malformed(text, &error))?;
    let mut flat = Vec::new();
    flatten("", &toml::Value::Table(table), &mut flat)?;
    flat.into_iter()
        .map(|(key, value)| {
            let in_table = SETTINGS.iter().find_map(|setting| {
                let name = key.strip_prefix(setting.key)?.strip_prefix('.')?;
                setting
                    .is_table()
                    .then(|| (setting, format!("{name}={value}")))
            });
            if let Some(entry) = in_table {
                return Ok(entry);
            }
            let setting = SETTINGS
                .iter()
                .find(|setting| setting.key == key)
                .ok_or_else(|| {
                    let known: Vec<_> = SETTINGS.iter().map(|setting| setting.key).collect();
                    anyhow!("there is no setting {key}; there are: {}", known.join(", "))
                })?;
            Ok((setting, value))
        })
        .collect()
}

/// What is wrong, and where; the line itself may hold a password.
fn malformed(text: &str, error: &toml::de::Error) -> anyhow::Error {
    let at = error.span().map_or(0, |span| span.start);
    let line = text.as_bytes()[..at.min(text.len())]
        .iter()
        .filter(|byte| **byte == b'\n')
        .count();
    anyhow!("line {}: {}", line + 1, error.message())
}

/// `[lock.session] ttl = "15s"` and `lock.session.ttl = "15s"` are the same.
fn flatten(prefix: &str, value: &toml::Value, flat: &mut Vec<(String, String)>) -> Result<()> {
    let text = match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let key = if prefix.is_empty() {
                    key.clone()
                } else {
                    format!("{prefix}.{key}")
                };
                flatten(&key, value, flat)?;
            }
            return Ok(());
        }
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Boolean(switch) => switch.to_string(),
        _ => bail!("{prefix} has to be a string, a whole number, true or false"),
    };
    flat.push((prefix.to_owned(), text));
    Ok(())
}

/// Where the private PostgreSQL is kept when nobody says.
pub fn default_data_dir() -> Result<PathBuf> {
    if nix::unistd::Uid::effective().is_root() {
        return Ok(PathBuf::from("/var/lib/tenure"));
    }
    let folder = |name: &str| env::var_os(name).map(PathBuf::from);
    // Relative ones are to be ignored, says the specification.
    if let Some(data) = folder("XDG_DATA_HOME").filter(|data| data.is_absolute()) {
        return Ok(data.join("tenure"));
    }
    match folder("HOME").filter(|home| home.is_absolute()) {
        Some(home) => Ok(home.join(".local/share/tenure")),
        None => bail!("HOME is not set; name a folder with --data-dir"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    fn resolve(arguments: &[&str]) -> Result<Settings> {
        let command = Command::new("tenure").args(super::arguments());
        Settings::resolve(&command.get_matches_from(arguments))
    }

    #[test]
    fn a_session_lives_for_15_s_with_nothing_configured() {
        let settings = resolve(&["tenure"]).unwrap();
        assert_eq!(
            settings.duration(SESSION_TTL).unwrap(),
            Duration::from_secs(15)
        );
        assert_eq!(
            settings.duration(LOCK_TTL).unwrap(),
            Duration::from_secs(30)
        );
        assert_eq!(settings.get(BACKEND), Some("pg"));
        assert_eq!(settings.values[SESSION_TTL].1, Origin::Default);
    }

    #[test]
    fn with_nothing_configured_the_limits_are_the_librarys() {
        let settings = resolve(&["tenure"]).unwrap();
        assert_eq!(settings.limits().unwrap(), Limits::default());
        let options = settings.policy_options().unwrap();
        assert_eq!(options.profile, Profile::Strict);
        assert!(options.settings.is_empty());
    }

    #[test]
    fn the_policys_settings_are_added_up_and_the_last_one_of_a_key_counts() {
        let settings = resolve(&[
            "tenure",
            "--policy-setting",
            "a=1",
            "--policy-setting=b=x=y",
            "--policy-setting=a=2",
            "--policy-setting=c=",
        ])
        .unwrap();
        let options = settings.policy_options().unwrap();
        let pairs: Vec<_> = options
            .settings
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        assert_eq!(pairs, [("a", "2"), ("b", "x=y"), ("c", "")]);
        assert!(settings.shown().any(|row| row
            == (
                "policy.setting.b".to_owned(),
                "x=y".to_owned(),
                "--policy-setting".to_owned()
            )));
    }

    #[test]
    fn a_flag_says_where_it_comes_from() {
        let settings = resolve(&["tenure", "--lock-session-ttl", "20s"]).unwrap();
        assert_eq!(
            settings.values[SESSION_TTL],
            (
                "20s".to_owned(),
                Origin::Flag("--lock-session-ttl".to_owned())
            )
        );
    }

    #[test]
    fn names_follow_from_the_key() {
        let setting = SETTINGS.iter().find(|s| s.key == SESSION_TTL).unwrap();
        assert_eq!(setting.flag(), "lock-session-ttl");
        assert_eq!(setting.variable(), "TENURE_LOCK_SESSION_TTL");
    }

    #[test]
    fn files() {
        let read = |text: &str| {
            from_file(text).map(|settings| {
                settings
                    .into_iter()
                    .map(|(setting, value)| (setting.key, value))
                    .collect::<Vec<_>>()
            })
        };
        let ttl = vec![(SESSION_TTL, "20s".to_owned())];
        assert_eq!(read("lock.session.ttl = '20s'").unwrap(), ttl);
        assert_eq!(read("[lock.session]\nttl = '20s'").unwrap(), ttl);
        assert_eq!(
            read("policy.calls = 7\ninsecure = true").unwrap(),
            vec![
                (INSECURE, "true".to_owned()),
                (POLICY_CALLS, "7".to_owned())
            ]
        );
        assert_eq!(
            read("[policy.setting]\nmax-ttl-ms = 5000\nnaming.characters = 'a-z'").unwrap(),
            vec![
                (POLICY_SETTING, "max-ttl-ms=5000".to_owned()),
                (POLICY_SETTING, "naming.characters=a-z".to_owned())
            ]
        );
        for (text, complaint) in [
            (
                "lock.sesion.ttl = '20s'",
                "there is no setting lock.sesion.ttl",
            ),
            ("lock.session.ttl = [1]", "has to be a string"),
            ("lock.session.ttl = 1.5", "has to be a string"),
            ("\nlisten = ", "line 2"),
            ("\u{0}", ""),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(complaint), "{text}: {error}");
        }
    }

    #[test]
    fn values_that_make_no_sense_are_refused_by_name() {
        for (flag, value) in [
            ("--lock-session-ttl", "0s"),
            ("--lock-session-ttl", "999ms"),
            ("--lock-session-ttl", "61s"),
            ("--lock-session-ttl", "60001ms"),
            ("--lock-session-ttl", "15"),
            ("--lock-session-ttl", "soon"),
            ("--lock-default-ttl", "25h"),
            ("--lock-reaper-interval", "0s"),
            ("--lock-backend", "etcd"),
            ("--database-connections", "0"),
            ("--database-connections", "-1"),
            ("--database-connections", "many"),
            ("--policy-calls", "0"),
            ("--policy-cpu", "0s"),
            ("--policy-deadline", "1ns"),
            ("--lock-reaper-interval", "9999years"),
            ("--policy-stack", "1"),
            ("--policy-transfer", "0"),
            ("--policy-host-calls", "0"),
            ("--policy-instances", "some"),
            ("--policy-profile", "lax"),
            ("--policy-setting", "max-ttl-ms"),
            ("--policy-setting", "=5"),
            ("--listen", "7400"),
            ("--listen", "localhost"),
        ] {
            let argument = format!("{flag}={value}");
            let error = resolve(&["tenure", &argument]).unwrap_err().to_string();
            assert!(error.contains(value) && error.contains(flag), "{error}");
        }
    }
}
