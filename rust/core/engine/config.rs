//! What may an operator say of a drafter in an engine, as one JSON object?

use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::base::checks::{check_limit, check_within};
use crate::base::error::{Error, Result};
use crate::engine::load::StepCost;
use crate::fused::effort::Effort;
use crate::memory::history::History;

/// Whose earlier requests are drafted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryUse {
    /// Nobody's: most engines do not tell whose a request is.
    #[default]
    Off,
    /// A tenant's own, where the engine tells the tenant.
    Tenants,
    /// Everybody's: the operator says that all requests are of one tenant.
    Shared,
}

/// What the step of an engine costs, by which drafts become smaller as the batch grows.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum LoadCost {
    /// Drafts are as large as the engine allows.
    #[default]
    Ignored,
    /// As the engine's own steps take; only where there is one rank.
    Measured,
    /// As the operator says.
    Given(StepCost),
}

/// What the operator of an engine says, one field a key of the JSON object.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// The folder of a datastore.
    pub datastore: Option<PathBuf>,
    /// A file with the memory and the weights to start from. It is read, and written only where there
    /// is [`save_every`](Self::save_every).
    pub snapshot: Option<PathBuf>,
    /// The seconds between two times at which the memory takes in what other processes wrote to the
    /// snapshot, and is written there; a datastore that was replaced is then opened anew.
    pub save_every: Option<f64>,
    /// Whose earlier requests are drafted from.
    pub memory: MemoryUse,
    /// The most bytes of the memory.
    pub memory_bytes: usize,
    /// How much of its sources a draft reads; `auto` is low until the engine tells what a step takes.
    pub effort: Effort,
    /// Whether the target model's predictions are used, where the engine gives them.
    pub recycled: bool,
    /// The least probability of a node of a chain, where the engine does not say.
    pub min_prob: f32,
    /// Rows with more tokens are not drafted for.
    pub max_context: usize,
    /// The most threads that draft at a time.
    pub num_threads: usize,
    /// What a step costs.
    pub step_cost: LoadCost,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            datastore: None,
            snapshot: None,
            save_every: None,
            memory: MemoryUse::Off,
            memory_bytes: 1 << 28,
            effort: Effort::Auto,
            recycled: true,
            min_prob: 0.0,
            max_context: History::MAX_LENGTH,
            num_threads: 1,
            step_cost: LoadCost::Ignored,
        }
    }
}

impl EngineConfig {
    /// The keys of the JSON object.
    pub const KEYS: [&str; 11] = [
        "datastore",
        "snapshot",
        "save_every",
        "memory",
        "memory_bytes",
        "effort",
        "recycled",
        "min_prob",
        "max_context",
        "num_threads",
        "step_cost",
    ];

    /// Reads a JSON object; keys that are missing have their defaults.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] with the name of the key that is unknown or has no usable value.
    pub fn from_json(text: &str) -> Result<Self> {
        let object: Map<String, Value> = serde_json::from_str(text)
            .map_err(|error| Error::invalid("config", format!("is no JSON object: {error}")))?;
        let mut config = Self::default();
        for (key, value) in object {
            config.set(&key, value)?;
        }
        check_within("min_prob", config.min_prob, 0.0..=1.0)?;
        if let Some(seconds) = config.save_every {
            check_within("save_every", seconds, 0.001..=MAX_INTERVAL)?;
            if config.snapshot.is_none() || config.memory == MemoryUse::Off {
                let reason = "shares a memory: give its file as `snapshot`, and a `memory` of \
                              `shared` or `tenants`";
                return Err(Error::invalid("save_every", reason));
            }
        }
        check_limit("max_context", config.max_context, History::MAX_LENGTH)?;
        check_limit("num_threads", config.num_threads, usize::MAX)?;
        Ok(config)
    }

    fn set(&mut self, key: &str, value: Value) -> Result<()> {
        match key {
            "datastore" => self.datastore = read("datastore", value)?,
            "snapshot" => self.snapshot = read("snapshot", value)?,
            "save_every" => self.save_every = read("save_every", value)?,
            "memory" => self.memory = read("memory", value)?,
            "memory_bytes" => self.memory_bytes = read("memory_bytes", value)?,
            "effort" => self.effort = effort(value)?,
            "recycled" => self.recycled = read("recycled", value)?,
            "min_prob" => self.min_prob = read("min_prob", value)?,
            "max_context" => self.max_context = read("max_context", value)?,
            "num_threads" => self.num_threads = read("num_threads", value)?,
            "step_cost" => self.step_cost = step_cost(value)?,
            _ => {
                let keys = Self::KEYS.join(", ");
                let reason = format!("has no key `{key}`: its keys are {keys}");
                return Err(Error::invalid("config", reason));
            }
        }
        Ok(())
    }
}

/// A day, in seconds.
const MAX_INTERVAL: f64 = 86_400.0;

fn read<T: DeserializeOwned>(key: &'static str, value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|error| Error::invalid(key, format!("is wrong: {error}")))
}

fn effort(value: Value) -> Result<Effort> {
    let name: String = read("effort", value)?;
    let effort = Effort::ALL.into_iter().find(|effort| effort.name() == name);
    effort.ok_or_else(|| {
        let names = Effort::ALL.map(Effort::name).join(", ");
        Error::invalid("effort", format!("must be one of {names}, not {name}"))
    })
}

fn step_cost(value: Value) -> Result<LoadCost> {
    match value {
        Value::Null => Ok(LoadCost::Ignored),
        Value::String(name) if name == "measured" => Ok(LoadCost::Measured),
        points => StepCost::new(read("step_cost", points)?).map(LoadCost::Given),
    }
}

/// What an engine says of itself when it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFacts {
    /// Tokens are below this, where it is known: others are never drafted.
    pub vocab_size: Option<u32>,
    /// The fingerprint of its tokenizer; empty where it is not known.
    pub tokenizer: String,
    /// How many processes draft the same for themselves.
    pub num_ranks: usize,
}
