//! Texts whose drafts are accepted stay in a full memory and in its store.

use std::collections::VecDeque;
use std::sync::Arc;

use specds_core::draft::Session;
use specds_core::fused::{FusedConfig, FusedDrafter, FusedSession};
use specds_core::memory::{Memory, MemoryOptions};

use crate::{drafted, tempdir};

const VOCAB_SIZE: u32 = 5000;
const LENGTH: usize = 100;
const NUM_USEFUL: u32 = 6;
/// Requests that never come again, between two that do.
const NUM_OTHERS: u32 = 12;
const PROMPT: usize = 20;

fn memory(max_bytes: usize) -> Memory {
    Memory::new(MemoryOptions { max_bytes, ..MemoryOptions::new(VOCAB_SIZE) }).unwrap()
}

/// Returns the text of a request, which differs from all others.
fn text(number: u32) -> Vec<u32> {
    let step = |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    let states = std::iter::successors(Some(u64::from(number) + 1), step);
    states.skip(5).map(|state| (state >> 33) as u32 % VOCAB_SIZE).take(LENGTH).collect()
}

/// Returns requests: a few come again after many others, each of which comes once.
fn requests() -> Vec<Vec<u32>> {
    let mut others = NUM_USEFUL..;
    let of_useful = |number| {
        let others: Vec<_> = others.by_ref().take(NUM_OTHERS as usize).collect();
        // It comes again soon after the first time, so that it can be useful at all.
        [number, number].into_iter().chain(others)
    };
    (0..8).flat_map(|_| 0..NUM_USEFUL).flat_map(of_useful).map(text).collect()
}

/// Answers a request behind a prompt, and returns the number of accepted tokens. The memory receives its text, and only
/// if `notes` the accepted tokens.
pub(crate) fn answer(
    memory: &Arc<Memory>,
    tenant: &str,
    tokens: &[u32],
    prompt: usize,
    notes: bool,
) -> u64 {
    let config = FusedConfig { learns: false, context: false, ..FusedConfig::default() };
    let drafter = FusedDrafter::new(None, Some(Arc::clone(memory)), config).unwrap();
    let drafter = Arc::new(drafter);
    let mut session = FusedSession::new(Arc::clone(&drafter), tenant).unwrap();
    session.observe(&tokens[..prompt], None).unwrap();
    let mut at = prompt;
    while at < tokens.len() {
        let tree = drafted(&mut session, 4);
        let length = (tree.follow(&tokens[at..]).len() + 1).min(tokens.len() - at);
        session.observe(&tokens[at..at + length], Some(tree.len())).unwrap();
        at += length;
    }
    if notes {
        session.finish();
    } else {
        memory.insert(tenant, tokens).unwrap();
    }
    drafter.accepted().iter().sum()
}

/// Answers all requests with one memory.
fn replay(max_bytes: usize, notes: bool) -> (u64, usize) {
    let memory = Arc::new(memory(max_bytes));
    let mut most = 0;
    let answered = requests().into_iter().map(|tokens| {
        let num_accepted = answer(&memory, "", &tokens, PROMPT, notes);
        most = most.max(memory.num_tokens());
        num_accepted
    });
    (answered.sum(), most)
}

/// Answers all requests with the texts that were used last, at most `most` tokens.
fn replay_latest(most: usize) -> u64 {
    let mut latest = VecDeque::<Vec<u32>>::new();
    let answered = requests().into_iter().map(|tokens| {
        let memory = Arc::new(memory(1 << 24));
        for text in &latest {
            memory.insert("", text).unwrap();
        }
        let num_accepted = answer(&memory, "", &tokens, PROMPT, true);
        latest.retain(|text| *text != tokens);
        latest.push_back(tokens);
        while latest.len() * LENGTH > most {
            latest.pop_front();
        }
        num_accepted
    });
    answered.sum()
}

#[test]
fn full_memory_keeps_texts_whose_drafts_were_accepted() {
    let (of_all, all) = replay(1 << 24, true);
    let (of_useful, most) = replay(150_000, true);
    let (of_latest, of_oldest) = (replay_latest(most), replay(150_000, false).0);
    assert!(most < all / 8, "{most} of {all} tokens");
    let shown =
        format!("all {of_all}, useful {of_useful}, latest {of_latest}, no note {of_oldest}");
    assert!(of_useful * 10 > of_all * 9, "{shown}");
    // Each comes twice in a row, so half of all hits need no memory of use.
    assert!(of_latest * 10 < of_all * 6 && of_oldest * 10 < of_all * 6, "{shown}");
}

/// Returns how many useful texts a store has after two workers have answered all requests in turns.
fn left_in_store(notes: bool) -> usize {
    let folder = tempdir().unwrap();
    let path = folder.path().join("store");
    let workers = [150_000, 150_000].map(|max_bytes| Arc::new(memory(max_bytes)));
    // After the last useful one come more others than the store has room for.
    let others = (0..400).map(|number| text(1 << 20 | number));
    for (number, tokens) in requests().into_iter().chain(others).enumerate() {
        let worker = &workers[number / 2 % 2];
        answer(worker, "ann", &tokens, PROMPT, notes);
        worker.save(&path, None).unwrap();
    }
    let options = MemoryOptions { max_bytes: 1 << 24, ..MemoryOptions::new(VOCAB_SIZE) };
    let texts = Memory::open(&path, options).unwrap().texts("ann");
    let is_left = |tokens: &Vec<u32>| {
        texts.iter().any(|text| text.windows(LENGTH - PROMPT).any(|it| tokens.ends_with(it)))
    };
    (0..NUM_USEFUL).map(text).filter(is_left).count()
}

#[test]
fn full_store_keeps_texts_whose_drafts_were_accepted_in_any_worker() {
    let (useful, without) = (left_in_store(true), left_in_store(false));
    assert_eq!((useful, without), (NUM_USEFUL as usize, 0));
}
