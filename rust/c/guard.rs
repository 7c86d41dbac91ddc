//! Panic barrier and error messages.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use specds_core::engine::{EngineDrafter, RequestOptions};

/// An argument or the configuration is invalid. The call had no effect.
pub const SPECDS_REFUSED: i32 = -1;
/// The library panicked. The drafter drafts nothing from now on.
pub const SPECDS_BROKEN: i32 = -2;

/// A drafter. Threads may share it; calls wait for each other.
pub struct DrafterHandle(Mutex<Option<(EngineDrafter, SlotOptions)>>);

/// The generation of the last request of each slot, and its options.
pub(crate) type SlotOptions = HashMap<u32, (u64, RequestOptions)>;

impl DrafterHandle {
    pub(crate) fn new(drafter: EngineDrafter) -> Self {
        Self(Mutex::new(Some((drafter, SlotOptions::new()))))
    }

    /// `None` after a panic, which may leave the drafter inconsistent.
    fn with<T>(
        &self,
        work: impl FnOnce(&mut EngineDrafter, &mut SlotOptions) -> Result<T, Refusal>,
    ) -> Result<T, i32> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut drafter) = held.take() else {
            return Err(failed("the drafter broke in an earlier call", SPECDS_BROKEN));
        };
        guarded(|| {
            let result = work(&mut drafter.0, &mut drafter.1);
            *held = Some(drafter);
            result
        })
    }
}

/// The reason why an argument is rejected.
pub(crate) struct Refusal(pub(crate) String);

impl Refusal {
    pub(crate) fn of(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

pub(crate) fn refused(error: impl Display) -> Refusal {
    Refusal(error.to_string())
}

/// Calls `work` with a drafter and returns its result, or a negative status on failure.
pub(crate) fn call(
    drafter: *mut DrafterHandle,
    work: impl FnOnce(&mut EngineDrafter) -> Result<usize, Refusal>,
) -> i32 {
    call_with_options(drafter, |drafter, _| work(drafter))
}

/// Calls `work` with a drafter and the options of its requests.
pub(crate) fn call_with_options(
    drafter: *mut DrafterHandle,
    work: impl FnOnce(&mut EngineDrafter, &mut SlotOptions) -> Result<usize, Refusal>,
) -> i32 {
    // SAFETY: it is null, or `specds_open` gave it and it is not closed.
    let drafter = unsafe { drafter.as_ref() };
    let result = match drafter {
        Some(drafter) => drafter.with(work),
        None => Err(failed("`drafter` is NULL", SPECDS_REFUSED)),
    };
    result.map_or_else(|status| status, |number| number.try_into().unwrap_or(i32::MAX))
}

/// Returns the result of `work`, or a status.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, Refusal>) -> Result<T, i32> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|Refusal(reason)| failed(&reason, SPECDS_REFUSED)),
        Err(_) => Err(failed("a defect of specds: please report it", SPECDS_BROKEN)),
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

fn failed(reason: &str, status: i32) -> i32 {
    let reason = CString::new(reason.replace('\0', " ")).unwrap_or_default();
    LAST_ERROR.set(reason);
    status
}

pub(crate) fn last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|reason| reason.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use specds_core::engine::{EngineConfig, EngineInfo};

    #[test]
    fn a_panic_breaks_its_drafter_and_goes_no_further() {
        let facts = EngineInfo { vocab_size: Some(10), ..EngineInfo::default() };
        let drafter = EngineDrafter::open(EngineConfig::default(), &facts).unwrap();
        let drafter = Box::into_raw(Box::new(DrafterHandle::new(drafter)));
        assert_eq!(call(drafter, |_| Ok(7)), 7);
        assert_eq!(call(drafter, |_| Err(Refusal::of("no"))), SPECDS_REFUSED);
        assert_eq!(call(drafter, |_| Ok(8)), 8);
        assert_eq!(call(drafter, |_| panic!("as a defect would")), SPECDS_BROKEN);
        assert_eq!(call(drafter, |_| Ok(9)), SPECDS_BROKEN);
        // SAFETY: it was made above.
        drop(unsafe { Box::from_raw(drafter) });
    }
}
