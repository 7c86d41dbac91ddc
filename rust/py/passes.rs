//! `specds._core.pack_rows` and `read_outcomes`: input and output of a verification on a device.

use numpy::{PyReadonlyArray2, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use specds_core::verify::{self, PassRow};

use crate::arrays::{Matrix, shaped};
use crate::error::Result;
use crate::token_tree::TokenTree;

/// Writes the rows of a forward pass into the buffer that `specds.transformers.verify.inputs.Inputs` describes.
///
/// Args:
///     numbers: The buffer, int64, shape `(n,)`. Rows beyond those that are passed become padding.
///     width: Positions of each row.
///     token_ids: The last token of each row.
///     trees: The draft of each row; None for an empty one.
///     lengths: The number of tokens before the last one of each row.
///
/// Raises:
///     ValueError: The lists differ in length, or do not fit into the buffer.
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
        let message = "token_ids, trees and lengths must have one entry for each row";
        return Err(PyValueError::new_err(message).into());
    }
    let rows = (0..num_rows).map(|row| PassRow {
        last: token_ids[row],
        tree: trees[row].as_ref().map(|tree| &tree.get().0),
        length: lengths[row],
    });
    let rows: Vec<_> = rows.collect();
    Ok(verify::pack_rows(numbers.as_slice_mut()?, width, &rows)?)
}

type Outcome = (Vec<i64>, Vec<i64>, Matrix);

/// Reads the report that `specds.transformers.accept.on_device.report` makes of rows of `width` positions.
///
/// Returns:
///     For each row: its accepted nodes from root to leaf; their tokens and the one after them; the likeliest
///     tokens at every position, int64, shape `(width, num_predictions)`.
///
/// Raises:
///     ValueError: The shape of `reported` does not match `width`.
#[pyfunction]
pub(crate) fn read_outcomes(
    reported: PyReadonlyArray2<'_, i64>,
    width: usize,
) -> Result<Vec<Outcome>> {
    let length = reported.as_array().ncols().max(1);
    let rows = reported.as_slice()?.chunks_exact(length);
    let outcomes = rows.map(|row| {
        let outcome = verify::read_outcome(row, width)?;
        let k = outcome.predictions.len() / width.max(1);
        let predictions = shaped((width, k), outcome.predictions.to_vec())?;
        Ok((outcome.nodes, outcome.tokens.to_vec(), predictions))
    });
    outcomes.collect()
}
