//! The vectors of 64-bit Arm: pairs of four lanes, as many as AVX2 has.
#![expect(unsafe_code, reason = "the compiler cannot know the processor")]

#[allow(clippy::wildcard_imports)] // some fifty names of one scheme
use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::vector::{Job, Simd};

/// NEON with products of bytes: Apple's processors, Graviton 2, Ampere and phones of 2018, and all later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Neon(());

impl Neon {
    pub(crate) fn new() -> Option<Self> {
        is_aarch64_feature_detected!("dotprod").then_some(Self(()))
    }
}

type FloatPair = [float32x4_t; 2];
type WordPair = [uint32x4_t; 2];

/// Computes both halves. A closure would not have the instructions of the kernel that it is inlined into.
macro_rules! halves {
    ($half:ident => $body:expr) => {
        [
            {
                const $half: usize = 0;
                $body
            },
            {
                const $half: usize = 1;
                $body
            },
        ]
    };
}

/// Methods of few instructions, inlined.
macro_rules! methods {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => {
        $(#[inline(always)]
        fn $name(self, $($argument: $type),*) -> $result {
            // SAFETY: `self` exists only where the processor has the instructions, and what is read or written
            // is a reference to as many bytes.
            unsafe { $body }
        })*
    };
}

#[inline(always)]
fn bytes<const N: usize>(from: &[u8]) -> &[u8; N] {
    from.first_chunk().expect("bytes of each lane")
}

