//! Who may open a session, as the settings have it.

/// The settings, as they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `naming.characters`
    pub characters: Option<String>,
    /// `naming.max-length`
    pub max_length: Option<String>,
    /// `deny`
    pub deny: Option<String>,
    /// `allow`
    pub allow: Option<String>,
}

/// Why an owner may not open a session; for the owner to read.
pub type Refusal = String;

impl Settings {
    /// Whether `owner` may open a session.
    pub fn admit(&self, owner: &str) -> Result<(), Refusal> {
        if let Some(max_length) = &self.max_length {
            let max_length: usize = max_length.parse().map_err(|_| {
                "the policy's settings make no sense: naming.max-length has to be a number"
                    .to_owned()
            })?;
            if owner.chars().count() > max_length {
                return Err(format!(
                    "owner-id must have at most {max_length} characters"
                ));
            }
        }
        if let Some(characters) = &self.characters
            && !owner.chars().all(|c| has(characters, c))
        {
            return Err(format!(
                "owner-id must have no other characters than {characters}"
            ));
        }
        if let Some(pattern) = patterns(self.deny.as_deref()).find(|p| matches(p, owner)) {
            return Err(format!("owner-id must not match {pattern}"));
        }
        if let Some(allow) = &self.allow
            && !patterns(Some(allow)).any(|pattern| matches(pattern, owner))
        {
            return Err(format!("owner-id must match one of {allow}"));
        }
        Ok(())
    }
}

fn patterns(setting: Option<&str>) -> impl Iterator<Item = &str> {
    setting
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|pattern| !pattern.is_empty())
}

/// Whether `characters`, such as `a-z0-9.-`, has `wanted`.
fn has(characters: &str, wanted: char) -> bool {
    let mut rest = characters.chars();
    while let Some(from) = rest.next() {
        let mut ahead = rest.clone();
        if let (Some('-'), Some(to)) = (ahead.next(), ahead.next()) {
            if (from..=to).contains(&wanted) {
                return true;
            }
            rest = ahead;
        } else if from == wanted {
            return true;
        }
    }
    false
}

/// Whether the whole of `text` matches `pattern`. Takes time in proportion to the product of
/// the two lengths at the most: only the last `*` is ever tried again.
fn matches(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // What follows the last `*`, and the text that it has not yet been tried on.
    let mut retry = None;
    loop {
        let mut ahead = pattern.clone();
        match ahead.next() {
            Some('*') => {
                pattern = ahead;
                retry = Some((pattern.clone(), text.clone()));
                continue;
            }
            wanted => {
                let mut text_ahead = text.clone();
                match (wanted, text_ahead.next()) {
                    (None, None) => return true,
                    (Some(wanted), Some(got)) if wanted == '?' || wanted == got => {
                        (pattern, text) = (ahead, text_ahead);
                        continue;
                    }
                    _ => {}
                }
            }
        }
        let Some((after_star, untried)) = &mut retry else {
            return false;
        };
        if untried.next().is_none() {
            return false;
        }
        (pattern, text) = (after_star.clone(), untried.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_the_whole_text() {
        for (pattern, text, matching) in [
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("abc", "xabc", false),
            ("ABC", "abc", false),
            ("*", "", true),
            ("*", "anything at all", true),
            ("worker-*", "worker-", true),
            ("worker-*", "worker-7", true),
            ("worker-*", "a worker-7", false),
            ("*-test", "a-test", true),
            ("*-test", "a-test-test", true),
            ("*-test", "a-test-tests", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a**c", "abc", true),
            ("?", "", false),
            ("?", "\u{1F512}", true),
            ("?", "ab", false),
            ("w?-*", "w7-x", true),
            ("*?", "", false),
            ("*?", "ab", true),
            ("*a", "\u{e9}a", true),
        ] {
            assert_eq!(matches(pattern, text), matching, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_time() {
        let pattern = "*a".repeat(500) + "b";
        assert!(!matches(&pattern, &"a".repeat(4096)));
    }

    #[test]
    fn sets_of_characters() {
        for (characters, wanted, has_it) in [
            ("a-z", 'a', true),
            ("a-z", 'm', true),
            ("a-z", 'z', true),
            ("a-z", '-', false),
            ("a-z", 'A', false),
            ("a-z0-9", '5', true),
            ("a-z-", '-', true),
            ("-a-z", '-', true),
            ("-a-z", 'b', true),
            ("abc", 'b', true),
            ("z-a", 'm', false),
            ("\u{e0}-\u{ff}", '\u{e9}', true),
            ("", 'a', false),
        ] {
            assert_eq!(has(characters, wanted), has_it, "{characters:?} {wanted:?}");
        }
    }

    #[test]
    fn owners() {
        let settings = |characters: &str, max_length: &str, deny: &str, allow: &str| {
            let set = |text: &str| (text != "unset").then(|| text.to_owned());
            Settings {
                characters: set(characters),
                max_length: set(max_length),
                deny: set(deny),
                allow: set(allow),
            }
        };
        let none = settings("unset", "unset", "unset", "unset");
        let all = settings("a-z0-9-", "12", "*-test, root", "worker-*,batch-?, root");
        for (settings, owner, refusal) in [
            (&none, "anyone", None),
            (&none, "", None),
            (&all, "worker-7", None),
            (&all, "batch-1", None),
            (
                &all,
                "batch-12",
                Some("match one of worker-*,batch-?, root"),
            ),
            (&all, "Worker-7", Some("no other characters than a-z0-9-")),
            (&all, "worker-123456", Some("at most 12 characters")),
            (&all, "worker-test", Some("not match *-test")),
            (&all, "root", Some("not match root")),
            (&all, "", Some("match one of")),
            (
                &settings("unset", "unset", "unset", ""),
                "a",
                Some("match one of"),
            ),
            (&settings("unset", "unset", " , ", "unset"), "a", None),
            (
                &settings("unset", "few", "unset", "unset"),
                "a",
                Some("naming.max-length"),
            ),
            (
                &settings("", "unset", "unset", "unset"),
                "a",
                Some("no other characters"),
            ),
        ] {
            let answer = settings.admit(owner);
            match refusal {
                None => assert_eq!(answer, Ok(()), "{owner:?}"),
                Some(says) => {
                    let refusal = answer.unwrap_err();
                    assert!(refusal.contains(says), "{owner:?}: {refusal}");
                }
            }
        }
    }
}
