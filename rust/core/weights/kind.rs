//! Kinds of experts: a source and a form of match. Each kind has its own weights.

use crate::draft::token_tree::Source;

/// The form of the matches behind an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatchForm {
    /// Continuations of exact matches.
    Exact,
    /// The second tokens after matches whose first one differs from the path.
    SkipGram,
    /// Continuations of matches with a changed, inserted or deleted token.
    Gapped,
    /// Tokens after the [associations](crate::weights::associations) of the last token.
    Associated,
}

/// The initial weight of an expert.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InitialWeight {
    /// A weight that grows with the match length, plus a constant.
    ByLength(f32),
    /// A weight that does not depend on the match length.
    Fixed(f32),
}

/// A kind of expert: the index of a row of [`ROWS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ExpertKind(u8);

/// The weight of a corpus, which is less than that of sequences of the request.
const CORPUS: InitialWeight = InitialWeight::ByLength(0.0);
/// The weight of sequences that belong to the request or its tenant.
const REQUEST_TEXT: InitialWeight = InitialWeight::ByLength(1.5);
/// The weight of matches that skip a token, which is the smallest.
const INEXACT: InitialWeight = InitialWeight::Fixed(-1.0);
/// The weight of external proposals. It equals that of a long match, because a proposal comes from a
/// model.
const SUGGESTED: InitialWeight = InitialWeight::Fixed(5.0);

/// All kinds. The index of a row is the index of its weights in every table, so new rows are appended.
const ROWS: &[(Source, MatchForm, InitialWeight)] = &[
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

    /// Returns the kind of a source and a form. A constant without a row does not compile.
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

    /// Returns the public label of its source.
    pub(crate) const fn source(self) -> Source {
        ROWS[self.index()].0
    }

    /// Returns the initial reliability of its log-likelihood ratios. Only proposals distinguish likely
    /// tokens beyond their counts; all other experts start at 0.
    pub(crate) fn initial_reliability(index: usize) -> f32 {
        if matches!(ROWS[index].0, Source::Suggested) { 0.3 } else { 0.0 }
    }

    /// Returns its initial weight for matches of the length bucket `order`.
    pub(crate) fn initial_weight(index: usize, order: usize) -> f32 {
        match ROWS[index].2 {
            InitialWeight::ByLength(more) => 0.9 * order as f32 + more,
            InitialWeight::Fixed(weight) => weight,
        }
    }
}
