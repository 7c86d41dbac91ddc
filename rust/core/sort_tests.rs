//! Both sorts against a naive one, and each against the other.

use std::path::Path;
use std::time::Instant;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::format::{Kind, Section, SectionWriter};
use crate::lightweight;
use crate::suffix;
use crate::tokens::{TokenWidth, Tokens};

fn tokens(folder: &Path, text: &[u32], width: TokenWidth) -> Tokens {
    let mut bytes = Vec::new();
    width.encode(text, &mut bytes);
    let mut writer = SectionWriter::create(folder, Kind::Tokens).unwrap();
    writer.write(&bytes).unwrap();
    let manifest = writer.finish(width.bits(), text.len() as u64).unwrap();
    Tokens::new(
        Section::reopen(folder, Kind::Tokens, &manifest).unwrap(),
        width,
    )
}

fn light(tokens: &Tokens, vocab_size: u32, max_memory: u64) -> Vec<u32> {
    let mut order = Vec::new();
    lightweight::sort(tokens, vocab_size, max_memory, &mut |positions| {
        order.extend_from_slice(positions);
        Ok(())
    })
    .unwrap();
    order
}

fn check(text: &[u32], vocab_size: u32, width: TokenWidth) {
    let folder = tempfile::tempdir().unwrap();
    let tokens = tokens(folder.path(), text, width);
    let expected: Vec<u32> = suffix::sort(&tokens)
        .unwrap()
        .into_iter()
        .map(i32::cast_unsigned)
        .collect();
    let order = light(&tokens, vocab_size, lightweight::memory(text.len() as u64));
    let wrong = order.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!((order.len(), wrong), (expected.len(), None));
}

proptest! {
    #[test]
    fn short_texts_are_sorted_as_naively(text in vec(0_u32..4, 1..400), period in 1_usize..80) {
        for period in [period, text.len()] {
            let text: Vec<_> = text.iter().copied().take(period).cycle().take(text.len()).collect();
            let mut naive: Vec<_> = (0..text.len() as u32).collect();
            naive.sort_by_key(|&position| &text[position as usize..]);
            for width in [TokenWidth::Two, TokenWidth::Three] {
                let folder = tempfile::tempdir().unwrap();
                let tokens = tokens(folder.path(), &text, width);
                prop_assert_eq!(&light(&tokens, 4, lightweight::memory(text.len() as u64)), &naive);
            }
        }
    }
}

#[test]
#[ignore]
fn large() {
    let args = std::env::var("SORT_TEXT").unwrap();
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let n = 10_000_000;
    let text: Vec<u32> = match args.as_str() {
        "chat" => std::fs::read("/tmp/chat.u16")
            .unwrap()
            .chunks(2)
            .map(|b| u32::from(b[0]) + 256 * u32::from(b[1]))
            .collect(),
        "chat10" => std::fs::read("/tmp/chat.u16").unwrap()[..20_000_000]
            .chunks(2)
            .map(|b| u32::from(b[0]) + 256 * u32::from(b[1]))
            .collect(),
        "one" => vec![7; n],
        "copies" => std::fs::read("/tmp/chat.u16").unwrap()[..2_000_000]
            .chunks(2)
            .map(|b| u32::from(b[0]) + 256 * u32::from(b[1]))
            .cycle()
            .take(n)
            .collect(),
        "period" => (0..n).map(|i| (i % 1000 * 7919 % 30000) as u32).collect(),
        "period64" => (0..n).map(|i| (i % 64) as u32).collect(),
        "random" => {
            let mut s = 1u64;
            (0..n)
                .map(|_| {
                    s = s
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    (s >> 50) as u32
                })
                .collect()
        }
        "binary" => {
            let mut s = 1u64;
            (0..n)
                .map(|_| {
                    s = s
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    (s >> 63) as u32
                })
                .collect()
        }
        _ => panic!(),
    };
    let n = text.len();
    let tokens = tokens(folder.path(), &text, TokenWidth::Two);
    drop(text);
    let rss = || {
        let s = std::fs::read_to_string("/proc/self/status").unwrap();
        s.lines()
            .filter(|l| l.starts_with("VmHWM") || l.starts_with("RssAnon"))
            .map(|l| l.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024)
            .collect::<Vec<_>>()
    };
    let cpu = || {
        let s = std::fs::read_to_string("/proc/self/stat").unwrap();
        let f: Vec<_> = s.rsplit(')').next().unwrap().split_whitespace().collect();
        (f[11].parse::<f64>().unwrap() + f[12].parse::<f64>().unwrap()) / 100.0
    };
    std::fs::write("/proc/self/clear_refs", "5").ok();
    eprintln!("before {:?}", rss());
    let before = rss()[1];
    let (start, c) = (Instant::now(), cpu());
    let mut sum = 0u64;
    let mut k = 0u64;
    let mut peak = 0;
    lightweight::sort(&tokens, 32000, lightweight::memory(n as u64), &mut |p| {
        for &p in p {
            sum = sum.wrapping_add((p as u64).wrapping_mul(k));
            k += 1;
        }
        peak = peak.max(rss()[1]);
        Ok(())
    })
    .unwrap();
    eprintln!(
        "{args} light wall {:?} cpu {} rss {:?} peak anon {:.2} B/token",
        start.elapsed(),
        cpu() - c,
        rss(),
        (peak - before.min(peak)) as f64 / n as f64
    );
    let (start, c) = (Instant::now(), cpu());
    let mut other = 0u64;
    for (k, p) in (0u64..).zip(suffix::sort(&tokens).unwrap()) {
        other = other.wrapping_add((p as u64).wrapping_mul(k));
    }
    eprintln!("{args} fast wall {:?} cpu {}", start.elapsed(), cpu() - c);
    assert_eq!((sum, k), (other, n as u64));
}

#[test]
fn repetitive_texts() {
    for width in [TokenWidth::Two, TokenWidth::Three] {
        for text in [
            vec![3; 100_000],
            (0..100_000).map(|i| i % 64).collect(),
            (0..100_000).map(|i| i % 1000).collect(),
        ] {
            check(&text, 1000, width);
        }
    }
}
