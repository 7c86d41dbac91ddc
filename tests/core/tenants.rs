//! Tenants are apart: nothing that one of them writes is in another's drafts, nor in what is left of him
//! when he is forgotten.

use std::fs;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::draft::{Session, TokenTree};
use specds::fused::{FusedConfig, FusedDrafter, FusedSession, Memory, Weights};
use specds::lookup::Datastore;
use specds::memory::MemoryOptions;

use crate::fused::{build_one, drafter, num_accepted};
use crate::random::Random;
use crate::{drafted, tempdir};

const VOCAB_SIZE: u32 = 40;

/// Less than three tenants teach and write in the tests below.
const MAX_BYTES: usize = 1 << 21;

fn memory(max_bytes: usize) -> Arc<Memory> {
    let options = MemoryOptions {
        max_bytes,
        ..MemoryOptions::new(VOCAB_SIZE)
    };
    Arc::new(Memory::new(options).unwrap())
}

fn shared(datastore: Option<&Arc<Datastore>>, memory: &Arc<Memory>) -> Arc<FusedDrafter> {
    drafter(datastore, Some(memory), FusedConfig::default())
}

/// A request, as a model would write it: its drafts, and how many tokens each step emitted.
struct Request {
    session: FusedSession,
    text: Vec<u32>,
    begin: usize,
    trees: Vec<TokenTree>,
}

impl Request {
    fn start(drafter: &Arc<FusedDrafter>, tenant: &str, text: &[u32]) -> Self {
        Self::start_in(drafter, tenant, None, text)
    }

    fn start_in(
        drafter: &Arc<FusedDrafter>,
        tenant: &str,
        group: Option<&str>,
        text: &[u32],
    ) -> Self {
        let mut session = FusedSession::new(Arc::clone(drafter), tenant).unwrap();
        if let Some(group) = group {
            session.join(group).unwrap();
        }
        let begin = text.len().min(4);
        session.observe(&text[..begin], None).unwrap();
        Self {
            session,
            text: text.to_vec(),
            begin,
            trees: Vec::new(),
        }
    }

    /// Drafts and verifies once; says whether there is more to write.
    fn step(&mut self) -> bool {
        let rest = &self.text[self.begin..];
        let tree = drafted(&mut self.session, 16);
        let emitted = rest.len().min(num_accepted(&tree, rest) + 1);
        let ends = |step: usize| {
            step.checked_sub(1)
                .map_or(self.text[self.begin - 1], |node| tree.token_ids()[node])
        };
        let predictions: Vec<u32> = (0..=tree.len())
            .map(|row| (ends(row) + 1) % VOCAB_SIZE)
            .collect();
        self.session
            .observe_predictions(&tree, &predictions, 1)
            .unwrap();
        self.session.observe(&rest[..emitted], None).unwrap();
        self.trees.push(tree);
        self.begin += emitted;
        self.begin < self.text.len()
    }

    fn run(mut self) -> Vec<TokenTree> {
        while self.begin < self.text.len() && self.step() {}
        self.session.finish();
        self.trees
    }
}

/// Serves what Ann and Bob ask for in turn, a step each, and gives Bob's drafts and his weights.
fn drafts_of_bob(
    datastore: Option<&Arc<Datastore>>,
    max_bytes: usize,
    [ann, bob]: [&str; 2],
    group: Option<&str>,
    requests: &[(Vec<u32>, Vec<u32>)],
) -> (Vec<TokenTree>, Vec<u8>) {
    let memory = memory(max_bytes);
    let drafter = shared(datastore, &memory);
    let mut trees = Vec::new();
    for (of_ann, of_bob) in requests {
        let mut hers = Request::start_in(&drafter, ann, group, of_ann);
        let mut his = Request::start_in(&drafter, bob, group, of_bob);
        while hers.begin < hers.text.len() && his.begin < his.text.len() {
            hers.step();
            his.step();
        }
        hers.run();
        trees.extend(his.run());
    }
    (trees, drafter.weights(bob).to_bytes())
}

/// Texts over so few tokens that those of two tenants have much in common.
fn text() -> impl Strategy<Value = Vec<u32>> {
    let phrase = (0_u32..6, 0_u32..6).prop_map(|(a, b)| vec![a, b, (a + b) % 6, 6 + a]);
    vec(phrase, 1..30).prop_map(|phrases| phrases.concat())
}

