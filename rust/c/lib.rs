//! C interface of the core's `EngineDrafter`, which `specds.h` declares.
//!
//! Pointers are null or as the header says; all other arguments are checked. Panics are caught at the boundary.
#![expect(unsafe_code, reason = "C passes pointers")]
#![allow(clippy::missing_safety_doc)] // the header says it once: pointers are null or as long as said

mod fingerprint;
mod guard;
mod input;
mod request;

use std::ffi::c_char;
use std::ptr;

use serde_json::json;
use specds_core::budget::StepCost;
use specds_core::draft::DraftLimits;
use specds_core::engine::{Context, EngineConfig, EngineDrafter, EngineInfo, PackedChains};
use specds_index::Datastore;

pub use crate::guard::{DrafterHandle, SPECDS_BROKEN, SPECDS_REFUSED};
use crate::guard::{Refusal, SlotOptions, call, call_with_options, guarded, last_error, refused};
use crate::input::{name, output, slice, text, texts};

/// Version of the interface, which increases with each incompatible change.
pub const SPECDS_ABI: u32 = 3;

/// A request in the batch of this step.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BatchRow {
    /// The engine's slot of the request.
    pub slot: u32,
    /// Maximum number of drafted tokens.
    pub max_tokens: u32,
    /// The number of the request within its slot. A new number stands for a new request.
    pub generation: u64,
    /// The request's tokens so far, including the one that was just sampled.
    pub tokens: *const u32,
    pub num_tokens: usize,
    /// Number of tokens of the request that precede these; 0 if these are all.
    pub start: usize,
    /// The options of the request as in docs/engines/index.md, a JSON object, the same in each step; may be NULL.
    pub options: *const c_char,
    /// Minimum probability of a path; if it is below 0 or not finite, `min_prob` of the options applies.
    pub min_prob: f32,
}

/// The time of a pass over some tokens.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StepTime {
    /// Number of tokens.
    pub num_tokens: usize,
    /// The time in any unit.
    pub seconds: f64,
}

/// Returns the interface version of the library; compare it with `SPECDS_ABI`.
#[unsafe(no_mangle)]
pub extern "C" fn specds_abi() -> u32 {
    SPECDS_ABI
}

/// Opens a drafter, or returns NULL if that fails. `options` is the JSON object of docs/engines/index.md.
///
/// `token_texts` are the texts of all `vocab_size` tokens as in the tokenizer's file, by which a datastore of another
/// tokenizer is rejected. NULL skips the check.
///
/// By default, drafts depend on the cost of a step if that is known: from `step_times`, which you have measured, with
/// rising numbers of tokens (sizes between two cost as much as the larger one; may be NULL), or if `times_steps` states
/// that you call `specds_observe_step` after each step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn specds_open(
    options: *const c_char,
    vocab_size: u32,
    token_texts: *const *const c_char,
    times_steps: bool,
    step_times: *const StepTime,
    num_step_times: usize,
) -> *mut DrafterHandle {
    let open = || {
        // SAFETY: both are null or as the header says.
        let (options, texts, times) = unsafe {
            let times = slice(step_times, num_step_times, "step_times")?;
            (text(options, "options")?, texts(token_texts, vocab_size)?, times)
        };
        let sizes = times.iter().map(|time| (time.num_tokens, time.seconds)).collect::<Vec<_>>();
        let step_cost = (!sizes.is_empty()).then(|| StepCost::of_sizes(&sizes));
        if options.trim_start().starts_with('[') {
            return Err(refused("`options` must be a JSON object")); // serde reads an array as one
        }
        let config: EngineConfig = serde_json::from_str(options).map_err(refused)?;
        let engine = EngineInfo {
            vocab_size: Some(vocab_size),
            tokenizer: fingerprint::of_engine(&texts, &config)?,
            times_steps,
            token_cost: None,
            step_cost: step_cost.transpose().map_err(refused)?,
        };
        let drafter = EngineDrafter::open(config, &engine).map_err(refused)?;
        Ok(Box::into_raw(Box::new(DrafterHandle::new(drafter))))
    };
    guarded(open).unwrap_or(ptr::null_mut())
}

