//! Tokenizer fingerprints.

use std::fmt::Write;
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use specds_core::engine::EngineConfig;
use specds_index::Manifest;

use crate::guard::{Refusal, refused};

/// Returns the fingerprint of an engine's vocabulary, which is empty if its texts are not known.
///
/// A model may have more rows than its tokenizer has tokens, so only as many texts as a datastore has tokens are used.
pub(crate) fn of_engine(texts: &[&[u8]], config: &EngineConfig) -> Result<String, Refusal> {
    if texts.is_empty() {
        return Ok(String::new());
    }
    let read = |path: &PathBuf| Manifest::read(path);
    let manifest = config.datastore.as_ref().map(read).transpose();
    let size = manifest.map_err(refused)?.map(|manifest| manifest.vocab_size as usize);
    Ok(of(&texts[..size.unwrap_or(texts.len()).min(texts.len())]))
}

/// Returns the fingerprint of `specds.models.tokenization.fingerprint`: SHA-256 of `json.dumps` of pairs of id and text.
fn of(texts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    let mut line = String::new();
    for (id, text) in texts.iter().enumerate() {
        line.clear();
        let start = if id == 0 { "[" } else { ", " };
        let _ = write!(line, "{start}[{id}, \"");
        String::from_utf8_lossy(text).chars().for_each(|char| escape(&mut line, char));
        line.push_str("\"]");
        hasher.update(&line);
    }
    hasher.update("]");
    hasher.finalize().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Appends a character as Python's `json.dumps` writes it.
fn escape(line: &mut String, char: char) {
    match char {
        '"' => line.push_str("\\\""),
        '\\' => line.push_str("\\\\"),
        '\n' => line.push_str("\\n"),
        '\r' => line.push_str("\\r"),
        '\t' => line.push_str("\\t"),
        '\u{8}' => line.push_str("\\b"),
        '\u{c}' => line.push_str("\\f"),
        ' '..='~' => line.push(char),
        _ => {
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _ = write!(line, "\\u{unit:04x}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_fingerprint_is_python_s() {
        let texts = ["a\"\\b", "\n\r\t\u{8}\u{c}\u{1}\u{7f}", "Ġé▁", "😀"].map(str::as_bytes);
        // python -c 'import json, hashlib; t = ["a\"\\b", "\n\r\t\b\f\1\x7f", "Ġé▁", "😀"];
        //     print(hashlib.sha256(json.dumps([*enumerate(t)]).encode()).hexdigest())'
        assert_eq!(
            super::of(&texts),
            "82a2e415d4598af0b976d846f29b646c9ae32c03e6c9420af1bdfd8e4a4cea34"
        );
    }
}
