//! Vectors in plain code, for any processor, and the oracle of the others.

#![allow(clippy::needless_range_loop)] // as in the products
#![expect(clippy::cast_possible_truncation, reason = "callers round to what 32 bits hold")]

use super::vector::{Job, Simd, f16};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Portable;

const LANES: usize = 8;

#[inline(always)]
fn of_bytes<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> [T; LANES] {
    let chunks: &[[u8; N]; LANES] = bytes.as_chunks().0.first_chunk().expect("bytes of each lane");
    chunks.map(read)
}

#[inline(always)]
fn zip<T: Copy, U: Copy>(a: [T; LANES], b: [T; LANES], op: impl Fn(T, T) -> U) -> [U; LANES] {
    std::array::from_fn(|lane| op(a[lane], b[lane]))
}

/// `a * b + c`, rounded once. Where processors have no instruction for it, `mul_add` would be a call for each lane.
#[inline(always)]
fn fused(a: Floats, b: Floats, c: Floats) -> Floats {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        return std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]));
    }
    // Products are exact in float64. To round a sum twice is wrong only halfway between two float32.
    let (mut products, mut sums, mut is_halfway) = ([0.0; LANES], [0.0; LANES], false);
    for lane in 0..LANES {
        products[lane] = f64::from(a[lane]) * f64::from(b[lane]);
        sums[lane] = products[lane] + f64::from(c[lane]);
        is_halfway |= halfway(sums[lane]);
    }
    if is_halfway { fused_halfway(products, c, sums) } else { sums.map(|sum| sum as f32) }
}

#[inline(always)]
fn halfway(sum: f64) -> bool {
    sum.to_bits() as u32 & 0x1fff_ffff == 0x1000_0000
}

/// Rounds sums of products and `c`, some of them halfway between two float32.
#[inline(never)]
fn fused_halfway(products: [f64; LANES], c: Floats, mut sums: [f64; LANES]) -> Floats {
    for lane in 0..LANES {
        let (product, c, sum) = (products[lane], f64::from(c[lane]), sums[lane]);
        let of_c = sum - product;
        let error = (product - (sum - of_c)) + (c - of_c);
        // A sum that was rounded goes to the side of its error.
        if halfway(sum) && error != 0.0 {
            let is_up = (error > 0.0) == (sum > 0.0);
            sums[lane] = f64::from_bits(sum.to_bits() - 1 + 2 * u64::from(is_up));
        }
    }
    sums.map(|sum| sum as f32)
}

/// Adds the products of four bytes without a sign and four with one.
#[inline(always)]
fn dot(mut sum: Words, numbers: Words, bytes: u32) -> Words {
    let [first, second, third, fourth] =
        bytes.to_le_bytes().map(|byte| i32::from(byte.cast_signed()));
    for lane in 0..LANES {
        let byte = |place: u32| (numbers[lane] >> (8 * place) & 0xff).cast_signed();
        let low = byte(0) * first + byte(1) * second;
        sum[lane] = sum[lane].wrapping_add_signed(low + byte(2) * third + byte(3) * fourth);
    }
    sum
}

/// Methods, inlined.
macro_rules! methods {
    ($($name:ident($($argument:tt: $type:ty),*) -> $result:ty = $body:expr;)*) => {
        $(#[inline(always)]
        fn $name(self, $($argument: $type),*) -> $result {
            $body
        })*
    };
}

type Floats = [f32; LANES];
type Words = [u32; LANES];

impl Simd for Portable {
    type Floats = Floats;
    type Words = Words;
    const LANES: usize = LANES;
    const HAS_SIGNED_BYTES: bool = false;
    const IS_UNROLLED: bool = false;

    fn run(self, job: impl Job) {
        job.run(self);
    }

