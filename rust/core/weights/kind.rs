//! Kinds of experts, each with weights of its own.

use crate::draft::token_tree::Source;

/// What an expert looks at: the matches of its source, those with a skipped token, or with an edit. The
/// weights of each lie one after the other: another number of them is another version of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub(crate) enum Kind {
    #[default]
    Corpus,
    Context,
    Memory,
    Expected,
    Recycled,
    Bigram,
    CorpusSkip,
    ContextSkip,
    MemorySkip,
    ExpectedSkip,
    Echo,
    Suggested,
    Group,
    GroupSkip,
    ContextEdited,
    MemoryEdited,
    ExpectedEdited,
    GroupEdited,
}

impl Kind {
    pub(crate) const COUNT: usize = Self::GroupEdited as usize + 1;

    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// What users know its source by.
    pub(crate) fn label(self) -> Source {
        match self {
            Self::Corpus | Self::CorpusSkip => Source::Datastore,
            Self::Context | Self::ContextSkip | Self::ContextEdited | Self::Echo => Source::Context,
            Self::Memory | Self::MemorySkip | Self::MemoryEdited => Source::Memory,
            Self::Expected | Self::ExpectedSkip | Self::ExpectedEdited => Source::Predicted,
            Self::Group | Self::GroupSkip | Self::GroupEdited => Source::Group,
            Self::Recycled => Source::Recycled,
            Self::Bigram => Source::Bigram,
            Self::Suggested => Source::Suggested,
        }
    }
}
