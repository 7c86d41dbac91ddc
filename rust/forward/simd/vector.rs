//! Vectors: the operations that kernels are written in, once for all processors.
//!
//! A value of a type of [`Simd`] exists only where the processor has its instructions, which makes its methods
//! safe. All of them compute each lane alike, to the bit, so that the portable one is an oracle for the others.

/// A kernel, for any vectors.
pub(crate) trait Job {
    /// True for kernels with [`dot`](Simd::dot): AVX-VNNI is AVX2 for all others.
    #[cfg_attr(not(kernels = "avxvnni"), expect(dead_code, reason = "all vectors have them"))]
    const HAS_DOTS: bool = false;

    /// Must be `#[inline(always)]`, as all that it calls: only then do the instructions of `S` apply to it.
    fn run<S: Simd>(self, simd: S);
}

/// Vectors of an instruction set.
pub(crate) trait Simd: Copy + Send + Sync {
    /// Numbers of 32 bits, one for each lane.
    type Floats: Copy;
    /// Words of 32 bits, one for each lane.
    type Words: Copy;
    /// The lanes of a vector.
    const LANES: usize;
    /// True where [`dot`](Self::dot) takes 128 off numbers of 8 bits.
    const HAS_SIGNED_BYTES: bool;
    /// False where kernels are loops, one group of rows at a time: unrolled, their portable code was five times that of
    /// AVX2 and AVX-512 together.
    const IS_UNROLLED: bool;
    /// True where a product reads no factor from memory or from a lane of a register: each state must be copied to all
    /// lanes first.
    const LOADS_STATES: bool = false;

    /// Runs a kernel with these instructions.
    fn run(self, job: impl Job);

    /// A number, copied to all lanes.
    fn splat(self, value: f32) -> Self::Floats;
    /// A number of these, copied to all lanes.
    #[inline(always)]
    fn splat_of(self, from: &[f32; 32], index: usize) -> Self::Floats {
        self.splat(from[index])
    }
    /// Loads the first lanes.
    fn load(self, from: &[f32]) -> Self::Floats;
    /// Stores all lanes into the first numbers.
    fn store(self, value: Self::Floats, to: &mut [f32]);
    /// `a + b`.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b`.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a / b`.
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The greater of both, `b` where one is not a number.
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The sum of all lanes: the upper half is added to the lower one, until one is left.
    fn sum(self, value: Self::Floats) -> f32;
    /// The greatest of all lanes.
    fn greatest(self, value: Self::Floats) -> f32;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Rounds to the nearest whole number, ties to even, of those that 32 bits hold.
    fn round(self, value: Self::Floats) -> Self::Words;

    /// Reads a float16 of each lane.
    fn halves(self, bytes: &[u8]) -> Self::Floats;
    /// Reads a bfloat16 of each lane.
    fn upper_halves(self, bytes: &[u8]) -> Self::Floats;

    /// Reads a word of each lane.
    fn words(self, bytes: &[u8]) -> Self::Words;
    /// A word, copied to all lanes.
    fn splat_word(self, word: u32) -> Self::Words;
    /// `words & mask`.
    fn and(self, words: Self::Words, mask: u32) -> Self::Words;
    /// `a | b`.
    fn or(self, a: Self::Words, b: Self::Words) -> Self::Words;
    /// `a + b`, which wraps around.
    fn add_words(self, a: Self::Words, b: Self::Words) -> Self::Words;
    /// `words << by`.
    fn shl(self, words: Self::Words, by: u32) -> Self::Words;
    /// `words >> by`, without the sign.
    fn shr(self, words: Self::Words, by: u32) -> Self::Words;
    /// The words as signed whole numbers.
    fn floats(self, words: Self::Words) -> Self::Floats;
    /// Writes the words, whole numbers of 8 bits with a sign, as bytes.
    fn store_bytes(self, words: Self::Words, to: &mut [u8]);
    /// The words as the bits of floats.
    fn bits(self, words: Self::Words) -> Self::Floats;

    /// Replaces each byte, a number below 16, by its value.
    fn lookup(self, values: &[u8; 16], numbers: Self::Words) -> Self::Words;
    /// Keeps the lanes of `value` in which `compared` is at least `least`; others become zero.
    fn where_at_least(
        self,
        value: Self::Floats,
        compared: Self::Floats,
        least: f32,
    ) -> Self::Floats;

    /// Adds the products of twice four numbers of `bits` bits and as many signed bytes, four times at most before
    /// [`finish`](Self::finish).
    fn dot(
        self,
        sum: Self::Words,
        numbers: [Self::Words; 2],
        bytes: [u32; 2],
        bits: u32,
    ) -> Self::Words;
    /// Returns what [`dot`](Self::dot) has added up.
    fn finish(self, sum: Self::Words, bits: u32) -> Self::Words;

    /// Fetches what will be read soon; any place will do.
    fn prefetch(self, place: *const u8);
}

/// The power of e of each lane, within 2e-7 of it; below -87, as of -87.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, value: S::Floats) -> S::Floats {
    let value = simd.max(value, simd.splat(-87.0));
    let whole = simd.round(simd.mul(value, simd.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts, of which the first has few bits: the rest is exact.
    let rest = simd.fma(simd.floats(whole), simd.splat(-0.693_359_4), value);
    let rest = simd.fma(simd.floats(whole), simd.splat(2.121_944_4e-4), rest);
    let mut power = simd.splat(1.987_569_1e-4);
    for factor in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5, 1.0, 1.0] {
        power = simd.fma(power, rest, simd.splat(factor));
    }
    let exponent = simd.shl(simd.add_words(whole, simd.splat_word(127)), 23);
    simd.mul(power, simd.bits(exponent))
}

/// The hyperbolic tangent of each lane, within 4e-7 of it.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(simd: S, value: S::Floats) -> S::Floats {
    let value = simd.max(simd.add(value, value), simd.splat(-87.0));
    let power = exp(simd, simd.mul(value, simd.splat(-1.0)));
    let fraction = simd.div(simd.splat(2.0), simd.add(power, simd.splat(1.0)));
    simd.add(fraction, simd.splat(-1.0))
}

/// Reads a number of 16 bits.
pub(crate) fn f16(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bytes));
    let (sign, rest) = ((bits & 0x8000) << 16, bits & 0x7fff);
    let value = match rest >> 10 {
        // Multiples of 2^-24, which float32 holds.
        0 => f32::from_bits(0x3380_0000) * f32::from(u16::from_le_bytes(bytes) & 0x7fff),
        31 => f32::from_bits(0x7f80_0000 | (rest & 0x3ff) << 13),
        _ => f32::from_bits((rest << 13) + (112 << 23)),
    };
    f32::from_bits(value.to_bits() | sign)
}

/// Rounds to a number of 16 bits, ties to even; those beyond the greatest one become it.
pub(crate) fn to_f16(number: f32) -> [u8; 2] {
    let bits = number.to_bits();
    let (sign, size) = (bits >> 16 & 0x8000, f32::from_bits(bits & 0x7fff_ffff));
    let half = if size.is_nan() {
        0x7e00
    } else if size < 6.103_515_6e-5 {
        // Multiples of 2^-24, as are the last bits of numbers from 1/2 on.
        (size + 0.5).to_bits() - 0.5_f32.to_bits()
    } else {
        let bits = size.min(65_504.0).to_bits();
        ((bits + 0xfff + (bits >> 13 & 1)) >> 13) - (112 << 10)
    };
    let [low, high, ..] = (sign | half).to_le_bytes();
    [low, high]
}