    methods! {
        splat(value: f32) -> Floats = [value; LANES];
        load(from: &[f32]) -> Floats = *from.first_chunk().expect("a number of each lane");
        store(value: Floats, to: &mut [f32]) -> () =
            *to.first_chunk_mut().expect("a place of each lane") = value;
        add(a: Floats, b: Floats) -> Floats = zip(a, b, |a, b| a + b);
        mul(a: Floats, b: Floats) -> Floats = zip(a, b, |a, b| a * b);
        div(a: Floats, b: Floats) -> Floats = zip(a, b, |a, b| a / b);
        max(a: Floats, b: Floats) -> Floats = zip(a, b, |a, b| if a > b { a } else { b });
        sum(value: Floats) -> f32 = {
            let four: [f32; 4] = std::array::from_fn(|lane| value[lane] + value[lane + 4]);
            (four[0] + four[2]) + (four[1] + four[3])
        };
        greatest(value: Floats) -> f32 = value.into_iter().fold(f32::MIN, f32::max);
        fma(a: Floats, b: Floats, c: Floats) -> Floats = fused(a, b, c);
        round(value: Floats) -> Words = value.map(|lane| (lane.round_ties_even() as i32).cast_unsigned());
        halves(bytes: &[u8]) -> Floats = of_bytes(bytes, f16);
        upper_halves(bytes: &[u8]) -> Floats =
            of_bytes(bytes, |[low, high]| f32::from_le_bytes([0, 0, low, high]));
        words(bytes: &[u8]) -> Words = of_bytes(bytes, u32::from_le_bytes);
        splat_word(word: u32) -> Words = [word; LANES];
        and(words: Words, mask: u32) -> Words = words.map(|word| word & mask);
        or(a: Words, b: Words) -> Words = zip(a, b, |a, b| a | b);
        add_words(a: Words, b: Words) -> Words = zip(a, b, u32::wrapping_add);
        shl(words: Words, by: u32) -> Words = words.map(|word| word << by);
        shr(words: Words, by: u32) -> Words = words.map(|word| word >> by);
        floats(words: Words) -> Floats = words.map(|word| word.cast_signed() as f32);
        store_bytes(words: Words, to: &mut [u8]) -> () =
            *to.first_chunk_mut().expect("a byte of each lane") = words.map(|word| word as u8);
        bits(words: Words) -> Floats = words.map(f32::from_bits);
        lookup(values: &[u8; 16], numbers: Words) -> Words = numbers.map(|word| {
            u32::from_le_bytes(word.to_le_bytes().map(|number| values[usize::from(number & 15)]))
        });
        where_at_least(value: Floats, of: Floats, least: f32) -> Floats =
            zip(value, of, |value, of| if of >= least { value } else { 0.0 });
        dot(sum: Words, numbers: [Words; 2], bytes: [u32; 2], _: u32) -> Words =
            dot(dot(sum, numbers[0], bytes[0]), numbers[1], bytes[1]);
        finish(sum: Words, _: u32) -> Words = sum;
        prefetch(_: *const u8) -> () = ();
    }
}

#[cfg(test)]
mod tests {
    use super::{Floats, LANES, fused};

    /// Numbers of few and of many bits, so that sums are exact, halfway and rounded.
    #[test]
    fn fused_operation_is_that_of_the_standard_library() {
        let mut state = 1_u64;
        let mut number = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let bits =
                [0xff80_0000, 0xfff0_0000, 0xffff_f000, 0xffff_ffff][(state >> 60) as usize % 4];
            let exponent = 100 + (state >> 40) as u32 % 50;
            f32::from_bits((state >> 32) as u32 & bits & 0x807f_ffff | exponent << 23)
        };
        let mut num_halfway = 0;
        for _ in 0..200_000 {
            let [a, b, c]: [Floats; 3] = std::array::from_fn(|_| std::array::from_fn(|_| number()));
            let made = fused(a, b, c);
            for lane in 0..LANES {
                let exact = a[lane].mul_add(b[lane], c[lane]);
                assert_eq!(
                    made[lane].to_bits(),
                    exact.to_bits(),
                    "{} {} {}",
                    a[lane],
                    b[lane],
                    c[lane]
                );
                let twice = (f64::from(a[lane]) * f64::from(b[lane]) + f64::from(c[lane])) as f32;
                num_halfway += u32::from(twice.to_bits() != exact.to_bits());
            }
        }
        assert!(num_halfway > 0, "no sum that is rounded twice differs");
    }
}
