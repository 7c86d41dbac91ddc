//! Kinds of experts: a source times what its experts look at. Each kind has weights of its own.

use crate::draft::token_tree::Source;

/// What an expert looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The tokens that followed the source's matches.
    Plain,
    /// The second tokens after matches whose first one was another than the path's.
    Skip,
    /// The tokens after matches that go on beyond a changed token.
    Edited,
    /// The tokens after the [anchors](crate::weights::anchors) of the last token.
    Echo,
}

/// What an expert's weight is before anything was learned.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StartWeight {
    /// A longer match counts more; the number is added.
    ByLength(f32),
    Fixed(f32),
}

/// A kind of expert: the number of a row of [`ROWS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ExpertKind(u8);

/// A corpus counts less than texts of the request.
const CORPUS: StartWeight = StartWeight::ByLength(0.0);
const OWN: StartWeight = StartWeight::ByLength(1.5);
/// A match that leaves out a token counts least.
const LOOSE: StartWeight = StartWeight::Fixed(-1.0);
/// A suggestion counts as much as a long match, because it comes from someone who knows the model.
const SUGGESTED: StartWeight = StartWeight::Fixed(5.0);

/// All kinds. A row's place is the place of its weights in every table, so a new row goes to the end.
const ROWS: [(Source, Form, StartWeight); 18] = [
    (Source::Datastore, Form::Plain, CORPUS),
    (Source::Context, Form::Plain, OWN),
    (Source::Memory, Form::Plain, OWN),
    (Source::Predicted, Form::Plain, OWN),
    (Source::Recycled, Form::Plain, OWN),
    (Source::Bigram, Form::Plain, CORPUS),
    (Source::Datastore, Form::Skip, LOOSE),
    (Source::Context, Form::Skip, LOOSE),
    (Source::Memory, Form::Skip, LOOSE),
    (Source::Predicted, Form::Skip, LOOSE),
    (Source::Context, Form::Echo, CORPUS),
    (Source::Suggested, Form::Plain, SUGGESTED),
    (Source::Group, Form::Plain, OWN),
    (Source::Group, Form::Skip, LOOSE),
    (Source::Context, Form::Edited, LOOSE),
    (Source::Memory, Form::Edited, LOOSE),
    (Source::Predicted, Form::Edited, LOOSE),
    (Source::Group, Form::Edited, LOOSE),
];

impl ExpertKind {
    pub(crate) const COUNT: usize = ROWS.len();

    pub(crate) const DATASTORE: Self = Self::of(Source::Datastore, Form::Plain);
    pub(crate) const CONTEXT: Self = Self::of(Source::Context, Form::Plain);
    pub(crate) const MEMORY: Self = Self::of(Source::Memory, Form::Plain);

    /// The kind of a source and a form that have a row; a constant without a row does not compile.
    pub(crate) const fn of(source: Source, form: Form) -> Self {
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
    pub(crate) fn start_trust(index: usize) -> f32 {
        if matches!(ROWS[index].0, Source::Suggested) { 0.3 } else { 0.0 }
    }

    /// Its weight for matches of the level `order` before anything was learned.
    pub(crate) fn start_weight(index: usize, order: usize) -> f32 {
        match ROWS[index].2 {
            StartWeight::ByLength(more) => 0.9 * order as f32 + more,
            StartWeight::Fixed(weight) => weight,
        }
    }
}
