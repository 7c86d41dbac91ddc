//! The sort in little memory against a naive one and against the fast one.

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::base::error::Error;
use crate::index::lightweight::{memory, sort};
use crate::index::suffix_array;
use crate::storage::section::{Kind, Section, SectionWriter};
use crate::storage::token_array::{TokenWidth, Tokens};

/// The tokens of these texts are below this.
const VOCAB_SIZE: u32 = 1000;

fn store(folder: &Path, text: &[u32], width: TokenWidth) -> Tokens {
    let mut bytes = Vec::new();
    width.encode(text, &mut bytes);
    let mut writer = SectionWriter::create(folder, Kind::Tokens).unwrap();
    writer.write(&bytes).unwrap();
    let manifest = writer.finish(width.bits(), text.len() as u64).unwrap();
    let section = Section::reopen(folder, Kind::Tokens, &manifest).unwrap();
    Tokens::new(section, width)
}

fn light(tokens: &Tokens, vocab_size: u32) -> Vec<u32> {
    let mut order = Vec::new();
    let max_memory = memory(tokens.len() as u64);
    sort(tokens, vocab_size, max_memory, &mut |positions| {
        order.extend_from_slice(positions);
        Ok(())
    })
    .unwrap();
    order
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn short_texts_are_sorted_as_naively(
        letters in vec(0_u32..4, 1..400),
        num_letters in 1_u32..5,
        period in 1_usize..80,
        is_small in any::<bool>(),
    ) {
        for period in [period, letters.len()] {
            let period = letters[..period.min(letters.len())].iter().cycle();
            let text: Vec<_> = period.take(letters.len()).map(|letter| letter % num_letters).collect();
            let mut naive: Vec<_> = (0..).zip(&text).map(|(position, _)| position).collect();
            naive.sort_by_key(|&position: &u32| &text[position as usize..]);
            for width in [TokenWidth::Two, TokenWidth::Three] {
                let folder = tempfile::tempdir().unwrap();
                let tokens = store(folder.path(), &text, width);
                let vocab_size = if is_small { 3 } else { VOCAB_SIZE };
                prop_assert_eq!(&light(&tokens, vocab_size), &naive);
            }
        }
    }
}

/// Long enough for many parts: memory for a few thousand suffixes is all there is.
#[test]
fn long_texts_are_sorted_as_by_libsais() {
    let mut state = 1_u32;
    let mut random = |limit| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % limit
    };
    let n = 20_000;
    let copy: Vec<_> = (0..n / 10).map(|_| random(VOCAB_SIZE)).collect();
    let mut padded: Vec<_> = (0..n).map(|_| random(50)).collect();
    padded[n / 4..n / 2].fill(0);
    let texts: [(&str, Vec<u32>); 8] = [
        ("one token", vec![3; n]),
        (
            "one token and another",
            (0..n).map(|i| u32::from(i == 7)).collect(),
        ),
        ("ten copies", copy.iter().copied().cycle().take(n).collect()),
        (
            "a period of 64",
            copy[..64].iter().copied().cycle().take(n).collect(),
        ),
        (
            "a period of 1000",
            copy[..1000].iter().copied().cycle().take(n).collect(),
        ),
        ("two letters", (0..n).map(|_| random(2)).collect()),
        ("many letters", (0..n).map(|_| random(VOCAB_SIZE)).collect()),
        ("padding", padded),
    ];
    for (name, text) in texts {
        for width in [TokenWidth::Two, TokenWidth::Three] {
            let folder = tempfile::tempdir().unwrap();
            let tokens = store(folder.path(), &text, width);
            let fast = suffix_array::sort(&tokens).unwrap();
            let is_same = light(&tokens, VOCAB_SIZE) == bytemuck::cast_slice::<i32, u32>(&fast);
            assert!(is_same, "{name}, {} bits", width.bits());
        }
    }
}

#[test]
fn the_sort_ends_with_the_error_of_who_takes_the_order() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = store(folder.path(), &[1; 1000], TokenWidth::Two);
    let sorted = sort(&tokens, 4, memory(1000), &mut |_| Err(Error::Stopped));
    assert!(matches!(sorted, Err(Error::Stopped)));
}
