//! Drafters and the memory of a configuration.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::config::{EngineConfig, EngineInfo, MemoryScope};
use crate::fused::drafter::{FusedConfig, FusedDrafter};
use crate::memory::store::{Memory, MemoryOptions};
use specds_index::{Datastore, Error, Result};

pub(super) type Drafters = (Option<Arc<FusedDrafter>>, Arc<FusedDrafter>);

/// Returns the drafter with the memory, if there is one, and the drafter without.
pub(super) fn make_drafters(
    config: &EngineConfig,
    engine: &EngineInfo,
    datastore: Option<&Arc<Datastore>>,
    memory: Option<Arc<Memory>>,
) -> Result<Drafters> {
    if let Some(datastore) = datastore {
        check_tokenizer(datastore, engine)?;
    }
    let fused = FusedConfig {
        recycled: config.recycle_predictions,
        effort: config.effort,
        ..FusedConfig::default()
    };
    let drafter = |memory| FusedDrafter::new(datastore.cloned(), memory, fused).map(Arc::new);
    Ok((memory.map(|memory| drafter(Some(memory))).transpose()?, drafter(None)?))
}

fn check_tokenizer(datastore: &Datastore, engine: &EngineInfo) -> Result<()> {
    let (own, theirs) = (&datastore.manifest().tokenizer_fingerprint, &engine.tokenizer);
    if theirs.is_empty() || own == theirs {
        return Ok(());
    }
    let reason = format!("its fingerprint is {own}, that of the engine is {theirs}");
    Err(Error::OtherTokenizer { path: datastore.path().to_owned(), reason })
}

/// Opens the memory of the configured scope, from its snapshot if there is one.
pub(super) fn open_memory(
    config: &EngineConfig,
    engine: &EngineInfo,
    datastore: Option<&Datastore>,
    warnings: &mut Vec<String>,
) -> Result<Option<Arc<Memory>>> {
    if config.memory_scope == MemoryScope::None {
        return Ok(None);
    }
    let vocab_size = datastore.map(Datastore::vocab_size).or(engine.vocab_size);
    let Some(vocab_size) = vocab_size else {
        let reason = "needs a vocabulary: pass a datastore or the engine's `vocab_size`";
        return Err(Error::invalid("memory_scope", reason));
    };
    let options = MemoryOptions {
        vocab_size,
        max_bytes: config.memory_bytes,
        tokenizer: datastore
            .map_or(&engine.tokenizer, |store| &store.manifest().tokenizer_fingerprint)
            .clone(),
        max_tenant_bytes: config.memory_tenant_bytes.unwrap_or(MemoryOptions::MAX_BYTES),
        max_age: config.memory_max_age.map(Duration::from_secs_f64),
    };
    let mut memory = Memory::new(options.clone())?;
    // A store that is shared is read by the first exchange.
    if let (Some(path), None) = (&config.snapshot, config.sync_interval) {
        match Memory::open(path, options) {
            Ok(read) => memory = read,
            Err(error) => warnings.push(format!("the snapshot is not used: {error}")),
        }
    }
    Ok(Some(Arc::new(memory)))
}
