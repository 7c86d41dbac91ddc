//! The options of an engine's drafter.

use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::budget::step_cost::StepCost;
use crate::fused::effort::Effort;
use crate::memory::indexed_tokens::IndexedTokens;
use crate::memory::object_store::{as_url, of_tenants};
use specds_index::base::checks::check_within;
use specds_index::{Error, Result};

/// The earlier requests that a request drafts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryScope {
    /// No earlier requests: nothing that depends on a request's text survives it.
    #[default]
    None,
    /// The tenant's own requests; as `None` for a request without a tenant.
    Tenant,
    /// The tenant's own requests; all requests without a tenant belong to one.
    Shared,
}

/// The cost of a step, which makes drafts smaller as the batch grows.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum LoadCost {
    /// Drafts are as large as the engine allows.
    #[default]
    Ignored,
    /// The cost is measured from the engine's own steps. With several ranks, their drafts would differ.
    Measured,
    /// The operator specifies the cost.
    Given(StepCost),
}

impl Serialize for LoadCost {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Ignored => serializer.serialize_str("ignored"),
            Self::Measured => serializer.serialize_str("measured"),
            Self::Given(cost) => cost.points().serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for LoadCost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(name) if name == "ignored" => Ok(Self::Ignored),
            Value::String(name) if name == "measured" => Ok(Self::Measured),
            points => {
                let points = serde_json::from_value(points.clone()).map_err(|_| {
                    D::Error::custom(format!(
                        "expected `measured`, `ignored` or points [tokens, seconds], not {points}"
                    ))
                })?;
                StepCost::new(points).map(Self::Given).map_err(D::Error::custom)
            }
        }
    }
}

/// The options of an [`EngineDrafter`](crate::engine::EngineDrafter).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// The folder of a datastore.
    pub datastore: Option<PathBuf>,
    /// A folder or the URL of a store with the memory and the weights to start from, written only with
    /// [`sync_interval`](Self::sync_interval).
    pub snapshot: Option<PathBuf>,
    /// Seconds between two exchanges of the memory with the snapshot. A datastore that was replaced is then
    /// opened again.
    pub sync_interval: Option<f64>,
    pub memory_scope: MemoryScope,
    pub memory_bytes: usize,
    /// Size limit of one tenant in the memory; `None` for that of the memory.
    pub memory_tenant_bytes: Option<usize>,
    /// Seconds after which texts leave the memory and the store.
    pub memory_max_age: Option<f64>,
    /// The search effort; `auto` is low until the engine reports the time of a step.
    pub effort: Effort,
    /// True to use the target model's predictions, if the engine passes them on.
    pub recycle_predictions: bool,
    /// Minimum probability of a path of a chain, unless the engine specifies one. The default is 0.1 if the cost
    /// of a step is ignored, else 0.
    pub min_prob: Option<f32>,
    /// Rows with more tokens get no drafts.
    pub max_context: usize,
    pub num_threads: usize,
    /// Seconds that the grammar of a row may take per step, on average over ten steps. Beyond, an engine's adapter
    /// drafts no more for the request, because the whole batch waits for each row.
    pub max_row_time: f64,
    /// The cost of a step. The default is [that of the engine](EngineInfo::step_cost), or measured if the engine
    /// [times its steps](EngineInfo::times_steps), else ignored.
    pub step_cost: Option<LoadCost>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            datastore: None,
            snapshot: None,
            sync_interval: None,
            memory_scope: MemoryScope::None,
            memory_bytes: 1 << 28,
            memory_tenant_bytes: None,
            memory_max_age: None,
            effort: Effort::Auto,
            recycle_predictions: true,
            min_prob: None,
            max_context: IndexedTokens::MAX_LENGTH,
            num_threads: 1,
            max_row_time: 0.002,
            step_cost: None,
        }
    }
}

impl EngineConfig {
    /// Minimum probability of a path of a chain if the cost of a step is ignored.
    const MIN_PROB: f32 = 0.1;

    /// Replaces the defaults that depend on the engine.
    pub(crate) fn resolved(mut self, engine: &EngineInfo) -> Self {
        let default = match &engine.step_cost {
            Some(cost) => LoadCost::Given(cost.clone()),
            None if engine.times_steps => LoadCost::Measured,
            None => LoadCost::Ignored,
        };
        let is_ignored = *self.step_cost.get_or_insert(default) == LoadCost::Ignored;
        self.min_prob.get_or_insert(if is_ignored { Self::MIN_PROB } else { 0.0 });
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_within("min_prob", self.min_prob.unwrap_or(0.0), 0.0..=1.0)?;
        if let Some(seconds) = self.sync_interval {
            check_within("sync_interval", seconds, 0.001..=MAX_INTERVAL)?;
            if self.snapshot.is_none() || self.memory_scope == MemoryScope::None {
                let reason = "shares a memory: pass its folder as `snapshot`, and a `memory_scope` of \
                              `tenant` or `shared`";
                return Err(Error::invalid("sync_interval", reason));
            }
            self.check_snapshot_folder()?;
        }
        if let Some(seconds) = self.memory_max_age {
            check_within("memory_max_age", seconds, 1.0..=MAX_AGE)?;
        }
        check_within("max_context", self.max_context, 1..=IndexedTokens::MAX_LENGTH)?;
        check_within("max_row_time", self.max_row_time, 0.0..=MAX_INTERVAL)?;
        check_within("num_threads", self.num_threads, 1..=usize::MAX)
    }

    /// Checks that the folder in which the snapshot will be made exists.
    fn check_snapshot_folder(&self) -> Result<()> {
        let path = self.snapshot.as_deref().filter(|path| as_url(path).is_none());
        let base = path.and_then(of_tenants);
        let parent = base
            .as_deref()
            .or(path)
            .and_then(Path::parent)
            .filter(|parent| !parent.as_os_str().is_empty());
        match parent {
            Some(parent) if !parent.is_dir() => {
                let parent = parent.display();
                let reason = format!("is in `{parent}`, which is not a folder: make that first");
                Err(Error::invalid("snapshot", reason))
            }
            _ => Ok(()),
        }
    }
}

/// The longest interval: a day, in seconds.
const MAX_INTERVAL: f64 = 86_400.0;

/// The greatest limit of age: a hundred years, in seconds.
const MAX_AGE: f64 = 3_153_600_000.0;

/// The properties that an engine reports when it opens a drafter.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineInfo {
    /// Only tokens below this are drafted; `None` if it is not known.
    pub vocab_size: Option<u32>,
    /// The fingerprint of the tokenizer; empty if it is not known.
    pub tokenizer: String,
    /// True if the engine reports the time of each step.
    pub times_steps: bool,
    /// The usual cost of a further token, over a step of one token; `None` if it is not known.
    pub token_cost: Option<f64>,
    /// The cost of a step as the engine measured it before.
    pub step_cost: Option<StepCost>,
}
