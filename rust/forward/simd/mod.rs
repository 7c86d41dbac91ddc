//! Vectors of numbers, and the choice of their instructions.

#[cfg(target_arch = "x86_64")]
mod detected;
pub(crate) mod instructions;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod subnormals;
pub(crate) mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;
