//! Deletions and texts in processes that share a store which fails and lies, in any order of events.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use specds_core::Result;
use specds_core::memory::{FoundHead, Memory, MemoryOptions, ObjectStore};
use specds_index::Error;

const NUM_PROCESSES: usize = 3;
const NUM_TENANTS: usize = 3;
const NAME: &str = "the store";

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The call fails and has no effect.
    Lost,
    /// The call fails after it had its effect.
    Unanswered,
    /// The call returns an earlier head, or half of an object.
    Lie,
}

#[derive(Debug, Clone, Copy)]
enum FleetStep {
    Add(usize, usize),
    Forget(usize, usize),
    Clear(usize),
    /// The process exchanges; the number of a call that has a fault, and whether all later ones have it.
    Exchange(usize, Option<(usize, Fault, bool)>),
    /// Another process exchanges between the read and the write of this one.
    ExchangeDuring(usize, usize),
    /// The process restarts without texts. The first one lives on.
    Kill(usize),
    /// The command `specds memory forget`.
    ForgetInStore(usize),
    Copy,
    Restore,
}

fn steps() -> impl Strategy<Value = Vec<FleetStep>> {
    let of = 0..NUM_PROCESSES;
    let both = (of.clone(), 0..NUM_TENANTS);
    let kind = prop_oneof![Just(Fault::Lost), Just(Fault::Unanswered), Just(Fault::Lie)];
    let fault = proptest::option::of((0_usize..12, kind, any::<bool>()));
    vec(
        prop_oneof![
            10 => both.clone().prop_map(|(of, tenant)| FleetStep::Add(of, tenant)),
            4 => both.prop_map(|(of, tenant)| FleetStep::Forget(of, tenant)),
            1 => of.clone().prop_map(FleetStep::Clear),
            12 => (of.clone(), fault).prop_map(|(of, fault)| FleetStep::Exchange(of, fault)),
            3 => (of.clone(), of.clone()).prop_map(|(of, by)| FleetStep::ExchangeDuring(of, by)),
            2 => (1..NUM_PROCESSES).prop_map(FleetStep::Kill),
            2 => (0..NUM_TENANTS).prop_map(FleetStep::ForgetInStore),
            1 => Just(FleetStep::Copy),
            1 => Just(FleetStep::Restore),
        ],
        0..60,
    )
}

#[derive(Debug, Clone, Default)]
struct Bucket {
    head: Option<(Vec<u8>, u64)>,
    objects: BTreeMap<String, Vec<u8>>,
}

/// A store in memory.
#[derive(Default)]
struct FaultyStore {
    bucket: RefCell<Bucket>,
    /// The heads of all times.
    heads: RefCell<Vec<(Vec<u8>, u64)>>,
    num_calls: RefCell<usize>,
    fault: RefCell<Option<(usize, Fault, bool)>>,
}

impl FaultyStore {
    fn failed() -> Error {
        let source = io::Error::new(io::ErrorKind::TimedOut, "no answer");
        Error::Io { path: NAME.into(), source }
    }

    /// Makes a call, with a fault if this one has one.
    fn call<R>(&self, effect: impl FnOnce(&mut Bucket, bool) -> R) -> Result<R> {
        let number = self.num_calls.replace_with(|number| *number + 1);
        let is_at = |&(at, _, lasts): &(usize, Fault, bool)| number == at || lasts && number > at;
        let fault = self.fault.borrow().filter(is_at).map(|(_, fault, _)| fault);
        if matches!(fault, Some(Fault::Lost)) {
            return Err(Self::failed());
        }
        let lies = matches!(fault, Some(Fault::Lie));
        let result = effect(&mut self.bucket.borrow_mut(), lies);
        if matches!(fault, Some(Fault::Unanswered)) { Err(Self::failed()) } else { Ok(result) }
    }
}

impl ObjectStore for FaultyStore {
    fn head(&self, known: Option<&str>) -> Result<FoundHead> {
        self.call(|bucket, lies| {
            let old = self.heads.borrow().first().cloned().filter(|_| lies);
            match old.or_else(|| bucket.head.clone()) {
                None => FoundHead::Missing,
                Some((_, version)) if known == Some(&version.to_string()) => FoundHead::Unchanged,
                Some((head, version)) => FoundHead::Changed(head, version.to_string()),
            }
        })
    }

