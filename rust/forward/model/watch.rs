//! The progress of a pass, for another thread, which may stop it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A pass as another thread sees it.
#[derive(Debug, Default)]
pub struct Watch {
    is_stopped: AtomicBool,
    num_done: AtomicUsize,
}

impl Watch {
    /// Ends the pass after its layer; the pass returns [`Error::Stopped`](crate::Error::Stopped).
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// The layers that are done, summed over the tokens of the pass.
    pub fn num_done(&self) -> usize {
        self.num_done.load(Ordering::Relaxed)
    }

    /// Counts a layer of some tokens.
    ///
    /// # Errors
    /// [`Error::Stopped`](crate::Error::Stopped) if the pass ends here.
    pub(crate) fn advance(&self, num_tokens: usize) -> crate::Result<()> {
        self.num_done.fetch_add(num_tokens, Ordering::Relaxed);
        if self.is_stopped.load(Ordering::Relaxed) { Err(crate::Error::Stopped) } else { Ok(()) }
    }
}
