//! What can be learned of a datastore before anyone asks it?
//!
//! Some of its documents are drafted for as if a model had written them, each hidden meanwhile: nothing is
//! held out of the index. The weights become a file of the datastore.

use std::path::Path;
use std::sync::Arc;

use crate::base::error::Result;
use crate::build::staging::Staging;
use crate::draft::session::{DraftLimits, Session};
use crate::fused::drafter::{FusedConfig, FusedDrafter, FusedSession};
use crate::fused::effort::Effort;
use crate::index::write::{Report, Stage};
use crate::lookup::datastore::Datastore;
use crate::lookup::holdout::Holdout;
use crate::storage::files::write_whole;
use crate::storage::manifest::{Manifest, PriorEntry, id_of};
use crate::weights::initial::Weights;

/// At most one token in this many: a small datastore is soon done.
const SHARE: u64 = 16;

/// Fewer teach nothing.
const MIN_TOKENS: u64 = 1024;
const MIN_DOCUMENTS: u64 = 16;

/// Of a document: many documents tell more than few long ones.
const MAX_EXCERPT: usize = 1024;

/// More tokens accept no more.
pub const DEFAULT_PRIOR_TOKENS: u64 = 200_000;

/// What fused drafters start from by default. `None` without a prior, or with that of another version,
/// which [`refit`] replaces.
pub fn prior_of(datastore: &Datastore) -> Option<Weights> {
    Weights::from_bytes(datastore.prior()?).ok()
}

/// Fits the prior of the datastore at `path` again, to at most `num_tokens` tokens and to one in 16 of its
/// tokens; 0 removes it. No prior is fitted to fewer than 1,024 tokens or 16 documents. Open readers keep
/// the old one, and where the fit fails, all do.
pub fn refit(
    path: impl AsRef<Path>,
    num_tokens: u64,
    report: &mut Report<'_>,
) -> Result<Datastore> {
    Manifest::read(path.as_ref())?;
    let mut staging = Staging::open(path.as_ref())?;
    staging.begin(None)?;
    let manifest = put(&staging, num_tokens, report)?;
    staging.publish(manifest)?;
    Datastore::open(&staging.target)
}

/// Fits a prior as [`refit`] does if there is none, as right after a build. A process that is killed
/// meanwhile leaves a complete datastore without a prior.
pub fn fit_missing(
    datastore: Datastore,
    num_tokens: u64,
    report: &mut Report<'_>,
) -> Result<Datastore> {
    let manifest = datastore.manifest();
    if manifest.prior.is_some() || num_to_fit(manifest, num_tokens).is_none() {
        return Ok(datastore);
    }
    refit(datastore.path(), num_tokens, report)
}

/// `None` where too few would teach nothing.
fn num_to_fit(manifest: &Manifest, num_tokens: u64) -> Option<u64> {
    let num_tokens = num_tokens.min(manifest.num_tokens / SHARE);
    let is_enough = num_tokens >= MIN_TOKENS && manifest.num_documents >= MIN_DOCUMENTS;
    is_enough.then_some(num_tokens)
}

/// Puts the prior of the target into the staging folder, and gives the manifest that names it.
fn put(staging: &Staging, num_tokens: u64, report: &mut Report) -> Result<Manifest> {
    let mut manifest = Manifest::read(&staging.target)?;
    manifest.prior = None;
    let Some(num_tokens) = num_to_fit(&manifest, num_tokens) else {
        return Ok(manifest);
    };
    let datastore = Datastore::open_without_prior(&staging.target, &manifest)?;
    datastore.verify_checksums()?;
    let (weights, num_tokens) = fit_to_documents(&Arc::new(datastore), num_tokens, report)?;
    let bytes = weights.to_bytes();
    let prior = PriorEntry {
        id: id_of(&bytes),
        num_tokens,
        num_bytes: bytes.len() as u64,
    };
    write_whole(&staging.shards().join(prior.file_name()), &bytes)?;
    manifest.prior = Some(prior);
    Ok(manifest)
}

/// The documents lie evenly in the datastore, however it is cut into shards.
fn fit_to_documents(
    datastore: &Arc<Datastore>,
    num_tokens: u64,
    report: &mut Report,
) -> Result<(Weights, u64)> {
    let mut drafter = learner(Some(Arc::clone(datastore)), Weights::default())?;
    let mut num_done = 0;
    for index in evenly(datastore.num_documents()) {
        report(Stage::Prior, num_done, num_tokens)?;
        let left = usize::try_from(num_tokens - num_done).unwrap_or(usize::MAX);
        if left == 0 {
            break;
        }
        let Ok(document) = datastore.document(index) else {
            continue;
        };
        let hidden = Holdout::of(&document);
        let tokens = &document.tokens[..document.tokens.len().min(left).min(MAX_EXCERPT)];
        num_done += tokens.len() as u64;
        drafter = learn_from(drafter, Some(hidden), tokens)?;
    }
    report(Stage::Prior, num_tokens, num_tokens)?;
    Ok((drafter.weights(""), num_done))
}

/// Learns weights from documents as if a model had written them. They should not be in the datastore. Some
/// 20 µs a token.
pub fn fit<D: AsRef<[u32]>>(
    datastore: Option<Arc<Datastore>>,
    documents: &[D],
    weights: Weights,
) -> Result<Weights> {
    let mut drafter = learner(datastore, weights)?;
    for document in documents {
        drafter = learn_from(drafter, None, document.as_ref())?;
    }
    Ok(drafter.weights(""))
}

/// Low effort is fast, and drafters of normal effort accept as much from its weights as from their own.
fn learner(datastore: Option<Arc<Datastore>>, weights: Weights) -> Result<FusedDrafter> {
    let config = FusedConfig {
        effort: Effort::Low,
        ..FusedConfig::default()
    };
    FusedDrafter::new(datastore, None, config, weights)
}

/// Drafts for all but the document's first tokens, and settles what that taught.
fn learn_from(
    drafter: FusedDrafter,
    hidden: Option<Holdout>,
    document: &[u32],
) -> Result<FusedDrafter> {
    const MAX_NODES: usize = 32;
    const PROMPT: usize = 16;
    let drafter = Arc::new(drafter);
    let mut session = FusedSession::new(Arc::clone(&drafter), "")?;
    session.reading.finds_edits = true; // for the drafters of normal effort
    session.holdout = hidden;
    let (prompt, mut rest) = document.split_at(document.len().min(PROMPT));
    session.observe(prompt, None)?;
    while !rest.is_empty() {
        session.draft(DraftLimits::nodes(MAX_NODES))?;
        let num_accepted = session.num_accepted(rest);
        let (emitted, after) = rest.split_at(rest.len().min(num_accepted + 1));
        session.observe(emitted, None)?;
        rest = after;
    }
    drop(session);
    let mut drafter = Arc::into_inner(drafter).expect("the session is gone");
    drafter.settle()?;
    Ok(drafter)
}

/// The numbers below `count`, each once, the first of them evenly among all: those whose bits in reverse
/// are 0, 1, 2 …
fn evenly(count: u64) -> impl Iterator<Item = u64> {
    let num_bits = u64::BITS - count.saturating_sub(1).leading_zeros();
    let reverse = move |number: u64| {
        let reversed = number.reverse_bits();
        reversed.checked_shr(u64::BITS - num_bits).unwrap_or(0)
    };
    let numbers = (0..count.next_power_of_two()).map(reverse);
    numbers.filter(move |&number| number < count)
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
