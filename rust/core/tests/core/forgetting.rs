//! Deletion of tenants in processes that share one file, in any order of events.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::draft::Session;
use specds::fused::{FusedConfig, FusedDrafter, FusedSession};
use specds::memory::{Memory, MemoryOptions};
use tempfile::TempDir;

use crate::{drafted, tempdir};

const VOCAB_SIZE: u32 = 1 << 20;
const NUM_PROCESSES: usize = 3;
const LENGTH: u32 = 12;

#[derive(Debug, Clone, Copy)]
enum SharingStep {
    /// A request of a tenant begins.
    Begin(usize, usize),
    /// The request ends, and its text is stored.
    End(usize),
    Forget(usize, usize),
    Clear(usize),
    /// The process merges its memory with the file, as `share` does.
    Exchange(usize),
    Save(usize),
    /// The process restarts, with the file or an empty memory.
    Kill(usize, bool),
    /// The command `specds memory forget`.
    ForgetInFile(usize),
}

fn steps(num_tenants: usize) -> impl Strategy<Value = Vec<SharingStep>> {
    let of = 0..NUM_PROCESSES;
    let both = (of.clone(), 0..num_tenants);
    vec(
        prop_oneof![
            8 => both.clone().prop_map(|(of, tenant)| SharingStep::Begin(of, tenant)),
            8 => of.clone().prop_map(SharingStep::End),
            4 => both.prop_map(|(of, tenant)| SharingStep::Forget(of, tenant)),
            1 => of.clone().prop_map(SharingStep::Clear),
            10 => of.clone().prop_map(SharingStep::Exchange),
            2 => of.clone().prop_map(SharingStep::Save),
            2 => (of, any::<bool>()).prop_map(|(of, reads)| SharingStep::Kill(of, reads)),
            2 => (0..num_tenants).prop_map(SharingStep::ForgetInFile),
        ],
        0..40,
    )
}

/// The state of a process or of the file by definition: the known deletions and the texts. A text is removed when it
/// meets a deletion of its tenant that its writer did not know when the request began.
#[derive(Debug, Clone, Default)]
struct Place {
    forgettings: BTreeSet<usize>,
    texts: BTreeSet<usize>,
}

struct Process {
    drafter: Arc<FusedDrafter>,
    memory: Arc<Memory>,
    open: Option<(FusedSession, usize)>,
    place: Place,
}

impl Process {
    /// Returns the text of the open request.
    fn open_text(&self) -> Option<usize> {
        self.open.as_ref().map(|(_, text)| *text)
    }
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|at| at == part)
}

struct Text {
    tenant: usize,
    tokens: Vec<u32>,
    known: BTreeSet<usize>,
}

struct World {
    folder: TempDir,
    max_bytes: usize,
    num_tenants: usize,
    processes: Vec<Process>,
    file: Place,
    texts: Vec<Text>,
    /// The tenant of each deletion, or `None` for all tenants.
    forgettings: Vec<Option<usize>>,
}

fn name(tenant: usize) -> String {
    format!("the tenant {tenant:02}")
}

impl World {
    fn new(max_bytes: usize, num_tenants: usize) -> Self {
        let mut world = Self {
            folder: tempdir().unwrap(),
            max_bytes,
            num_tenants,
            processes: Vec::new(),
            file: Place::default(),
            texts: Vec::new(),
            forgettings: Vec::new(),
        };
        let processes = (0..NUM_PROCESSES).map(|_| world.process(false));
        world.processes = processes.collect();
        world
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("memory")
    }

    fn options(&self) -> MemoryOptions {
        let max_bytes = self.max_bytes;
        MemoryOptions { max_bytes, ..MemoryOptions::new(VOCAB_SIZE) }
    }

