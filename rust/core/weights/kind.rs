//! Kinds of experts: a source times what its experts look at. Each kind has weights of its own.

use crate::draft::token_tree::Source;

/// What an expert looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatchForm {
    /// The tokens that followed the source's matches.
    Exact,
    /// The second tokens after matches whose first one was another than the path's.
    SkipGram,
    /// The tokens after matches that go on beyond a changed token.
    Gapped,
    /// The tokens after the [anchors](crate::weights::associations) of the last token.
    Associated,
}

/// What an expert's weight is before anything was learned.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InitialWeight {
    /// A longer match counts more; the number is added.
    ByLength(f32),
    Fixed(f32),
}

/// A kind of expert: the number of a row of [`ROWS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ExpertKind(u8);

/// A corpus counts less than texts of the request.
const CORPUS: InitialWeight = InitialWeight::ByLength(0.0);
const REQUEST_TEXT: InitialWeight = InitialWeight::ByLength(1.5);
/// A match that leaves out a token counts least.
const INEXACT: InitialWeight = InitialWeight::Fixed(-1.0);
/// A suggestion counts as much as a long match, because it comes from someone who knows the model.
const SUGGESTED: InitialWeight = InitialWeight::Fixed(5.0);

/// All kinds. A row's place is the place of its weights in every table, so a new row goes to the end.
const ROWS: [(Source, MatchForm, InitialWeight); 18] = [
    (Source::Datastore, MatchForm::Exact, CORPUS),
    (Source::Context, MatchForm::Exact, REQUEST_TEXT),
    (Source::Memory, MatchForm::Exact, REQUEST_TEXT),
    (Source::PredictedOutput, MatchForm::Exact, REQUEST_TEXT),
    (Source::Recycled, MatchForm::Exact, REQUEST_TEXT),
    (Source::Bigram, MatchForm::Exact, CORPUS),
    (Source::Datastore, MatchForm::SkipGram, INEXACT),
    (Source::Context, MatchForm::SkipGram, INEXACT),
    (Source::Memory, MatchForm::SkipGram, INEXACT),
    (Source::PredictedOutput, MatchForm::SkipGram, INEXACT),
    (Source::Context, MatchForm::Associated, CORPUS),
    (Source::Suggested, MatchForm::Exact, SUGGESTED),
    (Source::Group, MatchForm::Exact, REQUEST_TEXT),
    (Source::Group, MatchForm::SkipGram, INEXACT),
    (Source::Context, MatchForm::Gapped, INEXACT),
    (Source::Memory, MatchForm::Gapped, INEXACT),
    (Source::PredictedOutput, MatchForm::Gapped, INEXACT),
    (Source::Group, MatchForm::Gapped, INEXACT),
];

impl ExpertKind {
    pub(crate) const COUNT: usize = ROWS.len();

    pub(crate) const DATASTORE: Self = Self::of(Source::Datastore, MatchForm::Exact);
    pub(crate) const CONTEXT: Self = Self::of(Source::Context, MatchForm::Exact);
    pub(crate) const MEMORY: Self = Self::of(Source::Memory, MatchForm::Exact);

    /// The kind of a source and a form that have a row; a constant without a row does not compile.
    pub(crate) const fn of(source: Source, form: MatchForm) -> Self {
        let mut row = 0;
        while ROWS[row as usize].0 as u8 != source as u8 || ROWS[row as usize].1 as u8 != form as u8
        {
            row += 1;
        }
        Self(row)
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// The name by which users know its source.
    pub(crate) const fn source(self) -> Source {
        ROWS[self.index()].0
    }

    /// How far its opinion on a candidate counts before anything was learned. A suggestion tells the
    /// likely tokens from one another; what counts occurrences has nothing to add to its share.
    pub(crate) fn initial_reliability(index: usize) -> f32 {
        if matches!(ROWS[index].0, Source::Suggested) { 0.3 } else { 0.0 }
    }

    /// Its weight for matches of the level `order` before anything was learned.
    pub(crate) fn initial_weight(index: usize, order: usize) -> f32 {
        match ROWS[index].2 {
            InitialWeight::ByLength(more) => 0.9 * order as f32 + more,
            InitialWeight::Fixed(weight) => weight,
        }
    }
}
