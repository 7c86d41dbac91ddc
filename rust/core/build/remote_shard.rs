//! How is a shard built apart from the others, by another process?

use std::path::Path;

use crate::base::error::{Error, Result};
use crate::build::checks::{check_documents, split_documents};
use crate::build::document_log::DocumentLog;
use crate::build::finished_shard::move_shard;
use crate::build::options::DatastoreOptions;
use crate::build::staging;
use crate::index::write::write_index;
use crate::storage::manifest::folder_name;

/// Builds one shard of these documents, apart from any
/// [`DatastoreBuilder`](crate::build::builder::DatastoreBuilder), in the folder that one gives by
/// [`staging_folder`](crate::build::builder::DatastoreBuilder::staging_folder): what is killed meanwhile
/// leaves nothing that counts. The documents come in batches, of which one is in memory: all their
/// tokens, and the number of tokens of each. Gives the shard's id.
///
/// # Errors
///
/// As [`add_documents`](crate::build::builder::DatastoreBuilder::add_documents) and
/// [`finish`](crate::build::builder::DatastoreBuilder::finish).
pub fn build_shard(
    folder: impl AsRef<Path>,
    options: &DatastoreOptions,
    documents: impl IntoIterator<Item = Result<(Vec<u32>, Vec<usize>)>>,
) -> Result<String> {
    options.check()?;
    let limit = options.largest_shard()?;
    let folder = folder.as_ref();
    let work = tempfile::Builder::new()
        .prefix("worker-")
        .tempdir_in(folder);
    let work = work.map_err(Error::io(folder))?;
    let place = work.path().join("shard");
    let mut text = DocumentLog::create(&place, options.separator, options.width(), false)?;
    for batch in documents {
        let (tokens, lengths) = batch?;
        check_documents(&tokens, &lengths, options.vocab_size, limit)?;
        for document in split_documents(&tokens, &lengths).filter(|document| !document.is_empty()) {
            text.add(document, 0)?;
        }
        let found = text.num_tokens();
        if found > limit {
            return Err(Error::TooManyTokens { found, limit });
        }
    }
    if text.num_tokens() == 0 {
        return Err(Error::EmptyCorpus);
    }
    let (_, text, _) = text.finish()?;
    let manifest = write_index(&place, text, &options.index(), &mut |_, _| Ok(()))?;
    manifest.seal(&place)?;
    let id = manifest.entry().id;
    move_shard(&place, &staging::shards(folder).join(folder_name(&id)))?;
    Ok(id)
}