    fn process(&self, reads: bool) -> Process {
        let reads = reads && self.path().exists();
        let (memory, place) = if reads {
            (Memory::open(self.path(), self.options()), self.file.clone())
        } else {
            (Memory::new(self.options()), Place::default())
        };
        let memory = Arc::new(memory.unwrap());
        let drafter = FusedDrafter::new(None, Some(Arc::clone(&memory)), FusedConfig::default());
        let drafter = Arc::new(drafter.unwrap());
        Process { drafter, memory, open: None, place }
    }

    fn session(process: &Process, tenant: usize, prompt: &[u32]) -> FusedSession {
        let drafter = Arc::clone(&process.drafter);
        let mut session = FusedSession::new(drafter, &name(tenant)).unwrap();
        session.observe(prompt, None).unwrap();
        session
    }

    fn forgets(&mut self, tenant: Option<usize>) -> usize {
        self.forgettings.push(tenant);
        self.forgettings.len() - 1
    }

    /// Removes the texts that a known deletion applies to.
    fn living(&self, mut place: Place) -> Place {
        place.texts.retain(|&text| {
            let text = &self.texts[text];
            let mut news = place.forgettings.difference(&text.known);
            !news.any(|&one| self.forgettings[one].is_none_or(|tenant| tenant == text.tenant))
        });
        place
    }

    fn take(&mut self, step: SharingStep) {
        let path = self.path();
        match step {
            SharingStep::Begin(of, tenant) => {
                let number = self.texts.len();
                // The tokens are in no other text, and their bytes in no count.
                let first = 0x5_0000 + 0x80 * u32::try_from(number).unwrap() + 0x50;
                let tokens: Vec<_> = (first..first + LENGTH).collect();
                let session = Self::session(&self.processes[of], tenant, &tokens[..2]);
                let known = self.processes[of].place.forgettings.clone();
                self.texts.push(Text { tenant, tokens, known });
                self.processes[of].open = Some((session, number));
            }
            SharingStep::End(of) => {
                let Some((mut session, number)) = self.processes[of].open.take() else {
                    return;
                };
                for token in &self.texts[number].tokens[2..] {
                    let num_drafted = drafted(&mut session, 4).len();
                    session.observe(&[*token], Some(num_drafted)).unwrap();
                }
                session.finish();
                self.processes[of].place.texts.insert(number);
                self.processes[of].place = self.living(self.processes[of].place.clone());
            }
            SharingStep::Forget(of, tenant) => {
                self.processes[of].memory.forget(&name(tenant));
                self.forgotten_by(of, Some(tenant));
            }
            SharingStep::Clear(of) => {
                self.processes[of].memory.clear();
                self.forgotten_by(of, None);
            }
            SharingStep::Exchange(of) => {
                self.processes[of].memory.merge_into(&path, None).unwrap();
                let texts = self.file.texts.clone();
                self.meets(of, &texts);
            }
            SharingStep::Save(of) => {
                self.processes[of].memory.save(&path).unwrap();
                self.meets(of, &BTreeSet::new());
            }
            SharingStep::Kill(of, reads) => self.processes[of] = self.process(reads),
            SharingStep::ForgetInFile(tenant) => {
                let found = Memory::forget_in(&path, &[&name(tenant)]);
                assert_eq!(found.is_ok(), path.exists());
                if path.exists() {
                    let one = self.forgets(Some(tenant));
                    self.file.forgettings.insert(one);
                    self.file = self.living(self.file.clone());
                }
            }
        }
    }

    fn forgotten_by(&mut self, of: usize, tenant: Option<usize>) {
        let one = self.forgets(tenant);
        self.processes[of].place.forgettings.insert(one);
        self.processes[of].place = self.living(self.processes[of].place.clone());
    }

    fn meets(&mut self, of: usize, texts: &BTreeSet<usize>) {
        let mut both = self.processes[of].place.clone();
        both.texts.extend(texts);
        both.forgettings.extend(&self.file.forgettings);
        both = self.living(both);
        (self.file, self.processes[of].place) = (both.clone(), both);
    }

