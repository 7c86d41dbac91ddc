//! The head of a request cache in a store, and what a memory has of its segments.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::process;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::memory::tombstones::{NameHash, Tombstones};

const FORMAT: &str = "specds memory";
const VERSION: u32 = 1;
const MAX_BYTES: usize = 1 << 24;

/// The segments of a request cache, which are snapshots.
///
/// No segment has a text that one of the newest tombstones deletes, so these are the tombstones of all segments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Head {
    format: String,
    format_version: u32,
    pub(crate) vocab_size: u32,
    pub(crate) tokenizer: String,
    /// The time of writing, in seconds since 1970 on the writer's clock; it orders nothing.
    pub(crate) written_at: u64,
    /// The name of the segment with the newest tombstones.
    pub(crate) tombstones: String,
    /// In the order of their texts' arrival.
    pub(crate) segments: Vec<Segment>,
    /// xxh3-128 of this text with an empty checksum.
    checksum: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Segment {
    /// xxh3-128 of the content, and a random number: an object that is written again has another name.
    pub(crate) name: String,
    pub(crate) num_bytes: u64,
    /// The time of its oldest text, in seconds since 1970.
    pub(crate) oldest: u32,
    /// The segments that it replaced; a memory that has their texts need not read it.
    pub(crate) parts: Vec<String>,
}

impl Segment {
    pub(crate) fn new(content: &[u8], oldest: u32, parts: Vec<String>) -> Self {
        let name = format!("{:032x}-{:016x}", xxh3_128(content), random());
        Self { name, num_bytes: content.len() as u64, oldest, parts }
    }

    pub(crate) fn is_of(&self, content: &[u8]) -> bool {
        let hash = format!("{:032x}-", xxh3_128(content));
        self.name.starts_with(&hash) && self.num_bytes == content.len() as u64
    }
}

/// Returns whether an object of a store has the name of a segment.
pub(crate) fn is_segment_name(name: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_hex = |part: &str, length| part.len() == length && part.bytes().all(is_digit);
    name.split_once('-').is_some_and(|(hash, number)| is_hex(hash, 32) && is_hex(number, 16))
}

/// Returns a random number. Processes that were forked share the seed.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one((process::id(), SystemTime::now()))
}

/// Returns the time in seconds since 1970.
pub(crate) fn seconds_now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

impl Head {
    pub(crate) fn new(
        vocab_size: u32,
        tokenizer: &str,
        tombstones: String,
        segments: Vec<Segment>,
    ) -> Self {
        let mut head = Self {
            format: FORMAT.to_owned(),
            format_version: VERSION,
            vocab_size,
            tokenizer: tokenizer.to_owned(),
            written_at: seconds_now(),
            tombstones,
            segments,
            checksum: String::new(),
        };
        head.checksum = format!("{:032x}", xxh3_128(&head.text()));
        head
    }

    pub(crate) fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Reads a head, or returns the reason why it is invalid.
    pub(crate) fn read(text: &[u8]) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("its head has more than {MAX_BYTES} bytes"));
        }
        let head: Self = serde_json::from_slice(text)
            .map_err(|error| format!("its head is not one of a request cache: {error}"))?;
        let (version, names) = (head.format_version, head.segments.iter().map(|it| &it.name));
        let unchanged = Self { checksum: String::new(), ..head.clone() };
        if head.format != FORMAT {
            Err("its head is not one of a request cache".to_owned())
        } else if version != VERSION {
            Err(format!("its head has format version {version}, this version reads {VERSION}"))
        } else if head.checksum != format!("{:032x}", xxh3_128(&unchanged.text()))
            || head.text() != text
        {
            Err("its head has changed since it was written".to_owned())
        } else if !names.clone().all(|name| is_segment_name(name))
            || !names.clone().any(|name| *name == head.tombstones)
            || names.clone().collect::<BTreeSet<_>>().len() != names.len()
        {
            Err("the names of its segments do not fit together".to_owned())
        } else {
            Ok(head)
        }
    }
}

/// The state of a store at the last exchange of a memory.
#[derive(Debug, Default)]
pub(crate) struct Synced {
    /// The version of `head`.
    pub(crate) version: Option<String>,
    pub(crate) head: Option<Head>,
    /// The tombstones of `head`.
    pub(crate) tombstones: Tombstones,
    /// The contents of the segments of `head` that the memory has read or written, by their names.
    pub(crate) contents: BTreeMap<String, Contents>,
    /// True if the last exchange may have left objects that are in no head.
    pub(crate) is_unclean: bool,
    /// The number of updates of the adapted weights that the store has of tenants.
    pub(crate) num_updates: BTreeMap<Box<str>, u32>,
}

/// The contents of a segment.
#[derive(Debug, Clone)]
pub(crate) struct Contents {
    /// The tenant and the hash of each text, sorted; a hash of 0 for a tenant that has weights.
    texts: Vec<(NameHash, u64)>,
    /// The number of updates of the adapted weights of each tenant that has some.
    pub(crate) num_updates: BTreeMap<Box<str>, u32>,
    /// The time of the oldest text of a segment that was just encoded.
    pub(crate) oldest: u32,
}

impl Default for Contents {
    fn default() -> Self {
        Self { texts: Vec::new(), num_updates: BTreeMap::new(), oldest: u32::MAX }
    }
}

impl Contents {
    /// Adds texts in any order; then it must be [sorted](Self::sort).
    pub(crate) fn extend(&mut self, texts: impl IntoIterator<Item = (NameHash, u64)>) {
        self.texts.extend(texts);
    }

    pub(crate) fn sort(&mut self) {
        self.texts.sort_unstable();
        self.texts.dedup();
        self.texts.shrink_to_fit();
    }

    pub(crate) fn has(&self, tenant: NameHash, text_hash: u64) -> bool {
        self.texts.binary_search(&(tenant, text_hash)).is_ok()
    }

    /// Returns the hashes of a tenant's texts.
    pub(crate) fn of_tenant(&self, tenant: NameHash) -> impl Iterator<Item = u64> {
        let first = self.texts.partition_point(|&(name, _)| name < tenant);
        let texts = self.texts[first..].iter().take_while(move |&&(name, _)| name == tenant);
        texts.map(|&(_, hash)| hash)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Returns the tenants, one repeatedly if it has several texts.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = NameHash> {
        self.texts.iter().map(|&(name, _)| name)
    }

    /// Returns the texts of several segments, of the tenants that are kept.
    pub(crate) fn union<'a>(
        segments: impl IntoIterator<Item = &'a Self>,
        is_kept: impl Fn(NameHash) -> bool,
    ) -> Self {
        let mut union = Self::default();
        let texts = segments.into_iter().flat_map(|segment| &segment.texts);
        union.extend(texts.copied().filter(|&(name, _)| is_kept(name)));
        union.sort();
        union
    }
}
