//! `specds.TokenTree`.

use numpy::{AllowTypeChange, PyArrayLike1};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use specds_core::draft;

use crate::arrays::{Made, Matrix, int64, integers, shaped};
use crate::error::Result;

/// A draft: likely continuations of a context as a tree, best nodes first.
///
/// Args:
///     token_ids: Any integer dtype, shape `(n,)`.
///     parents: Any integer dtype, shape `(n,)`: the index of an earlier node, or -1 for a child of the context.
///     probs: float32, shape `(n,)`, in [0, 1]: the probability of the path to each node; all 0 by default.
///
/// Raises:
///     ValueError: The shapes differ, a parent does not come before its child, two siblings hold
///         the same token, or a value is out of range.
#[pyclass(frozen, module = "specds")]
pub(crate) struct TokenTree(pub(crate) draft::TokenTree);

#[pymethods]
impl TokenTree {
    #[new]
    #[pyo3(signature = (token_ids, parents, probs = None))]
    fn new(
        token_ids: &Bound<'_, PyAny>,
        parents: &Bound<'_, PyAny>,
        probs: Option<PyArrayLike1<'_, f32, AllowTypeChange>>,
    ) -> Result<Self> {
        let token_ids: Vec<u32> = integers(token_ids, "token_ids")?;
        let parents: Vec<i32> = integers(parents, "parents")?;
        let probs = match probs {
            Some(probs) => probs.as_array().to_vec(),
            None => vec![0.0; token_ids.len()],
        };
        Ok(Self(draft::TokenTree::new(token_ids, parents, probs)?))
    }

    /// Returns the tree of equally likely paths, whose probabilities are those after each node's parent.
    ///
    /// Args:
    ///     paths: The token ids of each path. Long paths are cut: a session takes at most 1,024 nodes.
    ///     known_tokens: A path ends before a token that is not below this.
    #[staticmethod]
    #[pyo3(signature = (paths, known_tokens = None))]
    fn of_paths(paths: Vec<Vec<u32>>, known_tokens: Option<u32>) -> Self {
        Self(draft::TokenTree::of_paths(&paths, known_tokens.unwrap_or(u32::MAX)))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!("TokenTree({} nodes)", self.0.len())
    }

    /// The token of each node, int64, shape `(n,)`.
    #[getter]
    fn token_ids(&self) -> Result<Made<i64>> {
        int64(self.0.token_ids().iter().copied())
    }

    /// The parent of each node, int64, shape `(n,)`; -1 is the last token of the context.
    #[getter]
    fn parents(&self) -> Result<Made<i64>> {
        int64(self.0.parents().iter().copied())
    }

    /// The probability of the path to each node, float32, shape `(n,)`.
    #[getter]
    fn probs(&self) -> Made<f32> {
        self.0.probs().to_vec().into()
    }

    /// The source of each node as an index into `SOURCES`, uint8, shape `(n,)`.
    ///
    /// If several sources drafted a node, it is the one with the largest share of its probability.
    #[getter]
    fn sources(&self) -> Made<u8> {
        let sources = self.0.sources().iter().map(|&source| source as u8);
        sources.collect::<Vec<_>>().into()
    }

    /// Returns the distance of each node from the last token of the context, at least 1; int64, shape `(n,)`.
    fn depths(&self) -> Result<Made<i64>> {
        int64(self.0.depths())
    }

    /// Returns the ancestor mask, bool, shape `(n, n)`: true at [i, j] if node j is node i or an ancestor of it.
    fn mask(&self) -> Result<Matrix<bool>> {
        let n = self.0.len();
        shaped((n, n), self.0.mask())
    }

    /// Returns the node indices from a root to each leaf, int64 arrays in the order of the leaves.
    fn paths(&self) -> Result<Vec<Made<i64>>> {
        self.0.paths().into_iter().map(int64).collect()
    }

    /// Accepts the path that follows the model's choices, as greedy verification does.
    ///
    /// Args:
    ///     predictions: The model's tokens, any integer dtype, shape `(1 + n,)`: the one after the context, then
    ///         the one after each node.
    ///
    /// Returns:
    ///     The accepted nodes, shape `(m,)`, in the order of the text; and the tokens to emit, shape `(m + 1,)`:
    ///     those of the nodes and the model's own token after them. Both are int64.
    ///
    /// Raises:
    ///     ValueError: `predictions` has another length.
    fn accept(&self, predictions: &Bound<'_, PyAny>) -> Result<(Made<i64>, Made<i64>)> {
        let predictions: Vec<u32> = integers(predictions, "predictions")?;
        let (path, tokens) = self.0.accept(&predictions)?;
        Ok((int64(path)?, int64(tokens)?))
    }

