//! Which sources are there?
//!
//! A new source is a file in `sources` and a row here.

use crate::draft::token_tree::Source;
use crate::fused::evidence::Kind;
use crate::fused::source::DraftSource;
use crate::fused::sources::bigrams::Bigrams;
use crate::fused::sources::corpus::Corpus;
use crate::fused::sources::echo::Echo;
use crate::fused::sources::recycled::Recycled;
use crate::fused::sources::suggested::Suggested;
use crate::fused::sources::text::Text;

/// A source of drafts.
pub(crate) struct Row {
    /// What users know it by: accepted tokens are credited to this name.
    pub(crate) label: Source,
    /// The kinds of its experts: no other row has them.
    pub(crate) kinds: &'static [Kind],
    /// Makes the source for one request.
    pub(crate) open: fn() -> Box<dyn DraftSource>,
}

/// All sources, in the order in which they are asked.
pub(crate) const REGISTRY: [Row; 9] = [
    Row {
        label: Source::Datastore,
        kinds: &[Kind::CORPUS, Kind::CORPUS_SKIP],
        open: || Box::new(Corpus::default()),
    },
    Row {
        label: Source::Context,
        kinds: &[Kind::CONTEXT, Kind::CONTEXT_SKIP, Kind::CONTEXT_EDITED],
        open: || Box::new(Text::context()),
    },
    Row {
        label: Source::Memory,
        kinds: &[Kind::MEMORY, Kind::MEMORY_SKIP, Kind::MEMORY_EDITED],
        open: || Box::new(Text::memory()),
    },
    Row {
        label: Source::Group,
        kinds: &[Kind::GROUP, Kind::GROUP_SKIP, Kind::GROUP_EDITED],
        open: || Box::new(Text::group()),
    },
    Row {
        label: Source::Predicted,
        kinds: &[Kind::EXPECTED, Kind::EXPECTED_SKIP, Kind::EXPECTED_EDITED],
        open: || Box::new(Text::expected()),
    },
    Row {
        label: Source::Context,
        kinds: &[Kind::ECHO],
        open: || Box::new(Echo),
    },
    Row {
        label: Source::Recycled,
        kinds: &[Kind::RECYCLED],
        open: || Box::new(Recycled::default()),
    },
    Row {
        label: Source::Bigram,
        kinds: &[Kind::BIGRAM],
        open: || Box::new(Bigrams),
    },
    Row {
        label: Source::Suggested,
        kinds: &[Kind::SUGGESTED],
        open: || Box::new(Suggested::default()),
    },
];

/// The name of each kind's source.
const LABELS: [Source; Kind::COUNT] = {
    let mut labels = [Source::Other; Kind::COUNT];
    let mut row = 0;
    while row < REGISTRY.len() {
        let mut kind = 0;
        while kind < REGISTRY[row].kinds.len() {
            labels[REGISTRY[row].kinds[kind].index()] = REGISTRY[row].label;
            kind += 1;
        }
        row += 1;
    }
    labels
};

/// What users know the source of this kind of experts by.
pub(crate) fn label_of(kind: Kind) -> Source {
    LABELS[kind.index()]
}

#[cfg(test)]
mod tests {
    use super::REGISTRY;
    use crate::fused::evidence::Kind;

    #[test]
    fn each_kind_of_expert_belongs_to_one_source() {
        let kinds = REGISTRY.iter().flat_map(|row| row.kinds);
        let mut kinds: Vec<usize> = kinds.map(|kind| kind.index()).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, (0..Kind::COUNT).collect::<Vec<_>>());
    }
}
