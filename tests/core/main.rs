//! The core from outside: every answer against a naive oracle, every file against lies.

mod build;
mod draft;
mod files;
mod golden;
mod lookup;
mod oracle;
mod tree;

use std::ops::ControlFlow;
use std::path::Path;

use specds::datastore::{
    Datastore, DatastoreBuilder, DatastoreOptions, MAX_SHARD_TOKENS, Match, Stage, StoredDocument,
};
use specds::draft::{FusedSession, RestConfig, RestSession};
use specds::error::{Error, Result};
use specds::tree::TokenTree;

/// Options for a vocabulary, everything else at its plainest.
fn options(vocab_size: u32, separator: u32) -> DatastoreOptions {
    DatastoreOptions {
        vocab_size,
        separator,
        tokenizer_name: "naïve \"tokenizer\"".to_owned(),
        tokenizer_fingerprint: "f00d".to_owned(),
        corpus: vec!["a\tline".to_owned(), "another".to_owned()],
        max_shard_tokens: MAX_SHARD_TOKENS,
        overwrite: false,
    }
}

/// Builds a datastore of these documents at `path`.
fn build(path: &Path, options: DatastoreOptions, documents: &[Vec<u32>]) -> Result<Datastore> {
    let mut builder = DatastoreBuilder::create(path, options)?;
    let lengths: Vec<_> = documents.iter().map(Vec::len).collect();
    builder.add_documents(&documents.concat(), &lengths)?;
    builder.finish(&mut silent)
}

fn silent(_stage: Stage, _done: u64, _total: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn public_types_can_be_sent_and_shared() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Datastore>();
    check::<DatastoreBuilder>();
    check::<DatastoreOptions>();
    check::<Match>();
    check::<RestConfig>();
    check::<RestSession>();
    check::<FusedSession>();
    check::<StoredDocument>();
    check::<TokenTree>();
    check::<Error>();
}
