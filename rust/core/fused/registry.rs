//! Registry of all sources.
//!
//! A new source is a file in `sources` and an entry here.

use crate::draft::token_tree::Source;
use crate::fused::source::DraftSource;
use crate::fused::sources::associations::AssociationSource;
use crate::fused::sources::bigrams::BigramSource;
use crate::fused::sources::datastore::DatastoreSource;
use crate::fused::sources::history::HistorySource;
use crate::fused::sources::recycled::RecycledSource;
use crate::fused::sources::suggested::SuggestedSource;

/// The public label of a source, and the constructor of its state for one request.
type RegistryEntry = (Source, fn(Source) -> Box<dyn DraftSource>);

/// All sources, in the order in which they add experts.
pub(crate) const REGISTRY: &[RegistryEntry] = &[
    (Source::Datastore, |_| Box::new(DatastoreSource::default())),
    (Source::Context, |label| Box::new(HistorySource::new(label))),
    (Source::Memory, |label| Box::new(HistorySource::new(label))),
    (Source::Group, |label| Box::new(HistorySource::new(label))),
    (Source::PredictedOutput, |label| Box::new(HistorySource::new(label))),
    (Source::Context, |_| Box::new(AssociationSource)),
    (Source::Recycled, |_| Box::new(RecycledSource::default())),
    (Source::Bigram, |_| Box::new(BigramSource)),
    (Source::Suggested, |_| Box::new(SuggestedSource::default())),
];
