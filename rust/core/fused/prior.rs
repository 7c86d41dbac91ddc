//! What can be learned of a datastore before anyone asks it?
//!
//! Some of its documents are drafted for as if a model had written them, each as if it were not in
//! the datastore: so nothing is held out of the index. The weights that come of it are a file of
//! the datastore, and what drafters start from.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use crate::base::error::{Error, Result};
use crate::build::staging::Staging;
use crate::fused::drafter::{FusedSession, learn_from, learner};
use crate::fused::weights::Weights;
use crate::index::write::Stage;
use crate::lookup::datastore::Datastore;
use crate::lookup::holdout::Hidden;
use crate::storage::manifest::{Manifest, PriorEntry, ShardEntry};
use crate::storage::section::write_whole;

/// What tells how far the work has come, and may end it.
pub(crate) type Report<'a> = dyn FnMut(Stage, u64, u64) -> Result<()> + 'a;

/// A prior is fitted to one token in so many at most: what is small is soon done.
const SHARE: u64 = 16;

/// Less than this teaches nothing.
const MIN_TOKENS: u64 = 1024;
const MIN_DOCUMENTS: u64 = 16;

/// How many tokens of a document are drafted for: many documents tell more than few long ones.
const MAX_EXCERPT: usize = 1024;

/// Fits the prior of the datastore that `manifest` lists, to at most `num_tokens`, and puts it into
/// the staging folder, where the shards are or else at the target. Where the datastore is too small,
/// or `num_tokens`, there is none.
pub(crate) fn put(
    manifest: &mut Manifest,
    staging: &Staging,
    num_tokens: u64,
    report: &mut Report,
) -> Result<()> {
    manifest.prior = None;
    let num_tokens = num_tokens.min(manifest.num_tokens / SHARE);
    if num_tokens < MIN_TOKENS || manifest.num_documents < MIN_DOCUMENTS {
        return Ok(());
    }
    let folder_of = |shard: &ShardEntry| {
        let folder = staging.find(&shard.id);
        folder.unwrap_or_else(|| shard.folder(staging.target()))
    };
    let datastore = Datastore::open_listed(staging.target(), manifest, folder_of)?;
    let (weights, num_tokens) = fit(&Arc::new(datastore), num_tokens, report)?;
    let bytes = weights.to_bytes();
    let prior = PriorEntry {
        id: format!("{:032x}", xxh3_128(&bytes)),
        num_tokens,
        num_bytes: bytes.len() as u64,
    };
    write_whole(&staging.shards().join(prior.file_name()), &bytes)?;
    manifest.prior = Some(prior);
    Ok(())
}

/// Learns from documents that lie evenly in the datastore, however it is cut into shards.
fn fit(datastore: &Arc<Datastore>, num_tokens: u64, report: &mut Report) -> Result<(Weights, u64)> {
    let drafter = Arc::new(learner(Some(Arc::clone(datastore)), Weights::default())?);
    let mut num_done = 0;
    for index in evenly(datastore.num_documents()) {
        report(Stage::Prior, num_done, num_tokens)?;
        let left = usize::try_from(num_tokens - num_done).unwrap_or(usize::MAX);
        if left == 0 {
            break;
        }
        let Some((hidden, tokens)) = Hidden::of(datastore, index, left.min(MAX_EXCERPT)) else {
            continue;
        };
        num_done += tokens.len() as u64;
        let session = FusedSession::new(Arc::clone(&drafter), "")?;
        learn_from(session.without(hidden), &tokens)?;
    }
    report(Stage::Prior, num_tokens, num_tokens)?;
    Ok((drafter.prior(), num_done))
}

/// The numbers below `count`, each once, so that the first of them lie evenly among all: those whose
/// bits in reverse are 0, 1, 2 …
fn evenly(count: u64) -> impl Iterator<Item = u64> {
    let num_bits = u64::BITS - count.saturating_sub(1).leading_zeros();
    let reverse = move |number: u64| {
        let reversed = number.reverse_bits();
        reversed.checked_shr(u64::BITS - num_bits).unwrap_or(0)
    };
    let numbers = (0..count.next_power_of_two()).map(reverse);
    numbers.filter(move |&number| number < count)
}

/// Reads the prior that the manifest of the datastore at `folder` names.
///
/// # Errors
///
/// [`Error::Truncated`], [`Error::Checksum`], [`Error::Io`].
pub(crate) fn read(folder: &Path, manifest: &Manifest) -> Result<Option<Weights>> {
    let Some(prior) = &manifest.prior else {
        return Ok(None);
    };
    let path = folder.join(prior.file_name());
    let found = fs::metadata(&path).map_err(Error::io(&path))?.len();
    if found != prior.num_bytes {
        return Err(Error::Truncated {
            path,
            expected: prior.num_bytes,
            found,
        });
    }
    let bytes = fs::read(&path).map_err(Error::io(&path))?;
    if format!("{:032x}", xxh3_128(&bytes)) != prior.id {
        return Err(Error::Checksum { path });
    }
    // Where its bytes are right and it cannot be read, another version has written it: drafters do
    // without it, as without one.
    Ok(Weights::from_bytes(&bytes).ok())
}

#[cfg(test)]
mod tests {
    use super::evenly;

    #[test]
    fn documents_are_chosen_once_each_and_evenly_from_the_first_on() {
        for count in 0..200 {
            let mut chosen: Vec<_> = evenly(count).collect();
            for num_chosen in [4, 8, 16, 32].into_iter().filter(|&n| 4 * n <= count) {
                let mut first = chosen[..usize::try_from(num_chosen).unwrap()].to_vec();
                first.sort_unstable();
                let gaps = first.windows(2).map(|pair| pair[1] - pair[0]);
                assert!(gaps.max().unwrap() * num_chosen <= 3 * count, "{first:?}");
            }
            chosen.sort_unstable();
            assert!(chosen.into_iter().eq(0..count));
        }
    }
}