/// Drafts a chain for each row; requests that are absent for 64 steps have ended.
///
/// Row r gets `lengths[r]` tokens from `token_ids[r * width]` on. `size` is the capacity of `token_ids`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn specds_draft(
    drafter: *mut DrafterHandle,
    rows: *const BatchRow,
    num_rows: usize,
    width: usize,
    token_ids: *mut u32,
    size: usize,
    lengths: *mut usize,
) -> i32 {
    call_with_options(drafter, |drafter, options| {
        // SAFETY: all are null or as the header says.
        let (rows, token_ids, lengths) = unsafe {
            let rows = slice(rows, num_rows, "rows")?;
            let lengths = output(lengths, num_rows, "lengths")?;
            (rows, output(token_ids, size, "token_ids")?, lengths)
        };
        if num_rows.checked_mul(width).is_none_or(|ids| ids > size) {
            return Err(Refusal::of("`token_ids` is too short"));
        }
        lengths.fill(0);
        // SAFETY: the rows are as the header says.
        let requests = rows.iter().map(|row| unsafe { RowRequest::read(row, options) });
        let requests: Vec<_> = requests.collect::<Result<_, _>>()?;
        let contexts = requests.iter().map(|request| request.context(options));
        drafter.sync(&contexts.collect::<Vec<_>>());
        let least = drafter.min_prob();
        let limits: Vec<_> = rows.iter().map(|row| limits(row, width, least)).collect();
        let packed = PackedChains::new(&drafter.draft(&limits).trees(), width);
        for (place, token) in token_ids.iter_mut().zip(packed.token_ids) {
            *place = u32::try_from(token).unwrap_or(0); // behind the end of a chain
        }
        for (place, length) in lengths.iter_mut().zip(packed.lengths) {
            *place = usize::try_from(length).unwrap_or(0);
        }
        Ok(0)
    })
}

/// A row's request.
struct RowRequest<'a> {
    tokens: &'a [u32],
    start: usize,
    slot: u32,
    name: String,
}

impl<'a> RowRequest<'a> {
    /// Reads the options of a request that is new in its slot.
    ///
    /// # Safety
    ///
    /// The row's pointers are null or as the header says.
    unsafe fn read(row: &BatchRow, options: &mut SlotOptions) -> Result<Self, Refusal> {
        // SAFETY: as above.
        let tokens = unsafe { slice(row.tokens, row.num_tokens, "tokens")? };
        let known = options.get(&row.slot).map(|(generation, _)| *generation);
        if known != Some(row.generation) {
            let is_given = !row.options.is_null();
            // SAFETY: as above.
            let given = is_given.then(|| unsafe { text(row.options, "options") });
            let mut read = request::options(given);
            if !row.min_prob.is_finite() {
                read.unreadable.push("`min_prob` must be a finite number".to_owned());
            }
            options.insert(row.slot, (row.generation, read));
        }
        let name = name(row.slot, row.generation);
        Ok(Self { tokens, start: row.start, slot: row.slot, name })
    }

    /// `None` if the request has no drafts.
    fn context(&'a self, options: &'a SlotOptions) -> Option<Context<'a>> {
        let (_, options) = options.get(&self.slot)?;
        let context = options.context()?;
        Some(Context { tokens: self.tokens, start: self.start, name: &self.name, ..context })
    }
}

fn limits(row: &BatchRow, width: usize, least: f32) -> DraftLimits {
    DraftLimits {
        // The default applies if it is below 0 or not a number.
        min_prob: if row.min_prob.is_finite() && row.min_prob >= 0.0 {
            row.min_prob
        } else {
            least
        },
        is_chain: true,
        ..DraftLimits::nodes((row.max_tokens as usize).min(width))
    }
}

/// Takes the seconds of the step that verified the last drafts. Skip steps that also read a prompt.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn specds_observe_step(drafter: *mut DrafterHandle, seconds: f64) -> i32 {
    call(drafter, |drafter| {
        drafter.observe_step_time(seconds);
        Ok(0)
    })
}

