//! Sessions and sources of published drafters: REST, N-Grammys, prompt lookup and ADED.

use std::sync::Arc;

use numpy::{AllowTypeChange, PyArrayLike2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use specds_core::draft::model_tables;
use specds_core::papers::aded::{self, AdedSession, TrigramOptions};
use specds_core::papers::n_grammys::NGrammysSession;
use specds_core::papers::prompt_lookup::PromptLookupSession;
use specds_core::papers::rest::RestSession;
use specds_index::Report;

use crate::arrays::{Made, Matrix, int64, integers, rows_of_integers, shaped};
use crate::builder::report_to;
use crate::datastore::Datastore;
use crate::draft::DraftSession;
use crate::error::Result;
use crate::options;

/// Starts a session of REST (He et al. 2024), Algorithm 1.
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

/// Starts a session of N-Grammys (Stewart et al. 2024).
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

/// Starts a session of prompt lookup (Saxena 2023).
///
/// `specds.drafters.PromptLookupDrafter` documents the options.
#[pyfunction]
#[pyo3(signature = (**options))]
pub(crate) fn prompt_lookup_session(
    options: Option<&Bound<'_, PyDict>>,
) -> Result<Py<DraftSession>> {
    DraftSession::new(PromptLookupSession::new(options::read(options)?))
}

/// A model's unigram and bigram predictions; see `load_tables`.
///
/// Args:
///     bigram: Any integer dtype, shape `(vocab_size, k)`: the likeliest tokens after each token, likeliest first.
///     bigram_probs: float32, shape `(vocab_size, k)`, in [0, 1]: their probabilities.
///     unigram: Any integer dtype, shape `(vocab_size,)`: all tokens, likeliest first.
///
/// Raises:
///     ValueError: The shapes do not match, or a value is out of range.
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

    /// Number of predicted tokens after each token.
    #[getter]
    fn k(&self) -> usize {
        self.0.k()
    }

    /// The likeliest tokens after each token, int64, shape `(vocab_size, k)`.
    #[getter]
    fn bigram(&self) -> Result<Matrix> {
        let tokens = self.0.bigram().iter().map(|&token| token.into());
        shaped(self.shape(), tokens.collect())
    }

    /// The probabilities of `bigram`, float32, shape `(vocab_size, k)`.
    #[getter]
    fn bigram_probs(&self) -> Result<Matrix<f32>> {
        shaped(self.shape(), self.0.bigram_probs().to_vec())
    }

    /// All tokens, likeliest first, int64, shape `(vocab_size,)`.
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

/// The n-gram probabilities of a corpus, which are ADED's matrix (Liu et al. 2024), Eq. 1.
///
/// It is read-only, and threads may share it.
#[pyclass(frozen, module = "specds")]
pub(crate) struct Trigrams(pub(crate) Arc<aded::Trigrams>);

#[pymethods]
impl Trigrams {
    /// Counts the n-grams within the documents of a datastore.
    ///
    /// Args:
    ///     datastore: The datastore.
    ///     order: Tokens of an n-gram, 2 to 4.
    ///     max_words: Number of likeliest words that are stored for each prefix: the paper's t.
    ///     progress: As for `DatastoreBuilder.finish`.
    ///
    /// Raises:
    ///     ValueError: An argument is out of range, or the vocabulary has more than 2,097,152 tokens.
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

    /// Returns the words that follow `order - 1` tokens, with their probabilities.
    ///
    /// Returns:
    ///     Pairs of a token id and its probability: probability descending, then id ascending. The list is empty
    ///     if the tokens do not occur.
    fn words(&self, token_ids: &Bound<'_, PyAny>) -> PyResult<Vec<(u32, f32)>> {
        let tokens: Vec<u32> = integers(token_ids, "token_ids")?;
        Ok(self.0.words(&tokens))
    }

    /// Number of tokens of an n-gram.
    #[getter]
    fn order(&self) -> usize {
        self.0.options().order
    }

    /// Token ids are below this.
    #[getter]
    fn vocab_size(&self) -> u32 {
        self.0.vocab_size()
    }

    /// Number of stored n-grams.
    fn __len__(&self) -> usize {
        self.0.num_entries()
    }

    fn __repr__(&self) -> String {
        let (order, length) = (self.order(), self.__len__());
        format!("Trigrams(order={order}, {length} entries)")
    }
}

/// Trigrams with updates from the texts of requests.
///
/// Sessions that share an instance share its updates. The updates are discarded when they exceed about 32 MiB.
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

/// Starts a session of ADED (Liu et al. 2024), Algorithms 1 and 2.
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
