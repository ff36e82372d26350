//! Finding PostgreSQL's server programs, which distributions keep off the PATH.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// PostgreSQL's server programs were not found, or not in the version that is needed.
#[derive(Debug, thiserror::Error)]
#[error(
    "{what}; install PostgreSQL's server (Debian and Ubuntu: apt-get install {package}; Fedora: \
     dnf install postgresql-server; macOS: brew install postgresql), or name a database of your \
     own with --database-url"
)]
pub struct MissingPrograms {
    what: String,
    package: String,
}

/// The folder of a server installation that has all that is needed.
#[derive(Debug)]
pub(super) struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// The installation of the major version `wanted`, or else the newest.
    pub(super) fn find(wanted: Option<&str>) -> Result<Self, MissingPrograms> {
        let mut found: Vec<(u32, PathBuf)> = candidates()
            .into_iter()
            .filter_map(|folder| Some((major_version(&folder)?, folder)))
            .collect();
        // Stable, so that of two of one version the one found first stays first.
        found.sort_by_key(|(major, _)| std::cmp::Reverse(*major));
        let newest = found.first().map(|(major, _)| *major);
        let chosen = match wanted {
            None => found.into_iter().next(),
            Some(wanted) => found
                .into_iter()
                .find(|(major, _)| major.to_string() == wanted),
        };
        match (chosen, wanted, newest) {
            (Some((_, folder)), ..) => Ok(Self { folder }),
            (None, Some(wanted), Some(newest)) => Err(MissingPrograms {
                what: format!(
                    "the data folder is of PostgreSQL {wanted}, and the newest installed here is \
                     {newest}"
                ),
                package: format!("postgresql-{wanted}"),
            }),
            (None, ..) => Err(MissingPrograms {
                what: "PostgreSQL's server programs (initdb, postgres) were not found".to_owned(),
                package: "postgresql".to_owned(),
            }),
        }
    }

    pub(super) fn path(&self, program: &str) -> PathBuf {
        self.folder.join(program)
    }
}

/// Where server programs may be: the PATH, what `pg_config` says, and the folders of
/// Debian, Red Hat and Homebrew.
fn candidates() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = env::var_os("PATH")
        .map(|path| env::split_paths(&path).collect())
        .unwrap_or_default();
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output()
        && let Ok(folder) = String::from_utf8(output.stdout)
    {
        folders.push(PathBuf::from(folder.trim_end()));
    }
    folders.extend(subfolders("/usr/lib/postgresql", "", "bin"));
    folders.extend(subfolders("/usr", "pgsql-", "bin"));
    for prefix in ["/opt/homebrew/opt", "/usr/local/opt"] {
        folders.extend(subfolders(prefix, "postgresql", "bin"));
    }
    folders.retain(|folder| {
        ["initdb", "postgres", "pg_ctl"]
            .iter()
            .all(|program| folder.join(program).is_file())
    });
    folders
}

fn subfolders(parent: &str, prefix: &str, leaf: &str) -> Vec<PathBuf> {
    let Ok(entries) = Path::new(parent).read_dir() else {
        return Vec::new();
    };
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path().join(leaf))
        .collect()
}

/// Of `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)` it is 15.
fn major_version(folder: &Path) -> Option<u32> {
    let output = Command::new(folder.join("postgres"))
        .arg("--version")
        .output()
        .ok()?;
    parse_version(&String::from_utf8_lossy(&output.stdout))
}

fn parse_version(text: &str) -> Option<u32> {
    let number = text.split_whitespace().nth(2)?;
    let digits = number
        .find(|c: char| !c.is_ascii_digit())
        .map_or(number, |end| &number[..end]);
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::parse_version;

    #[test]
    fn versions() {
        for (text, major) in [
            (
                "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)",
                Some(15),
            ),
            ("postgres (PostgreSQL) 17.2", Some(17)),
            ("postgres (PostgreSQL) 18beta1", Some(18)),
            ("postgres (PostgreSQL) devel", None),
            ("", None),
        ] {
            assert_eq!(parse_version(text), major, "{text}");
        }
    }
}