    fn check(&self, process: &Process, is_exact: bool) {
        let memory = &process.memory;
        assert!(memory.num_bytes() <= memory.max_bytes());
        for tenant in 0..self.num_tenants {
            let kept: BTreeSet<_> = memory.texts(&name(tenant)).into_iter().collect();
            let is_of = |text: &&usize| self.texts[**text].tenant == tenant;
            let of_tenant = process.place.texts.iter().filter(is_of);
            let tokens = of_tenant.map(|&text| self.texts[text].tokens.clone());
            let expected: BTreeSet<_> = tokens.collect();
            let is_right = kept == expected || (!is_exact && kept.is_subset(&expected));
            assert!(is_right, "expected {expected:?}, found {kept:?}");
        }
        for (number, text) in self.texts.iter().enumerate() {
            if !process.place.texts.contains(&number) {
                let learned = process.drafter.adaptation(&name(text.tenant));
                let is_open = process.open_text() == Some(number);
                let holds = |token: &u32| holds(&learned, &token.to_le_bytes());
                assert!(is_open || !text.tokens.iter().any(holds));
                // An open request adapts weights before its text is stored.
                let mut session = Self::session(process, text.tenant, &text.tokens[..2]);
                let tree = drafted(&mut session, 8);
                let is_known = |token: &u32| text.tokens[2..].contains(token);
                assert!(!tree.token_ids().iter().any(is_known));
            }
        }
    }

    fn check_file(&self, is_exact: bool) {
        if !self.path().exists() {
            return;
        }
        let bytes = std::fs::read(self.path()).unwrap();
        for (number, text) in self.texts.iter().enumerate() {
            let three = |token: &u32| token.to_le_bytes()[..3].to_vec();
            let part: Vec<_> = text.tokens[4..7].iter().flat_map(three).collect();
            let lives = self.file.texts.contains(&number);
            let is_there = holds(&bytes, &part);
            assert!(lives || !is_there, "text {number} is in the file");
            assert!(!is_exact || !lives || is_there, "text {number} is not in the file");
        }
        for tenant in 0..self.num_tenants {
            let is_of = |text: usize| self.texts[text].tenant == tenant;
            let is_about = |&one: &usize| self.forgettings[one].is_none_or(|of| of == tenant);
            let lives = self.file.texts.iter().copied().any(is_of);
            let is_forgotten = self.file.forgettings.iter().any(is_about);
            let mut open = self.processes.iter().filter_map(Process::open_text);
            let is_named = holds(&bytes, name(tenant).as_bytes());
            assert!(lives || !is_forgotten || !is_named || open.any(is_of));
        }
        self.check(&self.process(true), is_exact);
    }

    /// Runs the steps and checks each exchange. `is_exact` states that there is room for all texts and tombstones.
    fn live(mut self, steps: Vec<SharingStep>, is_exact: bool) {
        for step in steps {
            let of = match step {
                SharingStep::Exchange(of) | SharingStep::Save(of) => Some(of),
                _ => None,
            };
            self.take(step);
            if let Some(of) = of {
                self.check(&self.processes[of], is_exact);
                self.check_file(is_exact);
            }
        }
        for of in [0, 1, 2, 0, 1, 2] {
            self.take(SharingStep::Exchange(of));
        }
        for process in &self.processes {
            assert_eq!(process.place.texts, self.file.texts);
            self.check(process, is_exact);
        }
        self.check_file(is_exact);
    }
}

/// Returns the number of random cases of each property: `WORLDS`, or 100.
fn num_worlds() -> u32 {
    let asked = std::env::var("WORLDS").ok();
    asked.map_or(100, |number| number.parse().expect("a number of worlds"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(num_worlds()))]

    #[test]
    fn exchange_removes_deleted_tenants_and_keeps_their_later_texts(steps in steps(3)) {
        World::new(1 << 22, 3).live(steps, true);
    }

    #[test]
    fn pruned_tombstones_delete_more_tenants_not_fewer(steps in steps(40)) {
        World::new(MemoryOptions::MIN_BYTES, 40).live(steps, false);
    }
}
