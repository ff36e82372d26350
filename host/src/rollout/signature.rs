//! Signed policies: who may say what runs, and which revision of it.
//!
//! A signature is a small text file beside the component, `FILE.sig`:
//!
//! ```text
//! tenure-policy-signature-v1
//! sha256: <the component's SHA-256, 64 hexadecimal digits>
//! revision: <a number that grows with every policy that is signed>
//! signature: <the Ed25519 signature of the three lines above, in base64>
//! ```

use std::fmt;

use base64ct::{Base64, Encoding};
use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

const HEADER: &str = "tenure-policy-signature-v1";
const PEM_END: &str = "-----END PUBLIC KEY-----";

/// Why a key or a signature is not good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// A file of keys without an Ed25519 key, or with something else.
    #[error(
        "{0}; make a key pair with `openssl genpkey -algorithm ed25519` and its public half with \
         `openssl pkey -pubout`"
    )]
    Key(String),
    /// A signature that is not written as it has to be.
    #[error("the signature cannot be read: {0}")]
    Malformed(&'static str),
    /// A signature of another component.
    #[error("the signature is that of another policy, with sha256 {0}")]
    OtherPolicy(String),
    /// A signature that none of the trusted keys has made.
    #[error("the signature was made by none of the trusted keys, or what it signs was changed")]
    NotTrusted,
}

/// The Ed25519 public keys whose signatures count. Never empty. Several serve to change from
/// one to the next.
#[derive(Clone)]
pub struct TrustedKeys(Vec<VerifyingKey>);

impl TrustedKeys {
    /// Reads PEM: one `PUBLIC KEY` block after another.
    pub fn from_pem(text: &str) -> Result<Self, SignatureError> {
        let mut keys = Vec::new();
        for block in text.trim().split_inclusive(PEM_END) {
            let key = VerifyingKey::from_public_key_pem(block.trim()).map_err(|error| {
                SignatureError::Key(format!("this is no Ed25519 public key in PEM: {error}"))
            })?;
            if key.is_weak() {
                return Err(SignatureError::Key(
                    "the public key is a weak one".to_owned(),
                ));
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(SignatureError::Key("there is no key in it".to_owned()));
        }
        Ok(Self(keys))
    }

    /// Whether `file`, a signature as above, was made by one of the keys for the component
    /// with this SHA-256; if so, the revision that it names.
    pub fn verify(&self, sha256: &str, file: &str) -> Result<u64, SignatureError> {
        let signed = Signed::parse(file)?;
        let trusted = self.0.iter().any(|key| {
            key.verify_strict(signed.message.as_bytes(), &signed.signature)
                .is_ok()
        });
        if !trusted {
            return Err(SignatureError::NotTrusted);
        }
        if signed.sha256 != sha256 {
            return Err(SignatureError::OtherPolicy(signed.sha256.to_owned()));
        }
        Ok(signed.revision)
    }
}

impl fmt::Debug for TrustedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrustedKeys({})", self.0.len())
    }
}

/// Signs the component with this SHA-256 as `revision`. `key` is an Ed25519 private key in PEM
/// (PKCS #8). Returns the text of the signature's file.
pub fn sign(key: &str, sha256: &str, revision: u64) -> Result<String, SignatureError> {
    let key = SigningKey::from_pkcs8_pem(key.trim()).map_err(|error| {
        SignatureError::Key(format!("this is no Ed25519 private key in PEM: {error}"))
    })?;
    let message = format!("{HEADER}\nsha256: {sha256}\nrevision: {revision}\n");
    let signature = key.sign(message.as_bytes()).to_bytes();
    Ok(format!(
        "{message}signature: {}\n",
        Base64::encode_string(&signature)
    ))
}

struct Signed<'a> {
    message: &'a str,
    sha256: &'a str,
    revision: u64,
    signature: Signature,
}