    /// Returns the nodes of the longest path that is a prefix of a text, in the order of the text.
    ///
    /// Args:
    ///     token_ids: Any integer dtype, shape `(n,)`.
    fn follow(&self, token_ids: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
        let text: Vec<u32> = integers(token_ids, "token_ids")?;
        Ok(self.0.follow(&text))
    }

    /// Returns the child of a node, or of the context for -1, with this token; None if there is none.
    fn child(&self, parent: i32, token: u32) -> Option<usize> {
        self.0.child(parent, token)
    }

    /// Returns the first `max_nodes` of the nodes up to depth `max_depth`; None for no limit.
    #[pyo3(signature = (max_nodes = None, max_depth = None))]
    fn limited(
        slf: Bound<'_, Self>,
        max_nodes: Option<usize>,
        max_depth: Option<usize>,
    ) -> PyResult<Bound<'_, Self>> {
        let [max_nodes, max_depth] = [max_nodes, max_depth].map(|most| most.unwrap_or(usize::MAX));
        let tree = &slf.get().0;
        if tree.len() <= max_nodes.min(max_depth) {
            return Ok(slf);
        }
        Bound::new(slf.py(), Self(tree.clone().limited(max_nodes, max_depth)))
    }

    /// Returns the nodes before the first one whose token is not below `vocab_size`.
    fn known(slf: Bound<'_, Self>, vocab_size: u32) -> PyResult<Bound<'_, Self>> {
        let tree = slf.get().0.clone().known(vocab_size);
        if tree.len() == slf.get().0.len() {
            return Ok(slf);
        }
        Bound::new(slf.py(), Self(tree))
    }

    /// Returns the `max_nodes` likeliest of the nodes that a constraint allows.
    ///
    /// The siblings of a forbidden node share its probability in proportion to theirs.
    ///
    /// Args:
    ///     constraint: A `specds.constraints.Constraint` of the text so far, which is the same afterwards.
    ///     max_nodes: Maximum number of nodes.
    ///     ends: Whether everything is forbidden after the end of the grammar.
    ///
    /// Raises:
    ///     TypeError: The object is not a constraint.
    #[pyo3(signature = (constraint, max_nodes, *, ends = false))]
    fn allowed(&self, constraint: &Bound<'_, PyAny>, max_nodes: usize, ends: bool) -> Result<Self> {
        let removed = removed(&self.0, constraint, ends)?;
        Ok(Self(self.0.pruned(&removed, max_nodes)?))
    }

    /// Returns the path with the largest sum of probabilities; of equal ones the longest, then the first.
    fn best_chain(&self) -> Self {
        Self(self.0.best_chain())
    }
}

/// Returns for each node whether it is forbidden or below one that is.
fn removed(
    tree: &draft::TokenTree,
    constraint: &Bound<'_, PyAny>,
    ends: bool,
) -> PyResult<Vec<bool>> {
    let py = constraint.py();
    if !constraint.hasattr(intern!(py, "push"))? {
        let reason = "`constraint` must be a `specds.constraints.Constraint`";
        return Err(PyTypeError::new_err(reason));
    }
    let has_ended = || constraint.getattr(intern!(py, "ended"))?.is_truthy();
    let mut removed = vec![true; tree.len()];
    let mut paths = tree.paths();
    if !has_ended()?
        && let Some(num_allowed) = constraint.getattr_opt(intern!(py, "num_allowed"))?
    {
        for path in paths {
            let tokens: Vec<u32> = path.iter().map(|&node| tree.token_ids()[node]).collect();
            let count: usize = num_allowed.call1((tokens,))?.extract()?;
            path.iter().take(count).for_each(|&node| removed[node] = false);
        }
        return Ok(removed);
    }
    let push = constraint.getattr(intern!(py, "push"))?;
    let pop = |count: usize| match count {
        0 => Ok(None),
        _ => constraint.call_method1(intern!(py, "pop"), (count,)).map(Some),
    };
    // Neighbors have the most nodes in common, each of which is pushed once.
    paths.sort_unstable();
    let (mut pushed, mut forbidden) = (Vec::new(), None);
    for path in paths {
        let shared = path.iter().zip(&pushed).take_while(|(node, of)| node == of).count();
        pop(pushed.len() - shared)?;
        pushed.truncate(shared);
        for &node in &path[shared..] {
            let is_allowed = forbidden != Some(node)
                && !(ends && has_ended()?)
                && push.call1((tree.token_ids()[node],))?.is_truthy()?;
            if !is_allowed {
                forbidden = Some(node);
                break;
            }
            removed[node] = false;
            pushed.push(node);
        }
    }
    pop(pushed.len())?;
    Ok(removed)
}
