//! Drafts from all sources, as a decoder asks for them, and what learning from them takes.

use std::sync::{Arc, LazyLock};

use divan::{Bencher, black_box};
use specds::draft::Session;
use specds::fused::{FusedConfig, FusedDrafter, FusedSession, fit};
use specds::memory::{Memory, MemoryOptions};
use specds::tree::TokenTree;
use specds::weights::Weights;

use crate::{BUILT, CORPUS, VOCAB_SIZE, num_accepted};

const NUM_REMEMBERED: usize = 1_000_000;

/// The drafter of all sources: its memory holds a million tokens of the corpus.
static DRAFTER: LazyLock<Arc<FusedDrafter>> = LazyLock::new(|| {
    let memory = Memory::new(MemoryOptions::new(VOCAB_SIZE)).expect("usable options");
    let mut num_tokens = 0;
    for document in CORPUS.documents.iter().rev() {
        memory.insert("", document).expect("known tokens");
        num_tokens += document.len();
        if num_tokens > NUM_REMEMBERED {
            break;
        }
    }
    let datastore = Some(Arc::clone(&BUILT.datastore));
    let config = FusedConfig::default();
    let drafter = FusedDrafter::new(
        datastore,
        Some(Arc::new(memory)),
        config,
        Weights::default(),
    );
    Arc::new(drafter.expect("one vocabulary"))
});

/// What a model does with a held-out file, a step at a time, and again from the beginning.
struct Decoder {
    session: FusedSession,
    file: &'static [u32],
    place: usize,
}

impl Decoder {
    fn start(file: &'static [u32]) -> Self {
        let place = file.len() / 2;
        let mut session = FusedSession::new(Arc::clone(&DRAFTER), "").expect("a short name");
        session.observe(&file[..place]).expect("known tokens");
        Self {
            session,
            file,
            place,
        }
    }

    /// The tokens that the model emits where the tree was drafted.
    fn emitted(&mut self, tree: &TokenTree) -> &'static [u32] {
        let rest = &self.file[self.place..];
        let emitted = &rest[..rest.len().min(num_accepted(tree, rest) + 1)];
        self.place += emitted.len();
        if self.place == self.file.len() {
            *self = Self::start(self.file);
            return &[];
        }
        emitted
    }
}

fn decoder() -> Decoder {
    let long = |file: &&Vec<u32>| file.len() > 2000;
    Decoder::start(CORPUS.held_out.iter().find(long).expect("a long file"))
}

/// Every tree is sound, and a drafter that saw the same drafts the same.
pub(crate) fn check_answers() {
    let trees = || {
        let mut decoder = decoder();
        let step = |_| {
            let tree = decoder.session.draft(64).expect("a draft");
            TokenTree::new(
                tree.token_ids().to_vec(),
                tree.parents().to_vec(),
                tree.probs().to_vec(),
            )
            .expect("a tree");
            tree
        };
        (0..3).map(step).collect::<Vec<_>>()
    };
    assert_eq!(trees(), trees(), "fused drafts");
}

/// A draft in the middle of an answer.
#[divan::bench(args = [1, 8, 16, 32, 64])]
fn draft_from_all(bencher: Bencher, max_nodes: usize) {
    let mut decoder = decoder();
    bencher.bench_local(|| decoder.session.draft(black_box(max_nodes)));
}

/// A draft, and what its outcome teaches: one decoding step.
#[divan::bench(args = [8, 16, 32, 64], sample_size = 16)]
fn draft_from_all_and_observe(bencher: Bencher, max_nodes: usize) {
    let mut decoder = decoder();
    bencher.bench_local(|| {
        let tree = decoder.session.draft(max_nodes).expect("a draft");
        let emitted = decoder.emitted(&tree);
        decoder.session.observe(emitted).expect("known tokens");
    });
}

/// A document of a thousand tokens.
#[divan::bench(sample_count = 11)]
fn fit_weights(bencher: Bencher) {
    let long = |file: &&Vec<u32>| file.len() > 1000;
    let file = CORPUS.held_out.iter().find(long).expect("a long file");
    let datastore = Some(Arc::clone(&BUILT.datastore));
    bencher.bench_local(|| fit(datastore.clone(), &[&file[..1000]], Weights::default()));
}