impl<'a> Signed<'a> {
    /// As strict as can be: one text has one meaning.
    fn parse(file: &'a str) -> Result<Self, SignatureError> {
        use SignatureError::Malformed;
        let at = file
            .find("signature: ")
            .ok_or(Malformed("there is no line `signature: `"))?;
        let (message, last) = file.split_at(at);
        let mut lines = message.split('\n');
        if lines.next() != Some(HEADER) {
            return Err(Malformed(
                "it does not begin with the line tenure-policy-signature-v1",
            ));
        }
        let mut field = |name: &str, missing| {
            lines
                .next()
                .and_then(|line| line.strip_prefix(name))
                .ok_or(Malformed(missing))
        };
        let sha256 = field("sha256: ", "the second line is not `sha256: ...`")?;
        let revision = field("revision: ", "the third line is not `revision: ...`")?;
        if (lines.next(), lines.next()) != (Some(""), None) {
            return Err(Malformed("`signature: ` is not the fourth line"));
        }
        if revision.starts_with(['+', '0']) {
            return Err(Malformed("the revision is not a number from 1 up"));
        }
        let revision: i64 = revision
            .parse()
            .ok()
            .filter(|revision| *revision > 0)
            .ok_or(Malformed("the revision is not a number from 1 up"))?;
        let signature = last["signature: ".len()..]
            .strip_suffix('\n')
            .ok_or(Malformed("the last line does not end"))?;
        let signature = Base64::decode_vec(signature)
            .ok()
            .and_then(|bytes| Signature::from_slice(&bytes).ok())
            .ok_or(Malformed("the signature is not 64 bytes in base64"))?;
        Ok(Self {
            message,
            sha256,
            revision: revision.unsigned_abs(),
            signature,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
        -----END PRIVATE KEY-----\n";
    const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n\
        -----END PUBLIC KEY-----\n";
    const OTHER: &str = "-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VwAyEAPUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=\n\
        -----END PUBLIC KEY-----\n";

    fn digest(fill: char) -> String {
        fill.to_string().repeat(64)
    }

    #[test]
    fn what_a_trusted_key_has_signed_is_good() {
        let file = sign(PRIVATE, &digest('a'), 7).unwrap();
        for keys in [PUBLIC.to_owned(), format!("{OTHER}{PUBLIC}")] {
            let keys = TrustedKeys::from_pem(&keys).unwrap();
            assert_eq!(keys.verify(&digest('a'), &file), Ok(7));
        }
    }

    #[test]
    fn everything_else_is_not() {
        let keys = TrustedKeys::from_pem(PUBLIC).unwrap();
        let good = sign(PRIVATE, &digest('a'), 7).unwrap();
        let verify = |file: &str| keys.verify(&digest('a'), file).unwrap_err();

        assert_eq!(
            keys.verify(&digest('b'), &good),
            Err(SignatureError::OtherPolicy(digest('a')))
        );
        assert_eq!(
            TrustedKeys::from_pem(OTHER)
                .unwrap()
                .verify(&digest('a'), &good),
            Err(SignatureError::NotTrusted)
        );
        assert_eq!(
            verify(&good.replace("revision: 7", "revision: 8")),
            SignatureError::NotTrusted
        );
        assert_eq!(
            verify(&good.replace(&digest('a'), &digest('b'))),
            SignatureError::NotTrusted
        );
        let at = good.find("signature: ").unwrap();
        for malformed in [
            "",
            "\n\n\n\n",
            "signature: ",
            &good[..at],
            &format!("{}signature: \n", &good[..at]),
            &format!("{}signature: AAAA\n", &good[..at]),
            &good[..good.len() - 1],
            &good.replace("-v1", "-v2"),
            &good.replace("revision: 7", "revision: 0"),
            &good.replace("revision: 7", "revision: 07"),
            &good.replace("revision: 7", "revision: +7"),
            &good.replace("revision: 7", "revision: -7"),
            &good.replace("revision: 7", "revision: 9223372036854775808"),
            &good.replace("revision: 7", "revision: "),
            &good.replace('\n', "\r\n"),
            &format!("{good}\n"),
            &format!("{good}{good}"),
            &format!(" {good}"),
        ] {
            let error = verify(malformed);
            assert!(
                matches!(error, SignatureError::Malformed(_)),
                "{malformed:?}: {error:?}"
            );
        }
    }

    #[test]
    fn a_file_without_a_key_trusts_nobody() {
        for text in ["", "\n", "no key", PRIVATE, &PUBLIC[..80]] {
            let error = TrustedKeys::from_pem(text).unwrap_err();
            assert!(matches!(error, SignatureError::Key(_)), "{text}: {error}");
        }
        assert!(TrustedKeys::from_pem(&format!("{PUBLIC}rubbish")).is_err());
    }
}
