//! The sessions of the papers: REST, N-Grammys, prompt lookup, ADED; and what they draft from.

use std::sync::Arc;

use numpy::{AllowTypeChange, PyArrayLike2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use specds::draft::model_tables;
use specds::papers::aded::{self, AdedSession, TrigramOptions};
use specds::papers::n_grammys::NGrammysSession;
use specds::papers::prompt_lookup::PromptLookupSession;
use specds::papers::rest::RestSession;
use specds_index::Report;

use crate::arrays::{Made, Matrix, int64, integers, rows_of_integers, shaped};
use crate::builder::report_to;
use crate::datastore::Datastore;
use crate::draft::DraftSession;
use crate::error::Result;
use crate::options;

/// Starts a request that is drafted for as REST does (He et al. 2024), Algorithm 1.
///
/// `specds.drafters.RestConfig` documents the options.
#[pyfunction]
#[pyo3(signature = (datastore, **options))]
pub(crate) fn rest_session(
    datastore: &Bound<'_, Datastore>,
    options: Option<&Bound<'_, PyDict>>,
) -> Result<Py<DraftSession>> {
    let datastore = datastore.get().opened()?;
    DraftSession::new(RestSession::new(datastore, options::read(options)?))
}

/// Starts a request that is drafted for as N-Grammys do (Stewart et al. 2024).
///
/// `specds.drafters.NGrammysConfig` documents the options.
#[pyfunction]
#[pyo3(signature = (tables, **options))]
pub(crate) fn n_grammys_session(
    tables: Option<&Bound<'_, ModelTables>>,
    options: Option<&Bound<'_, PyDict>>,
) -> Result<Py<DraftSession>> {
    let tables = tables.map(|tables| Arc::clone(&tables.get().0));
    DraftSession::new(NGrammysSession::new(tables, options::read(options)?))
}

/// Starts a request that is drafted for by prompt lookup (Saxena 2023).
///
/// `specds.drafters.PromptLookupDrafter` documents the options.
#[pyfunction]
#[pyo3(signature = (**options))]
pub(crate) fn prompt_lookup_session(
    options: Option<&Bound<'_, PyDict>>,
) -> Result<Py<DraftSession>> {
    DraftSession::new(PromptLookupSession::new(options::read(options)?))
}

/// What a model predicts without a context, or after a single token; see `load_tables`.
///
/// Args:
///     bigram: Shape `(vocab_size, k)`: the tokens held likeliest after each token, best first.
///     bigram_probs: Shape `(vocab_size, k)`, in [0, 1]: how likely each of them is.
///     unigram: Shape `(vocab_size,)`: the vocabulary, best token first.
///
/// Raises:
///     ValueError: The shapes do not fit, or a value is out of range.
#[pyclass(frozen, module = "specds")]
pub(crate) struct ModelTables(pub(crate) Arc<model_tables::ModelTables>);

#[pymethods]
impl ModelTables {
    #[new]
    fn new(
        bigram: &Bound<'_, PyAny>,
        bigram_probs: PyArrayLike2<'_, f32, AllowTypeChange>,
        unigram: &Bound<'_, PyAny>,
    ) -> Result<Self> {
        let unigram: Vec<u32> = integers(unigram, "unigram")?;
        let (k, bigram) = rows_of_integers(bigram, "bigram")?;
        let shape = [unigram.len(), k];
        if bigram_probs.shape() != shape {
            let found = bigram_probs.shape();
            let message = format!(
                "`bigram` and `bigram_probs` must have a row for each of {} tokens: {shape:?}, \
                 not {found:?}",
                unigram.len()
            );
            return Err(PyValueError::new_err(message).into());
        }
        let bigram_probs = bigram_probs.as_array().iter().copied().collect();
        let tables = model_tables::ModelTables::new(bigram, bigram_probs, unigram)?;
        Ok(Self(Arc::new(tables)))
    }

    fn __repr__(&self) -> String {
        let (vocab_size, k) = (self.0.vocab_size(), self.0.k());
        format!("ModelTables({vocab_size} tokens, {k} after each)")
    }

    /// Token ids are below this.
    #[getter]
    fn vocab_size(&self) -> u32 {
        self.0.vocab_size()
    }

    /// How many tokens are known after each.
    #[getter]
    fn k(&self) -> usize {
        self.0.k()
    }

    /// Shape `(vocab_size, k)`.
    #[getter]
    fn bigram(&self) -> Result<Matrix> {
        let tokens = self.0.bigram().iter().map(|&token| token.into());
        shaped(self.shape(), tokens.collect())
    }

    /// Shape `(vocab_size, k)`.
    #[getter]
    fn bigram_probs(&self) -> Result<Matrix<f32>> {
        shaped(self.shape(), self.0.bigram_probs().to_vec())
    }

    /// Shape `(vocab_size,)`.
    #[getter]
    fn unigram(&self) -> Result<Made<i64>> {
        int64(self.0.unigram().iter().copied())
    }
}

impl ModelTables {
    fn shape(&self) -> (usize, usize) {
        (self.0.vocab_size() as usize, self.0.k())
    }
}

/// How likely a word is after two others, in a corpus: ADED's matrix (Liu et al. 2024), Eq. 1.
///
/// Read-only; safe to share by threads.
#[pyclass(frozen, module = "specds")]
pub(crate) struct Trigrams(pub(crate) Arc<aded::Trigrams>);

#[pymethods]
impl Trigrams {
    /// Counts the n-grams of a datastore. None reaches across the end of a document.
    ///
    /// Args:
    ///     datastore: However it is cut into shards.
    ///     order: The tokens of an n-gram, 2 to 4.
    ///     max_words: Keep at most this many words after each prefix, the likeliest: the paper's t.
    ///     progress: As for `DatastoreBuilder.finish`.
    ///
    /// Raises:
    ///     ValueError: An argument is out of its bounds, or the vocabulary above 2,097,152.
    #[staticmethod]
    #[pyo3(signature = (datastore, *, progress = None, **options))]
    fn build(
        py: Python<'_>,
        datastore: &Bound<'_, Datastore>,
        progress: Option<Py<PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<Self> {
        let datastore = &datastore.get().opened()?;
        let options: TrigramOptions = options::read(options)?;
        let build = |report: &mut Report<'_>| aded::Trigrams::build(datastore, options, report);
        Ok(Self(Arc::new(report_to(py, progress, build)?)))
    }

    /// The words that follow `order - 1` tokens and their probabilities.
    ///
    /// Returns:
    ///     The likeliest first, of equals the smaller id; none where these tokens do not occur.
    fn words(&self, token_ids: &Bound<'_, PyAny>) -> PyResult<Vec<(u32, f32)>> {
        let tokens: Vec<u32> = integers(token_ids, "token_ids")?;
        Ok(self.0.words(&tokens))
    }

    /// Tokens of an n-gram.
    #[getter]
    fn order(&self) -> usize {
        self.0.options().order
    }

    /// Token ids are below this.
    #[getter]
    fn vocab_size(&self) -> u32 {
        self.0.vocab_size()
    }

    /// The n-grams that are kept.
    fn __len__(&self) -> usize {
        self.0.num_entries()
    }

    fn __repr__(&self) -> String {
        let (order, length) = (self.order(), self.__len__());
        format!("Trigrams(order={order}, {length} entries)")
    }
}

/// Tri-grams and what was learned since, for one request or for several at a time.
///
/// Sessions that share one learn from each other. Beyond some 32 MiB, what was learned is forgotten.
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

/// Starts a request that is drafted for as ADED does (Liu et al. 2024), Algorithms 1 and 2.
///
/// `specds.drafters.AdedConfig` documents the options.
#[pyfunction]
#[pyo3(signature = (trigrams, **options))]
pub(crate) fn aded_session(
    trigrams: &Bound<'_, AdaptiveTrigrams>,
    options: Option<&Bound<'_, PyDict>>,
) -> Result<Py<DraftSession>> {
    let trigrams = Arc::clone(&trigrams.get().0);
    DraftSession::new(AdedSession::new(trigrams, options::read(options)?))
}
