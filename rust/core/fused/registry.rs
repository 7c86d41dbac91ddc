//! The list of all sources.
//!
//! A new source is a file in `sources` and a row here.

use crate::draft::token_tree::Source;
use crate::fused::source::DraftSource;
use crate::fused::sources::bigrams::Bigrams;
use crate::fused::sources::corpus::Corpus;
use crate::fused::sources::echo::Echo;
use crate::fused::sources::recycled::Recycled;
use crate::fused::sources::suggested::Suggested;
use crate::fused::sources::text::Text;

/// The public name of a source, and the constructor of its state for one request.
type Row = (Source, fn(Source) -> Box<dyn DraftSource>);

/// All sources, in the order in which they are asked.
pub(crate) const REGISTRY: [Row; 9] = [
    (Source::Datastore, |_| Box::new(Corpus::default())),
    (Source::Context, |label| Box::new(Text::new(label))),
    (Source::Memory, |label| Box::new(Text::new(label))),
    (Source::Group, |label| Box::new(Text::new(label))),
    (Source::Predicted, |label| Box::new(Text::new(label))),
    (Source::Context, |_| Box::new(Echo)),
    (Source::Recycled, |_| Box::new(Recycled::default())),
    (Source::Bigram, |_| Box::new(Bigrams)),
    (Source::Suggested, |_| Box::new(Suggested::default())),
];
