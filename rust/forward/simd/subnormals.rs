//! Subnormal numbers as zero, while a kernel runs.
//!
//! An operation on a subnormal number takes some hundred cycles. States are multiplied by powers of two down to 2^-28
//! and gates may be tiny, so that passes over some weights were eight times slower.

/// Counts subnormal inputs and results as zero on this thread until it is dropped.
pub(super) struct Flushed {
    #[cfg(target_arch = "x86_64")]
    before: u32,
}

/// The bits FTZ and DAZ of MXCSR.
#[cfg(target_arch = "x86_64")]
const FLUSH: u32 = 1 << 15 | 1 << 6;

impl Flushed {
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn begin() -> Self {
        Self {}
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn begin() -> Self {
        let before = control();
        if before & FLUSH != FLUSH {
            set_control(before | FLUSH);
        }
        Self { before }
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for Flushed {
    fn drop(&mut self) {
        if self.before & FLUSH != FLUSH {
            set_control(self.before);
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn control() -> u32 {
    let mut word = 0_u32;
    #[expect(unsafe_code, reason = "the control word has no safe interface")]
    // SAFETY: SSE, which every x86-64 processor has, writes 4 bytes to a place of this function.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack));
    }
    word
}

#[cfg(target_arch = "x86_64")]
fn set_control(word: u32) {
    #[expect(unsafe_code, reason = "the control word has no safe interface")]
    // SAFETY: `word` was read from the register, or has the two bits that every x86-64 processor with AVX2 knows:
    // no exception is unmasked and the rounding mode stays. Only kernels run until the word is restored, and they
    // do not depend on subnormal numbers.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, readonly));
    }
}
