//! What a memory of earlier texts takes, in bytes and in time.

use std::sync::LazyLock;
use std::time::Instant;

use divan::{Bencher, counter::ItemsCount};
use specds::memory::History;
use specds::memory::Memory;
use specds::memory::MemoryOptions;

use crate::{CORPUS, VOCAB_SIZE};

/// The tokens that a memory is measured with.
const NUM_REMEMBERED: usize = 1_000_000;

/// Texts of this length, as answers have it.
const ANSWER: usize = 500;

static REMEMBERED: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let tokens = CORPUS.documents.iter().flatten().copied();
    tokens.cycle().take(NUM_REMEMBERED).collect()
});

/// An empty memory of this size.
fn memory_of(max_bytes: usize) -> Memory {
    let options = MemoryOptions {
        max_bytes,
        ..MemoryOptions::new(VOCAB_SIZE)
    };
    Memory::new(options).expect("usable options")
}

fn remember(max_bytes: usize) -> Memory {
    let memory = memory_of(max_bytes);
    insert_all(&memory);
    memory
}

fn insert_all(memory: &Memory) {
    for text in REMEMBERED.chunks(ANSWER) {
        memory.insert("tenant", text).expect("known tokens");
    }
}

/// What a token takes, and how fast texts are inserted where older ones make room.
pub(crate) fn print_figures() {
    let memory = remember(1 << 28);
    let bytes_per_token = memory.num_bytes() as f64 / memory.num_tokens() as f64;
    assert!(bytes_per_token <= 16.0, "bytes a token of text");
    println!("memory: {bytes_per_token:.2} bytes a token");
    let tenant = memory.find("tenant").expect("a tenant");
    let kept = tenant.read();
    let reader = kept.texts();
    let tokens = reader.tokens();
    for end in (1..NUM_REMEMBERED).step_by(NUM_REMEMBERED / 9) {
        let pair = [tokens[end - 1], tokens[end]];
        let scanned = tokens.windows(2).filter(|&window| window == pair).count();
        assert_eq!(
            reader.of_pair(pair[0], pair[1]).count(),
            scanned,
            "occurrences"
        );
    }
    let start = Instant::now();
    let memory = remember(8 << 20);
    let seconds = start.elapsed().as_secs_f64();
    let rate = NUM_REMEMBERED as f64 / seconds / 1e6;
    println!(
        "memory of 8 MiB: {rate:.1} M tokens a second, {} kept",
        memory.num_tokens()
    );
}

/// As the texts of a request are remembered: [`ANSWER`] tokens at a time.
#[divan::bench(sample_count = 11)]
fn insert_into_memory(bencher: Bencher) {
    bencher
        .counter(ItemsCount::new(NUM_REMEMBERED))
        .bench(|| remember(1 << 28));
}

/// At most this many occurrences of a pair among a million tokens, and the token after each.
#[divan::bench(args = [1, 16, 128])]
fn walk_pairs(bencher: Bencher, limit: usize) {
    let mut history = History::default();
    history.extend(&REMEMBERED);
    let tokens = history.tokens();
    let walk = |end: usize| {
        let found = history.of_pair(tokens[end - 1], tokens[end]).take(limit);
        found
            .filter_map(|position| tokens.get(position + 1))
            .sum::<u32>()
    };
    let mut ends = (1..NUM_REMEMBERED).step_by(501).cycle();
    bencher
        .with_inputs(|| ends.next().expect("an end"))
        .bench_local_values(walk);
}
