//! Subnormal numbers as zero, while a kernel runs.
//!
//! An operation on a subnormal number takes some hundred cycles. States are multiplied by powers of two down to 2^-28
//! and gates may be tiny, so that passes over some weights were eight times slower.

/// Counts subnormal inputs and results as zero on this thread until it is dropped.
pub(super) struct Flushed {
    /// The control word to restore.
    before: usize,
}

/// The bits of the control word: FTZ and DAZ of MXCSR, FZ of FPCR.
#[cfg(target_arch = "x86_64")]
const FLUSH: usize = 1 << 15 | 1 << 6;
#[cfg(target_arch = "aarch64")]
const FLUSH: usize = 1 << 24;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const FLUSH: usize = 0;

impl Flushed {
    pub(super) fn begin() -> Self {
        let before = control();
        if before & FLUSH != FLUSH {
            set_control(before | FLUSH);
        }
        Self { before }
    }
}

impl Drop for Flushed {
    fn drop(&mut self) {
        if self.before & FLUSH != FLUSH {
            set_control(self.before);
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn control() -> usize {
    let mut word = 0_u32;
    #[expect(unsafe_code, reason = "the control word has no safe interface")]
    // SAFETY: SSE, which every x86-64 processor has, writes 4 bytes to a place of this function.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack));
    }
    word as usize
}

#[cfg(target_arch = "x86_64")]
fn set_control(word: usize) {
    #[expect(clippy::cast_possible_truncation, reason = "the register has 32 bits")]
    let word = word as u32;
    #[expect(unsafe_code, reason = "the control word has no safe interface")]
    // SAFETY: `word` was read from the register, or has the two bits that every x86-64 processor with AVX2 knows:
    // no exception is unmasked and the rounding mode stays. Only kernels run until the word is restored, and they
    // do not depend on subnormal numbers.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, readonly));
    }
}

#[cfg(target_arch = "aarch64")]
fn control() -> usize {
    let word: usize;
    #[expect(unsafe_code, reason = "the control word has no safe interface")]
    // SAFETY: every processor of 64 bits reads this register in user mode, which changes nothing.
    unsafe {
        std::arch::asm!("mrs {}, fpcr", out(reg) word, options(nomem, nostack, preserves_flags));
    }
    word
}

#[cfg(target_arch = "aarch64")]
fn set_control(word: usize) {
    #[expect(unsafe_code, reason = "the control word has no safe interface")]
    // SAFETY: `word` was read from the register, or has the bit FZ: no exception is unmasked and the rounding mode
    // stays. Only kernels run until the word is restored, and they do not depend on subnormal numbers.
    unsafe {
        std::arch::asm!("msr fpcr, {}", in(reg) word, options(nostack));
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn control() -> usize {
    0
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn set_control(_: usize) {}
