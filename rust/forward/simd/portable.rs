//! Vectors in plain code, for any processor, and the oracle of the others.

#![allow(clippy::needless_range_loop)] // as in the products
#![expect(clippy::cast_possible_truncation, reason = "callers round to what 32 bits hold")]

use super::vector::{Job, Simd, f16};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Portable;

const LANES: usize = 8;
const ROUNDS_ONCE: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

#[inline(always)]
fn of_bytes<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> [T; LANES] {
    let chunks: &[[u8; N]; LANES] = bytes.as_chunks().0.first_chunk().expect("bytes of each lane");
    chunks.map(read)
}

#[inline(always)]
fn zip<T: Copy, U: Copy>(a: [T; LANES], b: [T; LANES], op: impl Fn(T, T) -> U) -> [U; LANES] {
    std::array::from_fn(|lane| op(a[lane], b[lane]))
}

/// `a * b + c`, rounded once where processors have an instruction for it: elsewhere, each lane would be a call.
#[inline(always)]
fn fma(a: Floats, b: Floats, c: Floats) -> Floats {
    if ROUNDS_ONCE {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    } else {
        zip(zip(a, b, |a, b| a * b), c, |product, c| product + c)
    }
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
        fma(a: Floats, b: Floats, c: Floats) -> Floats = fma(a, b, c);
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
