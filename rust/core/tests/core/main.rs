//! Tests of the core's public interface that the Python tests do not cover.

mod budget;
mod files;
mod fleet;
mod forgery;
mod forgetting;
#[cfg(unix)]
mod fuzz;
mod memory;
mod random;
mod usefulness;
mod verify;

use std::path::Path;

use specds_core::Result;
use specds_core::draft::{DraftLimits, Session, TokenTree};
use specds_index::{CompactOptions, Datastore, DatastoreBuilder, DatastoreOptions, compact};
use tempfile::TempDir;

/// A temporary folder, in memory where the system has a place for that: builds wait for the disk.
fn tempdir() -> std::io::Result<TempDir> {
    let in_memory = Path::new("/dev/shm");
    if in_memory.is_dir() { tempfile::tempdir_in(in_memory) } else { tempfile::tempdir() }
}

/// Options for a vocabulary, everything else at its plainest.
fn options(vocab_size: u32, separator: u32) -> DatastoreOptions {
    DatastoreOptions {
        tokenizer_name: "naïve \"tokenizer\"".to_owned(),
        tokenizer_fingerprint: "f00d".to_owned(),
        corpus: vec!["a\tline".to_owned(), "another".to_owned()],
        ..DatastoreOptions::new(vocab_size, separator)
    }
}

/// Builds a datastore of these documents at `path`.
fn build(path: &Path, options: DatastoreOptions, documents: &[Vec<u32>]) -> Result<Datastore> {
    let mut builder = DatastoreBuilder::create(path, options)?;
    let lengths: Vec<_> = documents.iter().map(Vec::len).collect();
    let sources: Vec<_> = (0..documents.len()).map(|index| format!("a{index}")).collect();
    builder.add_documents(&documents.concat(), &lengths, &sources)?;
    builder.finish()
}

/// Rebuilds into as few shards as possible of at most `max_shard_tokens`.
fn compacted(path: &Path, max_shard_tokens: u64) -> Result<Datastore> {
    let options =
        CompactOptions { max_shard_tokens: Some(max_shard_tokens), ..CompactOptions::default() };
    compact(path, options)
}

fn drafted(session: &mut dyn Session, max_nodes: usize) -> TokenTree {
    session.draft(DraftLimits::nodes(max_nodes)).unwrap()
}