fn world() -> impl Strategy<Value = Vec<(Vec<u32>, Vec<u32>, Vec<u32>)>> {
    vec((text(), text(), text()), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn worlds_that_differ_in_anns_text_alone_are_one_to_bob(
        world in world(),
        is_stored: bool,
        is_grouped: bool,
    ) {
        let group = is_grouped.then_some("both");
        let stored = is_stored.then(|| build_one(&[Random(1).tokens(300, 0, 6)], VOCAB_SIZE));
        let [first, second] = [0, 1].map(|other| {
            let requests = world.iter().map(|(one, two, bob)| {
                (if other == 0 { one.clone() } else { two.clone() }, bob.clone())
            });
            let requests: Vec<_> = requests.collect();
            drafts_of_bob(stored.as_ref(), MAX_BYTES, ["ann", "bob"], group, &requests)
        });
        prop_assert!(first == second);
    }
}

/// The same two worlds tell apart what Ann wrote as soon as she goes by Bob's name.
#[test]
fn of_two_requests_of_one_tenant_each_is_in_the_others_drafts() {
    let secrets = [[7, 8, 9, 10].repeat(6), [7, 9, 8, 10].repeat(6)];
    let drafts = secrets.map(|secret| {
        let requests = [(secret, vec![1, 2, 3, 7, 1, 2, 3, 7])];
        drafts_of_bob(None, MAX_BYTES, ["bob", "bob"], None, &requests)
    });
    assert!(drafts[0] != drafts[1]);
}

/// The drafts of a request after one of Ann's in the group "task".
fn drafts_after_ann(
    tenant: &str,
    group: Option<&str>,
    [first, then]: [&[u32]; 2],
) -> Vec<TokenTree> {
    let drafter = shared(None, &memory(MAX_BYTES));
    let of_ann = group.map(|_| "task");
    Request::start_in(&drafter, "ann", of_ann, first).run();
    Request::start_in(&drafter, tenant, group, then).run()
}

#[test]
fn a_group_is_of_one_tenant() {
    let texts = [9, 8].map(|prompt| [[prompt; 4].as_slice(), &[1, 2, 3, 5, 6, 7]].concat());
    let [first, then] = &texts;
    let drafts = |tenant, group| drafts_after_ann(tenant, Some(group), [first, then]);
    assert!(drafts("ann", "task") != drafts("ann", "other"));
    assert!(drafts("bob", "task") == drafts("bob", "other"));
}

/// Prompts of four tokens, which begin no other's: only samples of the same one are of a group.
#[test]
fn samples_of_one_prompt_are_of_one_group_unless_they_are_named() {
    let text = [9, 9, 9, 9, 1, 2, 3, 5, 6, 7];
    let drafts = |group| drafts_after_ann("ann", group, [&text, &text]);
    assert!(drafts(None) == drafts(Some("task")));
    assert!(drafts(None) != drafts(Some("other")));
}

#[test]
fn no_volume_of_anns_takes_anything_from_bob_who_has_an_equal_share() {
    let bob = Random(3).tokens(400, 0, 10).repeat(2);
    let drafts = [10, 3000, 40_000].map(|length| {
        let mut random = Random(4);
        let memory = memory(MAX_BYTES);
        let drafter = shared(None, &memory);
        let mut trees = Vec::new();
        for _ in 0..20 {
            let ann = random.tokens(length, 0, VOCAB_SIZE);
            memory.insert("ann", &ann).unwrap();
            trees.extend(Request::start(&drafter, "bob", &bob).run());
            assert!(memory.num_bytes() <= memory.max_bytes());
        }
        (trees, drafter.weights("bob").to_bytes())
    });
    assert!(drafts[0] == drafts[1] && drafts[1] == drafts[2]);
}

/// What Ann's model writes is made to mislead: Bob's drafts are, to the bit, those that he gets alone.
#[test]
fn no_text_of_anns_makes_bobs_drafts_worse() {
    let mut random = Random(9);
    let base = random.tokens(60, 0, VOCAB_SIZE);
    let bob = || {
        let mut random = Random(5);
        let mut change = |token: &u32| {
            if random.below(8) == 0 {
                random.below(VOCAB_SIZE)
            } else {
                *token
            }
        };
        (0..6)
            .flat_map(|_| base.iter().map(&mut change).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    let random_text = random.tokens(4000, 0, VOCAB_SIZE);
    let misleading = random_text
        .iter()
        .flat_map(|&token| [1, 2, 3, token])
        .collect();
    let poisons = [
        Vec::new(),
        random_text,
        vec![7; 4000],
        [1, 2].repeat(2000),
        misleading,
    ];
    let drafts = poisons.map(|poison| {
        let drafter = shared(None, &memory(MAX_BYTES));
        Request::start(&drafter, "ann", &poison).run();
        let trees = Request::start(&drafter, "bob", &bob()).run();
        assert!(trees.len() < bob().len() * 2 / 3, "he accepts something");
        (trees, drafter.weights("bob").to_bytes())
    });
    assert!(drafts.iter().all(|other| *other == drafts[0]));
}

#[test]
fn nothing_of_a_forgotten_tenant_is_saved_and_an_open_request_brings_nothing_back() {
    let folder = tempdir().unwrap();
    let saved = |with_ann: bool| {
        let memory = memory(MAX_BYTES);
        let drafter = shared(None, &memory);
        Request::start(&drafter, "bob", &[1, 2, 3].repeat(9)).run();
        if with_ann {
            Request::start(&drafter, "ann", &[33, 34, 35].repeat(9)).run();
            let mut open = Request::start(&drafter, "ann", &[36, 37, 38].repeat(9));
            open.step();
            memory.forget("ann");
            assert!(drafter.weights("ann") == Weights::default());
            open.run();
            assert!(drafter.weights("ann") == Weights::default());
            assert!(memory.find("ann").is_none());
        }
        let path = folder.path().join("memory");
        memory.save(&path).unwrap();
        (
            fs::read(path).unwrap(),
            memory.num_bytes(),
            memory.num_tokens(),
        )
    };
    let [(without, ..), (with, ..)] = [false, true].map(saved);
    assert_eq!(saved(true).1, saved(false).1);
    // Only the numbers of uses, which tell that somebody was served, may differ.
    let differing = without.iter().zip(&with).filter(|(a, b)| a != b).count();
    assert!(without.len() == with.len() && differing < 32, "{differing}");
}

#[test]
fn what_a_tenant_taught_is_counted_saved_and_brought_back() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("memory");
    let memory = memory(MAX_BYTES);
    let drafter = shared(None, &memory);
    let text = [1, 2, 3, 4, 1, 2, 5, 6].repeat(9);
    memory.insert("bob", &text).unwrap();
    let without = memory.num_bytes();
    Request::start(&drafter, "ann", &text).run();
    let cost = memory.num_bytes() - without - memory.find("bob").unwrap().num_bytes();
    assert!((50_000..300_000).contains(&cost), "{cost}");
    memory.save(&path).unwrap();
    let opened = Arc::new(Memory::open(&path, memory.options().clone()).unwrap());
    let resumed = shared(None, &opened);
    let weights = drafter.weights("ann");
    assert!(resumed.weights("ann") == weights && weights != Weights::default());
    assert!(resumed.weights("bob") == Weights::default());
    let next = |drafter| Request::start(drafter, "ann", &text).run();
    assert!(next(&resumed) == next(&drafter));
}

/// Where memory is short, what a tenant taught goes before a longer text does, and is learned again.
#[test]
fn weights_are_evicted_with_their_tenants() {
    let memory = memory(MAX_BYTES);
    let drafter = shared(None, &memory);
    let text = [1, 2, 3, 4, 1, 2, 5, 6].repeat(9);
    for number in 0..60 {
        Request::start(&drafter, &number.to_string(), &text).run();
        assert!(memory.num_bytes() <= memory.max_bytes());
    }
    assert!(drafter.weights("0") == Weights::default());
    assert!(drafter.weights("59") != Weights::default());
    let known = (0..60).filter(|number: &u32| memory.find(&number.to_string()).is_some());
    assert!(known.count() > 20, "texts are small");
}
