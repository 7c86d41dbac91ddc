//! Encryption of a store's segments by AES-256-GCM.
//!
//! The first key encrypts, and all decrypt. Segments that are not encrypted are read as well, so that keys can be added
//! and changed while workers run. The head is not encrypted: it has no texts.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::{env, fs};

use aes_gcm::aead::{Aead, Generate, Payload};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};
use sha2::{Digest, Sha256};

use crate::memory::tombstones::from_hex;
use specds_index::{Error, Result};

const MAGIC: &[u8; 8] = b"SPECDS\0E";
const NONCE_LEN: usize = 12;
/// The magic bytes, the name of the key and the nonce.
const HEADER_LEN: usize = MAGIC.len() + 8 + NONCE_LEN;

struct SegmentKey {
    cipher: Aes256Gcm,
    /// The start of the SHA-256 of the key.
    name: [u8; 8],
}

impl SegmentKey {
    /// Reads 64 hexadecimal digits.
    fn parse(text: &str) -> Option<Self> {
        let key = from_hex::<32>(text)?;
        let mut name = [0; 8];
        name.copy_from_slice(&Sha256::digest(key)[..8]);
        Some(Self { cipher: Aes256Gcm::new(&key.into()), name })
    }

    fn encrypt(&self, name: &str, content: &[u8]) -> Result<Vec<u8>> {
        let failed = |_| Error::invalid(KEY, "cannot be used: the system has no random numbers");
        let nonce: Nonce<_> = Generate::try_generate().map_err(failed)?;
        let payload = Payload { msg: content, aad: name.as_bytes() };
        let failed = |_| Error::invalid(KEY, "cannot encrypt a segment of 64 GB");
        let sealed = self.cipher.encrypt(&nonce, payload).map_err(failed)?;
        Ok([&MAGIC[..], &self.name, &nonce, &sealed].concat())
    }
}

const KEY: &str = "SPECDS_MEMORY_KEY";
const FILE: &str = "SPECDS_MEMORY_KEY_FILE";

/// Returns the keys of `SPECDS_MEMORY_KEY`, or of the file `SPECDS_MEMORY_KEY_FILE`.
fn keys() -> Result<Vec<SegmentKey>> {
    let (source, text) = match (env::var(KEY), env::var_os(FILE).map(PathBuf::from)) {
        (Ok(text), None) => (KEY, text),
        (Err(_), None) => return Ok(Vec::new()),
        (Err(_), Some(path)) => (FILE, fs::read_to_string(&path).map_err(Error::io(&path))?),
        (Ok(_), Some(_)) => {
            return Err(Error::invalid(KEY, format!("and {FILE} are mutually exclusive")));
        }
    };
    let keys: Option<Vec<_>> = text
        .split([',', '\n'])
        .map(str::trim)
        .filter(|it| !it.is_empty())
        .map(SegmentKey::parse)
        .collect();
    keys.filter(|keys| !keys.is_empty()).ok_or_else(|| {
        let reason =
            "must have keys of 64 hexadecimal digits each, such as `openssl rand -hex 32` makes";
        Error::invalid(source, reason)
    })
}

/// Encrypts a segment of this name, if there are keys.
pub(super) fn sealed<'a>(name: &str, content: &'a [u8]) -> Result<Cow<'a, [u8]>> {
    let first = keys()?.into_iter().next();
    first.map_or(Ok(content.into()), |key| key.encrypt(name, content).map(Cow::from))
}

/// Decrypts a segment, if it is encrypted.
pub(super) fn unsealed(store: &Path, name: &str, content: Vec<u8>) -> Result<Vec<u8>> {
    let Some((header, sealed)) = content.split_at_checked(HEADER_LEN) else {
        return Ok(content);
    };
    let Some(header) = header.strip_prefix(MAGIC) else { return Ok(content) };
    let invalid = |reason: &str| Error::Snapshot {
        path: store.to_owned(),
        reason: format!("its segment {name} {reason}"),
    };
    let (key_name, nonce) = header.split_at(header.len() - NONCE_LEN);
    let keys = keys()?;
    let reason = match keys.as_slice() {
        [] => "is encrypted: set SPECDS_MEMORY_KEY or SPECDS_MEMORY_KEY_FILE",
        _ => {
            "is encrypted with another key: add that to SPECDS_MEMORY_KEY or SPECDS_MEMORY_KEY_FILE"
        }
    };
    let key = keys.iter().find(|key| key.name == key_name).ok_or_else(|| invalid(reason))?;
    let payload = Payload { msg: sealed, aad: name.as_bytes() };
    let changed = |_| invalid("has changed since it was written");
    let nonce = Nonce::try_from(nonce).map_err(|_| invalid("has no nonce"))?;
    key.cipher.decrypt(&nonce, payload).map_err(changed)
}
