//! Benchmarks of drafts from all sources and of the updates by their outcome.

use std::sync::{Arc, LazyLock};

use divan::{Bencher, black_box};
use specds::draft::{DraftLimits, Session, TokenTree, draft_batch};
use specds::fused::{FusedConfig, FusedDrafter, FusedSession};
use specds::memory::{Memory, MemoryOptions};

use crate::{BUILT, CORPUS, VOCAB_SIZE, num_accepted};

const NUM_REMEMBERED: usize = 1_000_000;

/// A memory of a million tokens of the corpus.
static MEMORY: LazyLock<Arc<Memory>> = LazyLock::new(|| {
    let memory = Memory::new(MemoryOptions::new(VOCAB_SIZE)).expect("usable options");
    let mut num_tokens = 0;
    for document in CORPUS.documents.iter().rev() {
        memory.insert("", document).expect("known tokens");
        num_tokens += document.len();
        if num_tokens > NUM_REMEMBERED {
            break;
        }
    }
    Arc::new(memory)
});

/// The sources of a drafter.
#[derive(Debug, Clone, Copy)]
enum Sources {
    Nothing,
    Datastore,
    Context,
    Memory,
    All,
}

impl Sources {
    fn drafter(self) -> Arc<FusedDrafter> {
        let datastore = matches!(self, Self::Datastore | Self::All);
        let memory = matches!(self, Self::Memory | Self::All);
        let config = FusedConfig {
            context: matches!(self, Self::Context | Self::All),
            ..FusedConfig::default()
        };
        let drafter = FusedDrafter::new(
            datastore.then(|| Arc::clone(&BUILT.datastore)),
            memory.then(|| Arc::clone(&MEMORY)),
            config,
        );
        Arc::new(drafter.expect("one vocabulary"))
    }
}

/// A simulated decoder of a held-out file, step by step, repeated from its middle.
struct Decoder {
    drafter: Arc<FusedDrafter>,
    session: FusedSession,
    file: &'static [u32],
    place: usize,
}

impl Decoder {
    fn start(drafter: Arc<FusedDrafter>, file: &'static [u32]) -> Self {
        let place = file.len() / 2;
        let mut session = FusedSession::new(Arc::clone(&drafter), "").expect("a short name");
        session.observe(&file[..place], None).expect("known tokens");
        Self { drafter, session, file, place }
    }

    fn draft(&mut self, max_nodes: usize) -> TokenTree {
        let limits = DraftLimits::nodes(black_box(max_nodes));
        self.session.draft(limits).expect("a draft")
    }

    /// The tokens that the model emits where the tree was drafted.
    fn emitted(&mut self, tree: &TokenTree) -> &'static [u32] {
        let rest = &self.file[self.place..];
        let emitted = &rest[..rest.len().min(num_accepted(tree, rest) + 1)];
        self.place += emitted.len();
        if self.place == self.file.len() {
            *self = Self::start(Arc::clone(&self.drafter), self.file);
            return &[];
        }
        emitted
    }
}

fn decoder(sources: Sources) -> Decoder {
    let long = |file: &&Vec<u32>| file.len() > 2000;
    let file = CORPUS.held_out.iter().find(long).expect("a long file");
    Decoder::start(sources.drafter(), file)
}

/// Every tree is sound, and a drafter that saw the same drafts the same.
pub(crate) fn check_answers() {
    let trees = || {
        let mut decoder = decoder(Sources::All);
        let step = |_| {
            let tree = decoder.draft(64);
            let (token_ids, parents) = (tree.token_ids().to_vec(), tree.parents().to_vec());
            TokenTree::new(token_ids, parents, tree.probs().to_vec()).expect("a tree");
            tree
        };
        (0..3).map(step).collect::<Vec<_>>()
    };
    assert_eq!(trees(), trees(), "fused drafts");
}

/// A draft in the middle of an answer: what each source costs, and what all of them together. A draft
/// of one node is the look-up of the context alone.
#[divan::bench(
    args = [Sources::Nothing, Sources::Datastore, Sources::Context, Sources::Memory, Sources::All],
    consts = [1, 8, 16, 32, 64],
)]
fn draft<const MAX_NODES: usize>(bencher: Bencher, sources: Sources) {
    let mut decoder = decoder(sources);
    bencher.bench_local(|| decoder.draft(MAX_NODES));
}

/// One decode step: a draft and the update by its outcome.
#[divan::bench(args = [8, 16, 32, 64], sample_size = 16)]
fn draft_and_observe(bencher: Bencher, max_nodes: usize) {
    let mut decoder = decoder(Sources::All);
    bencher.bench_local(|| {
        let tree = decoder.draft(max_nodes);
        let emitted = decoder.emitted(&tree);
        let learned = decoder.session.observe(emitted, None);
        learned.expect("known tokens");
    });
}

/// Drafts of 16 nodes for 64 requests.
#[divan::bench(args = [1, 2, 4])]
fn draft_for_64_requests(bencher: Bencher, num_threads: usize) {
    let drafter = Sources::All.drafter();
    let long = |file: &&Vec<u32>| file.len() > 200;
    let files = CORPUS.held_out.iter().filter(long).cycle().take(64);
    let mut decoders: Vec<Decoder> =
        files.map(|file| Decoder::start(Arc::clone(&drafter), file)).collect();
    bencher.bench_local(|| {
        let limits = DraftLimits::nodes(16);
        let rows = decoders.iter_mut().map(|decoder| (&mut decoder.session, limits));
        draft_batch(&mut rows.collect::<Vec<_>>(), Some(num_threads))
    });
}
