//! The vectors of x86-64.
#![expect(unsafe_code, reason = "the compiler cannot know the processor")]
#![cfg_attr(
    feature = "native",
    allow(dead_code, reason = "kernels of one set at most are compiled")
)]

#[allow(clippy::wildcard_imports)] // some sixty names of one scheme
use std::arch::x86_64::*;

use super::detected::has;
use super::vector::{Job, Simd};

/// AVX2 with fused multiplication and halves, and with products of bytes if `VNNI`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Avx2<const VNNI: bool = false>(());

/// AVX-512 with products of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Avx512(());

impl Avx2<false> {
    pub(crate) fn new() -> Option<Self> {
        has("avx2").then_some(Self(()))
    }
}

impl Avx2<true> {
    pub(crate) fn with_vnni() -> Option<Self> {
        has("avxvnni").then_some(Self(()))
    }
}

impl Avx512 {
    pub(crate) fn new() -> Option<Self> {
        has("avx512").then_some(Self(()))
    }
}

/// Methods of one instruction each, or of the few that stand for it.
macro_rules! methods {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {
        $(#[inline(always)]
        fn $name(self, $($argument: $type),*) -> $result {
            // SAFETY: `self` exists only where the processor has the instructions, and what is read or written
            // is a reference to as many bytes.
            unsafe { $body }
        })*
    };
}

#[inline(always)]
fn bytes<const N: usize>(from: &[u8]) -> *const [u8; N] {
    from.first_chunk().expect("bytes of each lane")
}

#[inline(always)]
fn numbers<const N: usize>(from: &[f32]) -> *const f32 {
    from.first_chunk::<N>().expect("a number of each lane").as_ptr()
}

#[inline(always)]
fn places<const N: usize>(to: &mut [f32]) -> *mut f32 {
    to.first_chunk_mut::<N>().expect("a place of each lane").as_mut_ptr()
}

#[inline(always)]
fn byte_places<const N: usize>(to: &mut [u8]) -> *mut [u8; N] {
    to.first_chunk_mut().expect("a byte of each lane")
}