    fn replace_head(&self, head: &[u8], before: Option<&str>) -> Result<Option<String>> {
        self.call(|bucket, _| {
            let found = bucket.head.as_ref().map(|(_, version)| version.to_string());
            if found.as_deref() != before {
                return None;
            }
            let version = self.heads.borrow().len() as u64;
            bucket.head = Some((head.to_vec(), version));
            self.heads.borrow_mut().push((head.to_vec(), version));
            Some(version.to_string())
        })
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.call(|bucket, lies| {
            let half =
                |object: &Vec<u8>| object[..object.len() / if lies { 2 } else { 1 }].to_vec();
            bucket.objects.get(name).map(half)
        })
    }

    fn put(&self, name: &str, content: &[u8]) -> Result<()> {
        self.call(|bucket, _| {
            let before = bucket.objects.insert(name.to_owned(), content.to_vec());
            assert!(before.is_none(), "an object is written once");
        })
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.call(|bucket, _| drop(bucket.objects.remove(name)))
    }

    fn list(&self) -> Result<Vec<String>> {
        self.call(|bucket, _| bucket.objects.keys().cloned().collect())
    }
}

/// The deletions and texts that a process or the store knows by definition. After a call that failed, it may have happened.
#[derive(Debug, Clone, Default)]
struct Knowledge {
    /// Deletions that are certainly known, and those that may be.
    sure: BTreeSet<usize>,
    maybe: BTreeSet<usize>,
    /// Texts that are certainly there, unless they are deleted.
    texts: BTreeSet<usize>,
}

impl Knowledge {
    fn join(&mut self, other: &mut Self, is_done: bool) {
        self.maybe.extend(&other.maybe);
        other.maybe.extend(&self.maybe);
        if is_done {
            self.sure.extend(&other.sure);
            self.texts.extend(&other.texts);
            (other.sure, other.texts) = (self.sure.clone(), self.texts.clone());
        }
    }
}

struct FleetText {
    tenant: usize,
    tokens: Vec<u32>,
    sure: BTreeSet<usize>,
    maybe: BTreeSet<usize>,
}

struct Fleet {
    store: FaultyStore,
    processes: Vec<(Memory, Knowledge)>,
    in_store: Knowledge,
    copy: (Bucket, Knowledge),
    texts: Vec<FleetText>,
    /// The tenant of each deletion, or `None` for all tenants.
    deletions: Vec<Option<usize>>,
}

fn name(tenant: usize) -> String {
    format!("tenant {tenant}")
}

fn memory() -> Memory {
    Memory::new(MemoryOptions { max_bytes: 1 << 22, ..MemoryOptions::new(1 << 20) }).unwrap()
}

impl Fleet {
    fn new() -> Self {
        Self {
            store: FaultyStore::default(),
            processes: (0..NUM_PROCESSES).map(|_| (memory(), Knowledge::default())).collect(),
            in_store: Knowledge::default(),
            copy: Default::default(),
            texts: Vec::new(),
            deletions: Vec::new(),
        }
    }

    fn exchange(&mut self, of: usize) -> bool {
        let (memory, knowledge) = &mut self.processes[of];
        let done = memory.exchange(&self.store, Path::new(NAME), &mut |_| Ok(None)).is_ok();
        knowledge.join(&mut self.in_store, done);
        done
    }

    fn deleted_by(&mut self, of: usize, tenant: Option<usize>) {
        let knowledge = &mut self.processes[of].1;
        knowledge.sure.insert(self.deletions.len());
        knowledge.maybe.insert(self.deletions.len());
        self.deletions.push(tenant);
    }

