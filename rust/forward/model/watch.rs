//! Progress of a pass or a load for another thread, which can stop it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A pass or a load as another thread sees it.
#[derive(Debug, Default)]
pub struct Watch {
    /// True if the work ends at its next layer or chunk.
    is_stopped: AtomicBool,
    /// The layers that are done, summed over tokens, or the packed bytes.
    num_done: AtomicUsize,
    /// The bytes of all weights of a load.
    num_expected: AtomicUsize,
}

impl Watch {
    /// Ends the pass after its layer, or the load; it returns [`Error::Stopped`](crate::error::Error::Stopped).
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// The layers that are done, summed over the tokens of the pass; of a load, the bytes that are packed.
    pub fn num_done(&self) -> usize {
        self.num_done.load(Ordering::Relaxed)
    }

    /// The bytes of all weights of a load, 0 before they are known.
    pub fn num_expected(&self) -> usize {
        self.num_expected.load(Ordering::Relaxed)
    }

    /// Sets the bytes of all weights.
    pub(crate) fn expect(&self, number: usize) {
        self.num_expected.store(number, Ordering::Relaxed);
    }

    /// Counts a layer of some tokens, or some packed bytes.
    ///
    /// # Errors
    /// [`Error::Stopped`](crate::error::Error::Stopped) if the work ends here.
    pub(crate) fn advance(&self, number: usize) -> crate::error::Result<()> {
        self.num_done.fetch_add(number, Ordering::Relaxed);
        if self.is_stopped.load(Ordering::Relaxed) {
            Err(crate::error::Error::Stopped)
        } else {
            Ok(())
        }
    }
}
