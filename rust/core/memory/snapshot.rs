//! Snapshots of texts and adapted weights, which are the segments of a request cache in a store.
//!
//! A snapshot is valid only as a whole: its header has its length and a checksum. `docs/FORMAT.md` specifies every
//! byte.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::Xxh3;

use crate::memory::groups::GroupKey;
use crate::memory::head::Contents;
use crate::memory::store::Memory;
use crate::memory::tenant::Tenant;
use crate::memory::texts::hash;
use crate::memory::tombstones::{NameHash, Only, Tombstone, Tombstones};
use crate::weights::adaptation::TenantAdaptation;
use specds_index::Result;
use specds_index::base::checks::check_tokens;
use specds_index::storage::token_array::TokenWidth;

/// First of the four numbers of the header. The version with the vocabulary size, the length and the checksum follow.
const MAGIC: u64 = u64::from_le_bytes(*b"SPECDS\0M");
const VERSION: u32 = 8;
const HEADER_LEN: usize = 32;
const MAX_USE: u64 = 1 << 62;
/// More accepted tokens of one text are not counted.
const MAX_USES: f32 = 1e9;
const MAX_TOKENIZER: usize = 1 << 16;

impl Memory {
    /// Writes a snapshot of the texts whose tenants and hashes are wanted, of the adapted weights whose tenants and
    /// numbers of updates are, and of the uses of texts that no snapshot has, or of all.
    pub(crate) fn encode(
        &self,
        only: Only,
        tombstones: &Tombstones,
        is_whole: bool,
        wants_text: impl Fn(NameHash, u64) -> bool,
        wants_weights: impl Fn(&str, u32) -> bool,
    ) -> (Vec<u8>, Contents) {
        let options = self.options();
        let width = TokenWidth::of(options.vocab_size, 0);
        let (mut contents, mut bytes) = (Contents::default(), vec![0; HEADER_LEN]);
        put(&mut bytes, options.tokenizer.as_bytes());
        put_tombstones(&mut bytes, tombstones);
        let at = bytes.len();
        put_number(&mut bytes, 0);
        let mut num_tenants = 0_u64;
        for tenant in self.tenants_of(only) {
            let (texts, weights) = (&wants_text, &wants_weights);
            let is_put =
                put_tenant(&mut bytes, &tenant, is_whole, width, &mut contents, texts, weights);
            num_tenants += u64::from(is_put);
        }
        contents.sort();
        bytes[at..at + 8].copy_from_slice(&num_tenants.to_le_bytes());
        let kind = u64::from(options.vocab_size) << 32 | u64::from(VERSION);
        let header = [MAGIC, kind, bytes.len() as u64];
        let checksum = checksum(&header, &bytes[HEADER_LEN..]);
        bytes[..24].copy_from_slice(bytemuck::bytes_of(&header));
        bytes[24..HEADER_LEN].copy_from_slice(&checksum.to_le_bytes());
        (bytes, contents)
    }
}

/// Adds snapshots to a memory, except what it has deleted since these tombstones, and returns their contents. Of a
/// tenant's adapted weights, the memory keeps its own, or takes the last ones.
pub(crate) fn fill(
    memory: &Memory,
    only: Only,
    snapshots: &[&[u8]],
    tombstones: &Tombstones,
) -> std::result::Result<Vec<Contents>, String> {
    let mut contents = vec![Contents::default(); snapshots.len()];
    for part in [SnapshotPart::Weights, SnapshotPart::Texts] {
        for number in 0..snapshots.len() {
            let number =
                if part == SnapshotPart::Weights { snapshots.len() - 1 - number } else { number };
            let found = SnapshotContents::read(snapshots[number])?;
            found.fill(memory, only, tombstones, part, &mut contents[number])?;
        }
    }
    contents.iter_mut().for_each(Contents::sort);
    Ok(contents)
}

/// The part of a snapshot that is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SnapshotPart {
    Weights,
    Texts,
}

fn put_number(output: &mut Vec<u8>, number: u64) {
    output.extend(number.to_le_bytes());
}

/// Writes bytes, prefixed by their number.
fn put(output: &mut Vec<u8>, bytes: &[u8]) {
    put_number(output, bytes.len() as u64);
    output.extend(bytes);
}

fn put_tombstones(output: &mut Vec<u8>, tombstones: &Tombstones) {
    put_number(output, tombstones.pruned_below());
    put_number(output, tombstones.versions().len() as u64);
    for (tombstone, &version) in tombstones.versions() {
        output.extend(&tombstone.0);
        put_number(output, version);
    }
}