    fn take(&mut self, step: FleetStep) {
        match step {
            FleetStep::Add(of, tenant) => {
                let first = 64 * u32::try_from(self.texts.len()).unwrap();
                let tokens: Vec<_> = (first..first + 12).collect();
                let (memory, knowledge) = &mut self.processes[of];
                memory.insert(&name(tenant), &tokens).unwrap();
                knowledge.texts.insert(self.texts.len());
                let (sure, maybe) = (knowledge.sure.clone(), knowledge.maybe.clone());
                self.texts.push(FleetText { tenant, tokens, sure, maybe });
            }
            FleetStep::Forget(of, tenant) => {
                self.processes[of].0.forget(&name(tenant));
                self.deleted_by(of, Some(tenant));
            }
            FleetStep::Clear(of) => {
                self.processes[of].0.clear();
                self.deleted_by(of, None);
            }
            FleetStep::Exchange(of, fault) => {
                self.store.num_calls.replace(0);
                self.store.fault.replace(fault);
                let (memory, knowledge) = &mut self.processes[of];
                let done = memory.exchange(&self.store, Path::new(NAME), &mut |_| Ok(None)).is_ok();
                self.store.fault.replace(None);
                assert!(done || fault.is_some(), "an exchange without faults");
                // After a lie, it may not know of the newest head.
                let lies = matches!(fault, Some((_, Fault::Lie, _)));
                knowledge.join(&mut self.in_store, done && !lies);
            }
            FleetStep::ExchangeDuring(of, by) => {
                if of != by {
                    let mut by_done = false;
                    let (memory, other) = (&self.processes[of].0, &self.processes[by].0);
                    let during = &mut |_: &Memory| {
                        if !std::mem::replace(&mut by_done, true) {
                            other.exchange(&self.store, Path::new(NAME), &mut |_| Ok(None))?;
                        }
                        Ok(None)
                    };
                    memory.exchange(&self.store, Path::new(NAME), during).unwrap();
                    // If it had nothing to write, it knows only what was there before.
                    let mut before = self.in_store.clone();
                    self.processes[by].1.join(&mut self.in_store, true);
                    let knowledge = &mut self.processes[of].1;
                    knowledge.join(&mut before, true);
                    knowledge.clone().join(&mut self.in_store, true);
                    knowledge.maybe.extend(&self.in_store.maybe);
                }
            }
            FleetStep::Kill(of) => self.processes[of] = (memory(), Knowledge::default()),
            FleetStep::ForgetInStore(tenant) => {
                self.processes.push((memory(), Knowledge::default()));
                let of = self.processes.len() - 1;
                assert!(self.exchange(of));
                self.take(FleetStep::Forget(of, tenant));
                assert!(self.exchange(of));
                let (memory, _) = self.processes.remove(of);
                assert!(memory.texts(&name(tenant)).is_empty());
                let one = self.deletions.len() - 1;
                assert_eq!(
                    self.in_bucket(|text| text.tenant == tenant && !text.maybe.contains(&one)),
                    0
                );
            }
            FleetStep::Copy => {
                self.copy = (self.store.bucket.borrow().clone(), self.in_store.clone());
            }
            FleetStep::Restore => {
                self.store.bucket.replace(self.copy.0.clone());
                self.in_store = self.copy.1.clone();
            }
        }
    }

    /// Returns how many texts the objects of the store have.
    fn in_bucket(&self, is_counted: impl Fn(&FleetText) -> bool) -> usize {
        let bucket = self.store.bucket.borrow();
        let holds = |tokens: &[u32]| {
            let three = |token: &u32| token.to_le_bytes()[..3].to_vec();
            let part: Vec<_> = tokens.iter().flat_map(three).collect();
            let has_it = |object: &Vec<u8>| object.windows(part.len()).any(|at| at == part);
            bucket.objects.values().any(has_it)
        };
        let counted = self.texts.iter().filter(|text| is_counted(text));
        counted.filter(|text| holds(&text.tokens)).count()
    }

    /// Runs the steps, then exchanges until all know everything, and compares.
    fn live(mut self, steps: Vec<FleetStep>) {
        for step in steps {
            self.take(step);
        }
        for of in [0, 1, 2, 0, 1, 2] {
            assert!(self.exchange(of));
        }
        // The next deletion also removes what killed processes left.
        self.processes[0].0.forget("nobody");
        assert!(self.exchange(0));
        let (known, kept) = (self.in_store.sure.clone(), self.in_store.texts.clone());
        for (number, text) in self.texts.iter().enumerate() {
            let is_about = |&one: &usize| self.deletions[one].is_none_or(|it| it == text.tenant);
            let is_deleted =
                known.iter().filter(|one| is_about(one)).any(|one| !text.maybe.contains(one));
            let all = 0..self.deletions.len();
            let is_living = all.filter(is_about).all(|one| text.sure.contains(&one));
            for (memory, _) in &self.processes {
                let is_there = memory.texts(&name(text.tenant)).contains(&text.tokens);
                assert!(!(is_deleted && is_there), "text {number} has come back");
                assert!(
                    is_there || !(is_living && kept.contains(&number)),
                    "text {number} is lost"
                );
            }
            let is_there = self.in_bucket(|other| other.tokens == text.tokens) > 0;
            assert!(!(is_deleted && is_there), "text {number} is still in the store");
        }
    }
}

fn num_histories() -> u32 {
    let asked = std::env::var("WORLDS").ok();
    asked.map_or(200, |number| number.parse().expect("a number of histories"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(num_histories()))]

    #[test]
    fn deleted_tenants_stay_deleted_and_confirmed_texts_are_kept(steps in steps()) {
        Fleet::new().live(steps);
    }
}