#[inline(always)]
fn signed(word: u32) -> i32 {
    word.cast_signed()
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type Floats = __m256;
    type Words = __m256i;
    const LANES: usize = 8;
    const HAS_SIGNED_BYTES: bool = !VNNI;
    const IS_UNROLLED: bool = true;
    const LOADS_STATES: bool = true;

    #[inline]
    fn run(self, job: impl Job) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn run(simd: impl Simd, job: impl Job) {
            job.run(simd);
        }
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        fn run_with_vnni(simd: impl Simd, job: impl Job) {
            job.run(simd);
        }
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { if VNNI { run_with_vnni(self, job) } else { run(self, job) } }
    }

    methods! {
        fn splat(value: f32) -> __m256 { _mm256_set1_ps(value) }
        fn load(from: &[f32]) -> __m256 { _mm256_loadu_ps(numbers::<8>(from)) }
        fn store(value: __m256, to: &mut [f32]) -> () { _mm256_storeu_ps(places::<8>(to), value) }
        fn add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        fn mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        fn div(a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        fn max(a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        fn sum(value: __m256) -> f32 {
            let four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
        fn greatest(value: __m256) -> f32 {
            let four = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
        fn fma(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        fn round(value: __m256) -> __m256i { _mm256_cvtps_epi32(value) }
        fn halves(from: &[u8]) -> __m256 { _mm256_cvtph_ps(_mm_loadu_si128(bytes::<16>(from).cast())) }
        fn upper_halves(from: &[u8]) -> __m256 {
            let halves = _mm_loadu_si128(bytes::<16>(from).cast());
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
        }
        fn words(from: &[u8]) -> __m256i { _mm256_loadu_si256(bytes::<32>(from).cast()) }
        fn splat_word(word: u32) -> __m256i { _mm256_set1_epi32(signed(word)) }
        fn and(words: __m256i, mask: u32) -> __m256i {
            _mm256_and_si256(words, _mm256_set1_epi32(signed(mask)))
        }
        fn or(a: __m256i, b: __m256i) -> __m256i { _mm256_or_si256(a, b) }
        fn add_words(a: __m256i, b: __m256i) -> __m256i { _mm256_add_epi32(a, b) }
        fn shl(words: __m256i, by: u32) -> __m256i {
            _mm256_sll_epi32(words, _mm_cvtsi32_si128(signed(by)))
        }
        fn shr(words: __m256i, by: u32) -> __m256i {
            _mm256_srl_epi32(words, _mm_cvtsi32_si128(signed(by)))
        }
        fn floats(words: __m256i) -> __m256 { _mm256_cvtepi32_ps(words) }
        fn store_bytes(words: __m256i, to: &mut [u8]) -> () {
            let upper = _mm256_extracti128_si256::<1>(words);
            let halves = _mm_packs_epi32(_mm256_castsi256_si128(words), upper);
            _mm_storel_epi64(byte_places::<8>(to).cast(), _mm_packs_epi16(halves, halves));
        }
        fn bits(words: __m256i) -> __m256 { _mm256_castsi256_ps(words) }
        fn lookup(values: &[u8; 16], numbers: __m256i) -> __m256i {
            let values = _mm_loadu_si128(std::ptr::from_ref(values).cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), numbers)
        }
        fn where_at_least(value: __m256, of: __m256, least: f32) -> __m256 {
            _mm256_and_ps(value, _mm256_cmp_ps::<_CMP_GE_OQ>(of, _mm256_set1_ps(least)))
        }
        fn dot(sum: __m256i, numbers: [__m256i; 2], bytes: [u32; 2], bits: u32) -> __m256i {
            let [first, second] = bytes.map(|of| _mm256_set1_epi32(signed(of)));
            if VNNI {
                let sum = _mm256_dpbusd_avx_epi32(sum, numbers[0], first);
                return _mm256_dpbusd_avx_epi32(sum, numbers[1], second);
            }
            let ones = _mm256_set1_epi16(1);
            if bits == 8 {
                // Products of bytes without a sign could be too large for 16 bits.
                let [upper, lower] = numbers.map(|of| _mm256_xor_si256(of, _mm256_set1_epi8(-128)));
                let upper = _mm256_maddubs_epi16(_mm256_abs_epi8(upper), _mm256_sign_epi8(first, upper));
                let lower = _mm256_maddubs_epi16(_mm256_abs_epi8(lower), _mm256_sign_epi8(second, lower));
                let sum = _mm256_add_epi32(sum, _mm256_madd_epi16(upper, ones));
                return _mm256_add_epi32(sum, _mm256_madd_epi16(lower, ones));
            }
            // 2 * 2 * 63 * 127 fits in 16 bits, and 8 * 2 * 15 * 127.
            let upper = _mm256_maddubs_epi16(numbers[0], first);
            let lower = _mm256_maddubs_epi16(numbers[1], second);
            if bits <= 4 {
                return _mm256_add_epi16(_mm256_add_epi16(sum, upper), lower);
            }
            let products = _mm256_add_epi16(upper, lower);
            _mm256_add_epi32(sum, _mm256_madd_epi16(products, ones))
        }
        fn finish(sum: __m256i, bits: u32) -> __m256i {
            if bits <= 4 && !VNNI { _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) } else { sum }
        }
        fn prefetch(place: *const u8) -> () { _mm_prefetch::<_MM_HINT_T0>(place.cast()) }
    }
}

impl Simd for Avx512 {
    type Floats = __m512;
    type Words = __m512i;
    const LANES: usize = 16;
    const HAS_SIGNED_BYTES: bool = false;
    const IS_UNROLLED: bool = true;

    #[inline]
    fn run(self, job: impl Job) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
        fn run(simd: Avx512, job: impl Job) {
            job.run(simd);
        }
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { run(self, job) }
    }

    #[inline(always)]
    fn finish(self, sum: __m512i, _: u32) -> __m512i {
        sum
    }

    methods! {
        fn splat(value: f32) -> __m512 { _mm512_set1_ps(value) }
        fn load(from: &[f32]) -> __m512 { _mm512_loadu_ps(numbers::<16>(from)) }
        fn store(value: __m512, to: &mut [f32]) -> () { _mm512_storeu_ps(places::<16>(to), value) }
        fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn sum(value: __m512) -> f32 {
            let upper = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(value));
            Avx2::<false>(()).sum(_mm256_add_ps(_mm512_castps512_ps256(value), _mm256_castpd_ps(upper)))
        }
        fn greatest(value: __m512) -> f32 {
            let upper = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(value));
            Avx2::<false>(()).greatest(_mm256_max_ps(_mm512_castps512_ps256(value), _mm256_castpd_ps(upper)))
        }
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn round(value: __m512) -> __m512i { _mm512_cvtps_epi32(value) }
        fn halves(from: &[u8]) -> __m512 {
            _mm512_cvtph_ps(_mm256_loadu_si256(bytes::<32>(from).cast()))
        }
        fn upper_halves(from: &[u8]) -> __m512 {
            let halves = _mm256_loadu_si256(bytes::<32>(from).cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
        fn words(from: &[u8]) -> __m512i { _mm512_loadu_si512(bytes::<64>(from).cast()) }
        fn splat_word(word: u32) -> __m512i { _mm512_set1_epi32(signed(word)) }
        fn and(words: __m512i, mask: u32) -> __m512i {
            _mm512_and_si512(words, _mm512_set1_epi32(signed(mask)))
        }
        fn or(a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn add_words(a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        fn shl(words: __m512i, by: u32) -> __m512i {
            _mm512_sll_epi32(words, _mm_cvtsi32_si128(signed(by)))
        }
        fn shr(words: __m512i, by: u32) -> __m512i {
            _mm512_srl_epi32(words, _mm_cvtsi32_si128(signed(by)))
        }
        fn floats(words: __m512i) -> __m512 { _mm512_cvtepi32_ps(words) }
        fn store_bytes(words: __m512i, to: &mut [u8]) -> () {
            _mm_storeu_si128(byte_places::<16>(to).cast(), _mm512_cvtepi32_epi8(words));
        }
        fn bits(words: __m512i) -> __m512 { _mm512_castsi512_ps(words) }
        fn lookup(values: &[u8; 16], numbers: __m512i) -> __m512i {
            let values = _mm_loadu_si128(std::ptr::from_ref(values).cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), numbers)
        }
        fn where_at_least(value: __m512, of: __m512, least: f32) -> __m512 {
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(of, _mm512_set1_ps(least)), value)
        }
        fn dot(sum: __m512i, numbers: [__m512i; 2], bytes: [u32; 2], _bits: u32) -> __m512i {
            let sum = _mm512_dpbusd_epi32(sum, numbers[0], _mm512_set1_epi32(signed(bytes[0])));
            _mm512_dpbusd_epi32(sum, numbers[1], _mm512_set1_epi32(signed(bytes[1])))
        }
        fn prefetch(place: *const u8) -> () { _mm_prefetch::<_MM_HINT_T0>(place.cast()) }
    }
}