/// Writes a tenant if anything of it is wanted, and adds that to the contents. Returns whether it did.
fn put_tenant(
    output: &mut Vec<u8>,
    tenant: &Tenant,
    is_whole: bool,
    width: TokenWidth,
    contents: &mut Contents,
    wants_text: impl Fn(NameHash, u64) -> bool,
    wants_weights: impl Fn(&str, u32) -> bool,
) -> bool {
    let (data, name) = (tenant.read(), &tenant.name);
    if data.is_empty() {
        return false;
    }
    let name_hash = tenant.name_hash;
    let is_wanted = |it: &&TenantAdaptation| wants_weights(name, it.num_updates());
    let adaptation = data.adaptation().filter(is_wanted);
    let documents = data.texts.documents();
    let texts: Vec<_> = documents.filter(|&(_, hash, ..)| wants_text(name_hash, hash)).collect();
    if texts.is_empty() && adaptation.is_none() {
        return false;
    }
    let mut bytes = Vec::new();
    if let Some(adaptation) = adaptation {
        adaptation.put(&mut bytes);
        contents.num_updates.insert(name.clone(), adaptation.num_updates());
        contents.extend([(name_hash, 0)]);
    }
    put(output, name.as_bytes());
    put_number(output, tenant.last_use().min(MAX_USE - 1));
    put(output, &bytes);
    put_number(output, data.texts.uses(is_whole).count() as u64);
    for (hash, number) in data.texts.uses(is_whole) {
        put_number(output, hash);
        output.extend(number.min(MAX_USES).to_le_bytes());
    }
    put_number(output, texts.len() as u64);
    contents.extend(texts.iter().map(|&(_, hash, ..)| (name_hash, hash)));
    for (tokens, _, group, time) in texts {
        contents.oldest = contents.oldest.min(time);
        put_number(output, group.hash);
        output.extend(group.length.to_le_bytes());
        output.extend(time.to_le_bytes());
        put_number(output, tokens.len() as u64);
        width.encode(tokens, output);
    }
    true
}

fn checksum(header: &[u64; 3], content: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(content);
    hasher.update(bytemuck::bytes_of(header));
    hasher.digest()
}

/// Returns the vocabulary size and the content, or the reason why the file is not a snapshot.
fn split(file: &[u8]) -> std::result::Result<(u32, &[u8]), String> {
    let num_bytes = file.len();
    let Some((header, content)) = file.split_at_checked(HEADER_LEN) else {
        return Err(format!("it has {num_bytes} bytes, fewer than a header"));
    };
    let [magic, kind, length, sum]: [u64; 4] = bytemuck::pod_read_unaligned(header);
    let [version, vocab_size]: [u32; 2] = bytemuck::cast(kind);
    if magic != MAGIC {
        Err("its first bytes are not those of a snapshot".to_owned())
    } else if version != VERSION {
        Err(format!("it has format version {version}, this version of specds reads {VERSION}"))
    } else if length != num_bytes as u64 {
        Err(format!("it has {num_bytes} bytes where {length} were written"))
    } else if sum != checksum(&[magic, kind, length], content) {
        Err("it has changed since it was written".to_owned())
    } else {
        Ok((vocab_size, content))
    }
}

type Read<T> = std::result::Result<T, &'static str>;

const UNFIT: &str = "its parts do not fit together";

/// A snapshot with a valid checksum.
pub(crate) struct SnapshotContents<'a> {
    pub(crate) vocab_size: u32,
    pub(crate) tokenizer: String,
    pub(crate) tombstones: Tombstones,
    tenants: TenantReader<'a>,
}

impl<'a> SnapshotContents<'a> {
    pub(crate) fn read(file: &'a [u8]) -> std::result::Result<Self, String> {
        let (vocab_size, content) = split(file)?;
        let width = TokenWidth::of(vocab_size, 0);
        let mut input = TenantReader { content, width };
        let tokenizer = input.bytes(MAX_TOKENIZER)?;
        Ok(Self {
            vocab_size,
            tokenizer: String::from_utf8_lossy(tokenizer).into_owned(),
            tombstones: input.tombstones()?,
            tenants: input,
        })
    }

    pub(crate) fn check(&self, memory: &Memory, path: &Path) -> Result<()> {
        memory.options().check_tokenizer(path, self.vocab_size, &self.tokenizer)
    }
}

struct TenantReader<'a> {
    content: &'a [u8],
    width: TokenWidth,
}