/// Adds the products of four signed bytes of each lane with the first four of `bytes`, and of others with the last four.
///
/// The intrinsic is not in the oldest supported compiler.
#[inline(always)]
unsafe fn sdot(mut sum: uint32x4_t, numbers: [uint32x4_t; 2], bytes: uint32x2_t) -> uint32x4_t {
    // SAFETY: the caller has checked the processor, and only registers change.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {first:v}.16b, {bytes:v}.4b[0]",
            "sdot {sum:v}.4s, {second:v}.16b, {bytes:v}.4b[1]",
            sum = inout(vreg) sum,
            first = in(vreg) numbers[0],
            second = in(vreg) numbers[1],
            bytes = in(vreg) bytes,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Widens four float16. The intrinsic takes a type that compilers do not have yet.
#[inline(always)]
fn widened(halves: uint16x4_t) -> float32x4_t {
    let floats;
    // SAFETY: every processor of 64 bits has this instruction, and only a register changes.
    unsafe {
        asm!(
            "fcvtl {floats:v}.4s, {halves:v}.4h",
            floats = out(vreg) floats,
            halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    floats
}

/// The greater of both, `b` where one is not a number, which the instruction is not.
#[inline(always)]
unsafe fn greater(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: every processor of 64 bits has these instructions.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

impl Simd for Neon {
    type Floats = FloatPair;
    type Words = WordPair;
    const LANES: usize = 8;
    const HAS_SIGNED_BYTES: bool = true;
    const IS_UNROLLED: bool = true;

    #[inline]
    fn run(self, job: impl Job) {
        #[target_feature(enable = "neon,dotprod")]
        fn run(simd: Neon, job: impl Job) {
            job.run(simd);
        }
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { run(self, job) }
    }

    #[inline(always)]
    fn finish(self, sum: WordPair, _: u32) -> WordPair {
        sum
    }

    methods! {
        splat(value: f32) -> FloatPair = [vdupq_n_f32(value); 2];
        splat_of(from: &[f32; 32], index: usize) -> FloatPair = {
            // Products with a lane of a register need no copies of it.
            let four = vld1q_f32(from[index / 4 * 4..].first_chunk::<4>().expect("a multiple of 4").as_ptr());
            [match index % 4 {
                0 => vdupq_laneq_f32::<0>(four),
                1 => vdupq_laneq_f32::<1>(four),
                2 => vdupq_laneq_f32::<2>(four),
                _ => vdupq_laneq_f32::<3>(four),
            }; 2]
        };
        load(from: &[f32]) -> FloatPair = {
            let from = from.first_chunk::<8>().expect("a number of each lane").as_ptr();
            [vld1q_f32(from), vld1q_f32(from.add(4))]
        };
        store(value: FloatPair, to: &mut [f32]) -> () = {
            let to = to.first_chunk_mut::<8>().expect("a place of each lane").as_mut_ptr();
            vst1q_f32(to, value[0]);
            vst1q_f32(to.add(4), value[1]);
        };
        add(a: FloatPair, b: FloatPair) -> FloatPair = halves!(HALF => vaddq_f32(a[HALF], b[HALF]));
        mul(a: FloatPair, b: FloatPair) -> FloatPair = halves!(HALF => vmulq_f32(a[HALF], b[HALF]));
        div(a: FloatPair, b: FloatPair) -> FloatPair = halves!(HALF => vdivq_f32(a[HALF], b[HALF]));
        max(a: FloatPair, b: FloatPair) -> FloatPair = halves!(HALF => greater(a[HALF], b[HALF]));
        sum(value: FloatPair) -> f32 = {
            let four = vaddq_f32(value[0], value[1]);
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        };
        greatest(value: FloatPair) -> f32 = vmaxnmvq_f32(vmaxnmq_f32(value[0], value[1]));
        fma(a: FloatPair, b: FloatPair, c: FloatPair) -> FloatPair =
            halves!(HALF => vfmaq_f32(c[HALF], a[HALF], b[HALF]));
        round(value: FloatPair) -> WordPair = halves!(HALF => vreinterpretq_u32_s32(vcvtnq_s32_f32(value[HALF])));
        halves(from: &[u8]) -> FloatPair = {
            let eight = vreinterpretq_u16_u8(vld1q_u8(bytes::<16>(from).as_ptr()));
            [widened(vget_low_u16(eight)), widened(vget_high_u16(eight))]
        };
        upper_halves(from: &[u8]) -> FloatPair = {
            let eight = vreinterpretq_u16_u8(vld1q_u8(bytes::<16>(from).as_ptr()));
            let four = [vget_low_u16(eight), vget_high_u16(eight)];
            halves!(HALF => vreinterpretq_f32_u32(vshll_n_u16::<16>(four[HALF])))
        };
        words(from: &[u8]) -> WordPair = {
            let from = bytes::<32>(from).as_ptr();
            halves!(HALF => vreinterpretq_u32_u8(vld1q_u8(from.add(16 * HALF))))
        };
        splat_word(word: u32) -> WordPair = [vdupq_n_u32(word); 2];
        and(words: WordPair, mask: u32) -> WordPair = halves!(HALF => vandq_u32(words[HALF], vdupq_n_u32(mask)));
        or(a: WordPair, b: WordPair) -> WordPair = halves!(HALF => vorrq_u32(a[HALF], b[HALF]));
        add_words(a: WordPair, b: WordPair) -> WordPair = halves!(HALF => vaddq_u32(a[HALF], b[HALF]));
        shl(words: WordPair, by: u32) -> WordPair =
            halves!(HALF => vshlq_u32(words[HALF], vdupq_n_s32(by.cast_signed())));
        shr(words: WordPair, by: u32) -> WordPair =
            halves!(HALF => vshlq_u32(words[HALF], vdupq_n_s32(-by.cast_signed())));
        floats(words: WordPair) -> FloatPair =
            halves!(HALF => vcvtq_f32_s32(vreinterpretq_s32_u32(words[HALF])));
        store_bytes(words: WordPair, to: &mut [u8]) -> () = {
            let halves = vcombine_u16(vmovn_u32(words[0]), vmovn_u32(words[1]));
            let to: &mut [u8; 8] = to.first_chunk_mut().expect("a byte of each lane");
            vst1_u8(to.as_mut_ptr(), vmovn_u16(halves));
        };
        bits(words: WordPair) -> FloatPair = halves!(HALF => vreinterpretq_f32_u32(words[HALF]));
        lookup(values: &[u8; 16], numbers: WordPair) -> WordPair = {
            let values = vld1q_u8(values.as_ptr());
            halves!(HALF => vreinterpretq_u32_u8(vqtbl1q_u8(values, vreinterpretq_u8_u32(numbers[HALF]))))
        };
        where_at_least(value: FloatPair, of: FloatPair, least: f32) -> FloatPair = halves!(HALF => {
            let kept = vcgeq_f32(of[HALF], vdupq_n_f32(least));
            vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(value[HALF]), kept))
        });
        dot(sum: WordPair, numbers: [WordPair; 2], bytes: [u32; 2], bits: u32) -> WordPair = {
            let bytes = vcreate_u32(u64::from(bytes[0]) | u64::from(bytes[1]) << 32);
            // Numbers of fewer bits are below 128.
            let above = vdupq_n_u32(if bits == 8 { 0x8080_8080 } else { 0 });
            halves!(HALF => {
                let numbers = [veorq_u32(numbers[0][HALF], above), veorq_u32(numbers[1][HALF], above)];
                sdot(sum[HALF], numbers, bytes)
            })
        };
        prefetch(place: *const u8) -> () =
            asm!("prfm pldl1keep, [{}]", in(reg) place, options(nostack, readonly, preserves_flags));
    }
}
