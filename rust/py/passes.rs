//! `specds._core.pack_rows` and `read_outcomes`: a verification as the device takes and tells it.

use numpy::{PyReadonlyArray2, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use specds::draft::{self, PassRow};

use crate::arrays::{Matrix, shaped};
use crate::error::Result;
use crate::token_tree::TokenTree;

/// Writes the rows of a pass into the memory that `specds.verify.inputs.Inputs` describes, of `width` places each.
///
/// A row is its last token, its draft (None where that is empty), and how many tokens come before the last
/// one. Rows that are left become padding. Raises ValueError where these are not as many as each other, or do
/// not fit.
#[pyfunction]
pub(crate) fn pack_rows(
    mut numbers: PyReadwriteArray1<'_, i64>,
    width: usize,
    token_ids: Vec<i64>,
    trees: Vec<Option<Bound<'_, TokenTree>>>,
    lengths: Vec<i64>,
) -> Result<()> {
    let num_rows = token_ids.len();
    if [trees.len(), lengths.len()] != [num_rows; 2] {
        let message = "token_ids, trees and lengths must have one for each row";
        return Err(PyValueError::new_err(message).into());
    }
    let rows = (0..num_rows).map(|row| PassRow {
        last: token_ids[row],
        tree: trees[row].as_ref().map(|tree| &tree.get().0),
        length: lengths[row],
    });
    let rows: Vec<_> = rows.collect();
    Ok(draft::pack_rows(numbers.as_slice_mut()?, width, &rows)?)
}

type Outcome = (Vec<i64>, Vec<i64>, Matrix);

/// Reads what `specds.accept.on_device.report` tells of rows of `width` places; ValueError where it does not fit.
///
/// Gives for each row its accepted nodes, root to leaf; their tokens and the one after them; and the likeliest
/// tokens at every place, shape `(width, num_predictions)`.
#[pyfunction]
pub(crate) fn read_outcomes(
    reported: PyReadonlyArray2<'_, i64>,
    width: usize,
) -> Result<Vec<Outcome>> {
    let length = reported.as_array().ncols().max(1);
    let rows = reported.as_slice()?.chunks_exact(length);
    let outcomes = rows.map(|row| {
        let outcome = draft::read_outcome(row, width)?;
        let k = outcome.predictions.len() / width.max(1);
        let predictions = shaped((width, k), outcome.predictions.to_vec())?;
        Ok((outcome.nodes, outcome.tokens.to_vec(), predictions))
    });
    outcomes.collect()
}