impl<'a> TenantReader<'a> {
    fn take(&mut self, length: u64) -> Read<&'a [u8]> {
        let length = usize::try_from(length).map_err(|_| UNFIT)?;
        self.content.split_off(..length).ok_or(UNFIT)
    }

    fn number(&mut self) -> Read<u64> {
        let bytes = self.take(8)?.try_into();
        bytes.map(u64::from_le_bytes).map_err(|_| UNFIT)
    }

    /// Reads bytes that are prefixed by their number, at most `most`.
    fn bytes(&mut self, most: usize) -> Read<&'a [u8]> {
        match self.number()? {
            length if length <= most as u64 => self.take(length),
            _ => Err(UNFIT),
        }
    }

    /// Reads a text and returns at most its last `most` tokens.
    fn tokens(&mut self, most: usize, vocab_size: u32) -> Read<Vec<u32>> {
        let (length, width) = (self.number()?, self.width.num_bytes());
        let bytes = self.take(length.checked_mul(width as u64).ok_or(UNFIT)?)?;
        let tokens = self.width.decode(&bytes[bytes.len().saturating_sub(most * width)..]);
        match check_tokens(&tokens, vocab_size) {
            Ok(()) if tokens.is_empty() => Err(UNFIT),
            Ok(()) => Ok(tokens),
            Err(_) => Err("it holds tokens outside its vocabulary"),
        }
    }

    fn tombstones(&mut self) -> Read<Tombstones> {
        let (pruned_below, mut versions) = (self.number()?, BTreeMap::new());
        for _ in 0..self.number()? {
            let bytes = self.take(Tombstone::NUM_BYTES as u64)?.try_into();
            let tombstone = Tombstone(bytes.map_err(|_| UNFIT)?);
            if versions.last_key_value().is_some_and(|(last, _)| *last >= tombstone) {
                return Err(UNFIT);
            }
            versions.insert(tombstone, self.number()?);
        }
        Tombstones::read(versions, pruned_below).ok_or(UNFIT)
    }
}

impl SnapshotContents<'_> {
    /// Adds the tenants to a memory, except those that it has deleted since these tombstones.
    fn fill(
        mut self,
        memory: &Memory,
        only: Only,
        tombstones: &Tombstones,
        part: SnapshotPart,
        contents: &mut Contents,
    ) -> Read<()> {
        let mut before = None;
        for _ in 0..self.tenants.number()? {
            let name = self.tenants.bytes(Memory::MAX_NAME)?;
            let name = std::str::from_utf8(name).map_err(|_| UNFIT)?;
            if before.replace(name).is_some_and(|before| before >= name) {
                return Err("its tenants are not in the order of their names");
            }
            let tenant = living(name, memory, only, tombstones)?;
            self.fill_tenant(name, tenant.as_ref(), memory, part, contents)?;
        }
        self.tenants.content.is_empty().then_some(()).ok_or(UNFIT)
    }

    fn fill_tenant(
        &mut self,
        name: &str,
        tenant: Option<&Arc<Tenant>>,
        memory: &Memory,
        part: SnapshotPart,
        contents: &mut Contents,
    ) -> Read<()> {
        let name_hash = NameHash::of(name);
        let input = &mut self.tenants;
        let last_use = input.number()?;
        if last_use >= MAX_USE {
            return Err(UNFIT);
        }
        let adaptation = input.bytes(2 * TenantAdaptation::NUM_BYTES)?;
        if part == SnapshotPart::Weights {
            let adaptation = TenantAdaptation::take(adaptation);
            if let Some(tenant) = tenant {
                memory.change(tenant, |data| data.is_saved = true);
                tenant.last_use.fetch_max(last_use, Ordering::Relaxed);
                memory.clock.fetch_max(last_use + 1, Ordering::Relaxed);
                if let Some(adaptation) = adaptation {
                    contents.num_updates.insert(name.into(), adaptation.num_updates());
                    contents.extend([(name_hash, 0)]);
                    memory.begin_learning(tenant, adaptation);
                }
            }
        }
        for _ in 0..input.number()? {
            let hash = input.number()?;
            let number = input.take(4)?.try_into().map(f32::from_le_bytes).map_err(|_| UNFIT)?;
            if !(0.0..=MAX_USES).contains(&number) {
                return Err(UNFIT);
            }
            if part == SnapshotPart::Weights
                && let Some(tenant) = tenant
            {
                memory.change(tenant, |data| data.texts.add_uses(hash, number, true));
            }
        }
        let most_tokens = memory.max_bytes() / size_of::<u32>();
        for _ in 0..input.number()? {
            let hash_of_group = input.number()?;
            let [length, time]: [u32; 2] = bytemuck::cast(input.number()?);
            let group = GroupKey { hash: hash_of_group, length };
            let tokens = input.tokens(most_tokens, memory.options().vocab_size)?;
            if part == SnapshotPart::Texts {
                contents.extend([(name_hash, hash(&tokens))]);
                if let Some(tenant) = tenant {
                    let _writing = memory.begin_writing();
                    memory.append(tenant, &tokens, group, time, true);
                }
            }
        }
        Ok(())
    }
}

/// Returns the memory's tenant, or `None` if the memory has deleted it since these tombstones.
fn living(
    name: &str,
    memory: &Memory,
    only: Only,
    tombstones: &Tombstones,
) -> Read<Option<Arc<Tenant>>> {
    let name_hash = NameHash::of(name);
    if only.is_some_and(|only| only != name_hash) {
        return Err("it has texts of another tenant");
    }
    let is_deleted = || memory.change_tombstones(only, |it, _| it.has_newer(name_hash, tombstones));
    if is_deleted() {
        return Ok(None);
    }
    let tenant = memory.tenant(name).map_err(|_| UNFIT)?;
    // A tenant that was deleted before it was found here is a new one, which the snapshot's texts do not belong to.
    Ok((!is_deleted()).then_some(tenant))
}
