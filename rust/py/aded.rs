//! `specds.Trigrams`, `specds.AdaptiveTrigrams` and the sessions that draft by them.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use specds::papers::aded::{
    self, Adaptation, AdedConfig, AdedSession, SearchConfig, SearchMethod, TrigramOptions,
};

use crate::arrays::integers;
use crate::builder::report_to;
use crate::datastore::Datastore;
use crate::draft::DraftSession;
use crate::error::py_err;

/// How likely a token is after one, two or three others, in a corpus.
#[pyclass(frozen, module = "specds")]
pub(crate) struct Trigrams(pub(crate) Arc<aded::Trigrams>);

impl From<aded::Trigrams> for Trigrams {
    fn from(trigrams: aded::Trigrams) -> Self {
        Self(Arc::new(trigrams))
    }
}

#[pymethods]
impl Trigrams {
    /// Counts the n-grams of a datastore.
    #[staticmethod]
    #[pyo3(signature = (datastore, *, order = 3, max_words = 12, min_count = 1, progress = None))]
    fn build(
        py: Python<'_>,
        datastore: &Bound<'_, Datastore>,
        order: usize,
        max_words: usize,
        min_count: u64,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let datastore = &datastore.get().0;
        let options = TrigramOptions {
            order,
            max_words,
            min_count,
        };
        report_to(py, progress, |report| {
            aded::Trigrams::build(datastore, options, report)
        })
        .map(Self::from)
    }

    /// Reads what `save` has written.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = py.detach(|| aded::Trigrams::open(&path));
        opened.map(Self::from).map_err(py_err)
    }

    /// Writes them to a new folder.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.0.save(&path)).map_err(py_err)
    }

    /// The words that follow some tokens and their probabilities, the likeliest first.
    fn words(&self, token_ids: &Bound<'_, PyAny>) -> PyResult<Vec<(u32, f32)>> {
        let tokens: Vec<u32> = integers(token_ids, "token_ids")?;
        Ok(self.0.words(&tokens))
    }

    #[getter]
    fn order(&self) -> usize {
        self.0.facts().order
    }

    #[getter]
    fn max_words(&self) -> usize {
        self.0.facts().max_words
    }

    #[getter]
    fn min_count(&self) -> u64 {
        self.0.facts().min_count
    }

    #[getter]
    fn vocab_size(&self) -> u32 {
        self.0.facts().vocab_size
    }

    #[getter]
    fn separator(&self) -> u32 {
        self.0.facts().separator
    }

    #[getter]
    fn tokenizer_name(&self) -> &str {
        &self.0.facts().tokenizer_name
    }

    #[getter]
    fn tokenizer_fingerprint(&self) -> &str {
        &self.0.facts().tokenizer_fingerprint
    }

    #[getter]
    fn corpus(&self) -> Vec<String> {
        self.0.facts().corpus.clone()
    }

    #[getter]
    fn num_prefixes(&self) -> usize {
        self.0.num_prefixes()
    }

    fn __len__(&self) -> usize {
        self.0.num_entries()
    }

    fn __repr__(&self) -> String {
        format!(
            "Trigrams(order={}, {} entries)",
            self.order(),
            self.__len__()
        )
    }
}

/// Tri-grams and what was learned since, for one request or for several at a time.
#[pyclass(frozen, module = "specds")]
pub(crate) struct AdaptiveTrigrams(Arc<aded::AdaptiveTrigrams>);

#[pymethods]
impl AdaptiveTrigrams {
    #[new]
    fn new(trigrams: &Bound<'_, Trigrams>) -> Self {
        let trigrams = Arc::clone(&trigrams.get().0);
        Self(Arc::new(aded::AdaptiveTrigrams::new(trigrams)))
    }
}

/// Starts a request that is drafted for as ADED does.
#[pyfunction]
#[pyo3(signature = (
    trigrams, *, search = "mcts", searches = 150, depth = 4, candidates = 24, c1 = 32.0, c2 = 8.0,
    adaptive = true, increment = 0.5, max_prob = 1.0, max_length = None, decay = 0.0,
    normalize = false, seed = 0
))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub(crate) fn aded_session(
    trigrams: &Bound<'_, AdaptiveTrigrams>,
    search: &str,
    searches: usize,
    depth: usize,
    candidates: usize,
    c1: f64,
    c2: f64,
    adaptive: bool,
    increment: f32,
    max_prob: f32,
    max_length: Option<usize>,
    decay: f32,
    normalize: bool,
    seed: u64,
) -> PyResult<DraftSession> {
    let method = match search {
        "mcts" => SearchMethod::Mcts,
        "greedy" => SearchMethod::Greedy,
        _ => {
            let message = format!("`search` must be `mcts` or `greedy`, not `{search}`");
            return Err(PyValueError::new_err(message));
        }
    };
    let adaptation = Adaptation {
        increment,
        max_prob,
        decay,
        normalize,
    };
    let config = AdedConfig {
        method,
        search: SearchConfig {
            searches,
            depth,
            candidates,
            c1,
            c2,
            seed,
        },
        adaptation: adaptive.then_some(adaptation),
        max_length: max_length.unwrap_or(usize::MAX),
    };
    let trigrams = Arc::clone(&trigrams.get().0);
    DraftSession::new(AdedSession::new(trigrams, config))
}