/// Returns the number of the model's likeliest tokens at each position that are used; 0 for none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn specds_num_predictions(drafter: *mut DrafterHandle) -> i32 {
    call(drafter, |drafter| Ok(drafter.num_predictions()))
}

/// Takes the model's `k` likeliest tokens, likeliest first, at `num_positions` positions of each row of the last
/// drafts: that of its last token, then those of its draft. `predictions` has shape `(rows, num_positions, k)` and
/// `size` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn specds_observe_predictions(
    drafter: *mut DrafterHandle,
    predictions: *const u32,
    size: usize,
    num_positions: usize,
    k: usize,
) -> i32 {
    call(drafter, |drafter| {
        // SAFETY: it is null or as the header says.
        let predictions = unsafe { slice(predictions, size, "predictions")? };
        if num_positions.checked_mul(k).is_none() {
            return Err(Refusal::of("`num_positions` is too large"));
        }
        drafter.observe_predictions(predictions, num_positions, k);
        Ok(0)
    })
}

/// Ends a request, whose text goes into the memory. `tokens` is the whole text, or NULL if the last draft saw all of
/// it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn specds_end(
    drafter: *mut DrafterHandle,
    slot: u32,
    generation: u64,
    tokens: *const u32,
    num_tokens: usize,
) -> i32 {
    call(drafter, |drafter| {
        let name = name(slot, generation);
        if tokens.is_null() {
            drafter.end(&[&name]);
        } else {
            // SAFETY: it is as the header says.
            drafter.end_with(&name, unsafe { slice(tokens, num_tokens, "tokens")? });
        }
        Ok(0)
    })
}

/// Ends all requests.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn specds_end_all(drafter: *mut DrafterHandle) -> i32 {
    call(drafter, |drafter| {
        drafter.end_all();
        Ok(0)
    })
}

/// Writes the configuration, the datastore's build and size, counters and warnings as a JSON object, and returns its
/// length without the final NUL.
///
/// If `buffer` is NULL, only returns the length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn specds_stats(
    drafter: *mut DrafterHandle,
    buffer: *mut c_char,
    size: usize,
) -> i32 {
    call(drafter, |drafter| {
        let json = stats(drafter).to_string();
        if buffer.is_null() && size == 0 {
            return Ok(json.len());
        }
        // SAFETY: it is null or as the header says.
        let buffer = unsafe { output(buffer.cast::<u8>(), size, "buffer")? };
        let Some((text, [end, ..])) = buffer.split_at_mut_checked(json.len()) else {
            return Err(Refusal::of("`buffer` is too short"));
        };
        text.copy_from_slice(json.as_bytes());
        *end = 0;
        Ok(json.len())
    })
}

fn stats(drafter: &EngineDrafter) -> serde_json::Value {
    let counts = drafter.counts();
    let about =
        drafter.datastore().map(Datastore::manifest).map(|it| (&it.build_id, it.num_tokens));
    json!({
        "configuration": drafter.config(),
        "datastore": about.map(|(build_id, num)| json!({"build_id": build_id, "num_tokens": num})),
        "num_drafts": counts.num_drafts,
        "num_draft_tokens": counts.num_draft_tokens,
        "num_accepted_tokens": counts.num_accepted_tokens,
        "num_emitted_tokens": counts.num_emitted_tokens,
        "num_row_steps": counts.num_row_steps,
        "num_opened": counts.num_opened,
        "num_moved": counts.num_moved,
        "num_refused": counts.num_refused,
        "num_refused_options": counts.num_refused_options,
        "num_memory_failures": counts.num_memory_failures,
        "num_requests": drafter.num_requests(),
        "warnings": drafter.warnings(),
    })
}

/// Returns the error of this thread's last call. The text is valid until the next call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn specds_last_error() -> *const c_char {
    last_error()
}

/// Ends all requests and frees the drafter. No other thread may use it. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn specds_close(drafter: *mut DrafterHandle) {
    if drafter.is_null() {
        return;
    }
    // SAFETY: `specds_open` gave it, and it is closed once.
    let drafter = unsafe { Box::from_raw(drafter) };
    let _ = guarded(|| {
        drop(drafter);
        Ok(())
    });
}
