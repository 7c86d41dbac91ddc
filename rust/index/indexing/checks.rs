//! Checks of documents and build targets.

use std::fs;
use std::path::Path;

use crate::base::checks::check_tokens;
use crate::base::error::{Error, Result};
use crate::indexing::options::DatastoreOptions;
use crate::storage::manifest::{self, Manifest};

pub(crate) fn check_documents(
    tokens: &[u32],
    lengths: &[usize],
    vocab_size: u32,
    limit: u64,
) -> Result<()> {
    let mut sums = lengths.iter();
    let sum = sums.try_fold(0_usize, |sum, &length| sum.checked_add(length));
    if sum != Some(tokens.len()) {
        let reason = format!("must add up to the number of tokens, {}", tokens.len());
        return Err(Error::invalid("lengths", reason));
    }
    check_tokens(tokens, vocab_size)?;
    let longest = lengths.iter().max();
    let found = longest.map_or(0, |&length| (length as u64).saturating_add(1));
    if found > limit {
        return Err(Error::TooManyTokens { found, limit });
    }
    Ok(())
}

pub(crate) fn split_documents<'a>(
    tokens: &'a [u32],
    lengths: &[usize],
) -> impl Iterator<Item = &'a [u32]> {
    let mut rest = tokens;
    lengths.iter().map(move |&length| {
        let (document, after) = rest.split_at(length);
        rest = after;
        document
    })
}

/// Checks that a build may write at `target`, and returns the manifest of the datastore that it appends to.
pub(crate) fn check_target(target: &Path, options: &DatastoreOptions) -> Result<Option<Manifest>> {
    if !options.append {
        return check_replaceable(target, options.overwrite).map(|()| None);
    }
    let old = Manifest::read(target)?;
    let ours = (options.vocab_size, options.separator, options.tokenizer_fingerprint.as_str());
    check_tokenizer(target, &old, ours)?;
    Ok(Some(old))
}

/// Checks that the datastore at `path` has the same tokenizer.
pub(crate) fn check_tokenizer(
    path: &Path,
    theirs: &Manifest,
    ours: (u32, u32, &str),
) -> Result<()> {
    if theirs.tokenizer() == ours {
        return Ok(());
    }
    Err(Error::OtherTokenizer {
        path: path.to_owned(),
        reason: format!("it was built with `{}`", theirs.tokenizer_name),
    })
}

/// Checks that `target` is free, or a datastore that may be replaced: a mistyped path must not delete a folder.
pub(crate) fn check_replaceable(target: &Path, overwrite: bool) -> Result<()> {
    if fs::symlink_metadata(target).is_err() {
        Ok(())
    } else if !overwrite {
        Err(Error::Exists(target.to_owned()))
    } else if !manifest::is_datastore(target) {
        Err(Error::NotADatastore(target.to_owned()))
    } else {
        Ok(())
    }
}
