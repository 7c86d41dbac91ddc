//! Choice of the instructions by the processor.

#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
use super::portable::Portable;
use super::subnormals::Flushed;
use super::vector::{Job, Simd};
#[cfg(any(kernels = "avxvnni", kernels = "avx2"))]
use super::x86::Avx2;
#[cfg(kernels = "avx512")]
use super::x86::Avx512;

/// The instructions that kernels are compiled for: on x86-64, those of `cfg(kernels)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instructions(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Portable(Portable),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    #[cfg(kernels = "avx2")]
    Avx2(Avx2),
    #[cfg(kernels = "avxvnni")]
    AvxVnni(Avx2, Avx2<true>),
    #[cfg(kernels = "avx512")]
    Avx512(Avx512),
}

impl Instructions {
    /// Returns all that this processor has and kernels are compiled for, the best one first.
    pub fn available() -> Vec<Self> {
        let all = [
            #[cfg(kernels = "avx512")]
            Avx512::new().map(Kind::Avx512),
            #[cfg(kernels = "avxvnni")]
            Avx2::new().zip(Avx2::with_vnni()).map(|(avx2, vnni)| Kind::AvxVnni(avx2, vnni)),
            #[cfg(kernels = "avx2")]
            Avx2::new().map(Kind::Avx2),
            #[cfg(target_arch = "aarch64")]
            Neon::new().map(Kind::Neon),
            Some(Kind::Portable(Portable)),
        ];
        all.into_iter().flatten().map(Self).collect()
    }

    /// Returns those of this name, the best ones for `auto`, `None` where the processor has none such.
    pub fn named(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|isa| name == "auto" || isa.name() == name)
    }

    /// The name: `avx512`, `avxvnni`, `avx2`, `neon` or `portable`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable(_) => "portable",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon(_) => "neon",
            #[cfg(kernels = "avx2")]
            Kind::Avx2(_) => "avx2",
            #[cfg(kernels = "avxvnni")]
            Kind::AvxVnni(..) => "avxvnni",
            #[cfg(kernels = "avx512")]
            Kind::Avx512(_) => "avx512",
        }
    }

    /// The lanes of a vector.
    pub(crate) fn lanes(self) -> usize {
        if self.name() == "avx512" { 16 } else { 8 }
    }

    /// Runs a kernel, in which subnormal numbers count as zero.
    pub(crate) fn run<J: Job>(self, job: J) {
        let _flushed = Flushed::begin();
        match self.0 {
            Kind::Portable(simd) => simd.run(job),
            #[cfg(target_arch = "aarch64")]
            Kind::Neon(simd) => simd.run(job),
            #[cfg(kernels = "avx2")]
            Kind::Avx2(simd) => simd.run(job),
            #[cfg(kernels = "avxvnni")]
            Kind::AvxVnni(_, simd) if J::HAS_DOTS => simd.run(job),
            #[cfg(kernels = "avxvnni")]
            Kind::AvxVnni(simd, _) => simd.run(job),
            #[cfg(kernels = "avx512")]
            Kind::Avx512(simd) => simd.run(job),
        }
    }
}
