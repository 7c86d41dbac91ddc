//! Deletions and texts in processes that share a store, or one of each tenant, which fails and lies, in any order of
//! events.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use specds_core::Result;
use specds_core::memory::{FoundHead, Memory, MemoryOptions, ObjectStore};
use specds_index::Error;

use crate::usefulness::answer;

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
    /// The head of each store, by its name.
    heads: BTreeMap<String, (Vec<u8>, u64)>,
    /// The objects, by the names of their stores.
    objects: BTreeMap<(String, String), Vec<u8>>,
}

/// Stores in memory.
#[derive(Default)]
struct FaultyBucket {
    bucket: RefCell<Bucket>,
    /// The stores and the heads of all times.
    heads: RefCell<Vec<(String, Vec<u8>)>>,
    num_calls: RefCell<usize>,
    fault: RefCell<Option<(usize, Fault, bool)>>,
}

/// A store in the bucket.
struct FaultyStore<'a>(&'a FaultyBucket, String);

impl FaultyBucket {
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

impl ObjectStore for FaultyStore<'_> {
    fn head(&self, known: Option<&str>) -> Result<FoundHead> {
        self.0.call(|bucket, lies| {
            let heads = self.0.heads.borrow();
            let old = heads.iter().zip(0..).find(|((store, _), _)| lies && *store == self.1);
            let old = old.map(|((_, head), version)| (head.clone(), version));
            match old.or_else(|| bucket.heads.get(&self.1).cloned()) {
                None => FoundHead::Missing,
                Some((_, version)) if known == Some(&version.to_string()) => FoundHead::Unchanged,
                Some((head, version)) => FoundHead::Changed(head, version.to_string()),
            }
        })
    }

    fn replace_head(&self, head: &[u8], before: Option<&str>) -> Result<Option<String>> {
        self.0.call(|bucket, _| {
            let found = bucket.heads.get(&self.1).map(|(_, version)| version.to_string());
            if found.as_deref() != before {
                return None;
            }
            let version = self.0.heads.borrow().len() as u64;
            bucket.heads.insert(self.1.clone(), (head.to_vec(), version));
            self.0.heads.borrow_mut().push((self.1.clone(), head.to_vec()));
            Some(version.to_string())
        })
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.0.call(|bucket, lies| {
            let half =
                |object: &Vec<u8>| object[..object.len() / if lies { 2 } else { 1 }].to_vec();
            bucket.objects.get(&self.named(name)).map(half)
        })
    }

    fn put(&self, name: &str, content: &[u8]) -> Result<()> {
        self.0.call(|bucket, _| {
            let before = bucket.objects.insert(self.named(name), content.to_vec());
            assert!(before.is_none(), "an object is written once");
        })
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.0.call(|bucket, _| drop(bucket.objects.remove(&self.named(name))))
    }

    fn list(&self) -> Result<Vec<String>> {
        self.0.call(|bucket, _| {
            let own = bucket.objects.keys().filter(|(store, _)| *store == self.1);
            own.map(|(_, name)| name.clone()).collect()
        })
    }

    fn stores(&self) -> Result<Vec<String>> {
        self.0.call(|bucket, _| {
            bucket.heads.keys().filter(|name| **name != self.1).cloned().collect()
        })
    }

    /// A store that lies for long is tried 256 times.
    fn wait(&self, _: Duration) {}

    fn below(&self, name: &str) -> Result<Box<dyn ObjectStore + '_>> {
        assert!(self.1.is_empty(), "stores of tenants are below the first one");
        Ok(Box::new(FaultyStore(self.0, name.to_owned())))
    }
}

impl FaultyStore<'_> {
    fn named(&self, name: &str) -> (String, String) {
        (self.1.clone(), name.to_owned())
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
    /// Exchanges deletions and texts of some tenants.
    fn join(&mut self, other: &mut Self, is_done: bool, of: &Tenants) {
        let both = |one: &mut BTreeSet<usize>,
                    other: &mut BTreeSet<usize>,
                    of: &BTreeSet<usize>| {
            let joined: Vec<_> = one.union(other).copied().filter(|it| of.contains(it)).collect();
            one.extend(&joined);
            other.extend(&joined);
        };
        both(&mut self.maybe, &mut other.maybe, &of.deletions);
        if is_done {
            both(&mut self.sure, &mut other.sure, &of.deletions);
            both(&mut self.texts, &mut other.texts, &of.texts);
        }
    }
}

/// The deletions and texts of the tenants whose stores are exchanged.
struct Tenants {
    deletions: BTreeSet<usize>,
    texts: BTreeSet<usize>,
}

struct FleetText {
    tenant: usize,
    tokens: Vec<u32>,
    sure: BTreeSet<usize>,
    maybe: BTreeSet<usize>,
}

struct Fleet {
    /// True if each tenant has a store.
    is_divided: bool,
    store: FaultyBucket,
    processes: Vec<(Arc<Memory>, Knowledge)>,
    in_store: Knowledge,
    copy: (Bucket, Knowledge),
    texts: Vec<FleetText>,
    /// The tenant of each deletion, or `None` for all tenants.
    deletions: Vec<Option<usize>>,
}

fn name(tenant: usize) -> String {
    format!("tenant {tenant}")
}

fn memory() -> Arc<Memory> {
    let options = MemoryOptions { max_bytes: 1 << 22, ..MemoryOptions::new(1 << 20) };
    Arc::new(Memory::new(options).unwrap())
}

impl Fleet {
    fn new(is_divided: bool) -> Self {
        Self {
            is_divided,
            store: FaultyBucket::default(),
            processes: (0..NUM_PROCESSES).map(|_| (memory(), Knowledge::default())).collect(),
            in_store: Knowledge::default(),
            copy: Default::default(),
            texts: Vec::new(),
            deletions: Vec::new(),
        }
    }

    fn exchange(&mut self, of: usize) -> bool {
        let tenants = self.exchanged_by(of);
        let (memory, knowledge) = &mut self.processes[of];
        let (store, name) = (FaultyStore(&self.store, String::new()), Path::new(NAME));
        let done = if self.is_divided {
            memory.exchange_tenants(&store, name, None)
        } else {
            memory.exchange(&store, name, &mut |_| Ok(None))
        };
        // After a lie, it may not know of the newest head.
        let lies = matches!(*self.store.fault.borrow(), Some((_, Fault::Lie, _)));
        knowledge.join(&mut self.in_store, done.is_ok() && !lies, &tenants);
        done.is_ok()
    }

    /// Returns the tenants that a process has, or has deleted in no store yet.
    fn exchanged_by(&self, of: usize) -> Tenants {
        let (memory, _) = &self.processes[of];
        let is_exchanged = |tenant: usize| {
            !self.is_divided
                || memory.find(&name(tenant)).is_some()
                || memory.deleted_at(&name(tenant)).is_infinite()
        };
        let of_deletion = |deletion: &usize| self.deletions[*deletion].is_none_or(is_exchanged);
        Tenants {
            deletions: (0..self.deletions.len()).filter(of_deletion).collect(),
            texts: (0..self.texts.len())
                .filter(|&text| is_exchanged(self.texts[text].tenant))
                .collect(),
        }
    }

    /// Removes what killed processes left of tenants' stores.
    fn remove_unused(&self) {
        let stores = FaultyStore(&self.store, String::new()).stores().unwrap();
        for store in stores {
            let one = memory();
            let bucket = FaultyStore(&self.store, store);
            let exchange = |one: &Memory| one.exchange(&bucket, Path::new(NAME), &mut |_| Ok(None));
            exchange(&one).unwrap();
            one.forget("nobody");
            exchange(&one).unwrap();
        }
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
                // A second request notes that drafts from the text were accepted.
                assert!(answer(memory, &name(tenant), &tokens, 4, true) > 0);
                knowledge.texts.insert(self.texts.len());
                let (sure, maybe) = (knowledge.sure.clone(), knowledge.maybe.clone());
                self.texts.push(FleetText { tenant, tokens, sure, maybe });
            }
            FleetStep::Forget(of, tenant) => {
                self.processes[of].0.forget(&name(tenant));
                self.deleted_by(of, Some(tenant));
            }
            FleetStep::Clear(of) if self.is_divided => {
                (0..NUM_TENANTS).for_each(|tenant| self.take(FleetStep::Forget(of, tenant)));
            }
            FleetStep::Clear(of) => {
                self.processes[of].0.clear();
                self.deleted_by(of, None);
            }
            FleetStep::Exchange(of, fault) => {
                self.store.num_calls.replace(0);
                self.store.fault.replace(fault);
                let done = self.exchange(of);
                self.store.fault.replace(None);
                assert!(done || fault.is_some(), "an exchange without faults");
            }
            FleetStep::ExchangeDuring(of, by) if self.is_divided => {
                assert!(self.exchange(of) && self.exchange(by));
            }
            FleetStep::ExchangeDuring(of, by) => {
                if of != by {
                    let mut by_done = false;
                    let all = self.exchanged_by(of);
                    let store = FaultyStore(&self.store, String::new());
                    let (memory, other) = (&self.processes[of].0, &self.processes[by].0);
                    let during = &mut |_: &Memory| {
                        if !std::mem::replace(&mut by_done, true) {
                            other.exchange(&store, Path::new(NAME), &mut |_| Ok(None))?;
                        }
                        Ok(None)
                    };
                    memory.exchange(&store, Path::new(NAME), during).unwrap();
                    // If it had nothing to write, it knows only what was there before.
                    let mut before = self.in_store.clone();
                    self.processes[by].1.join(&mut self.in_store, true, &all);
                    let knowledge = &mut self.processes[of].1;
                    knowledge.join(&mut before, true, &all);
                    knowledge.clone().join(&mut self.in_store, true, &all);
                    knowledge.maybe.extend(&self.in_store.maybe);
                }
            }
            FleetStep::Kill(of) => self.processes[of] = (memory(), Knowledge::default()),
            FleetStep::ForgetInStore(tenant) => {
                self.processes.push((memory(), Knowledge::default()));
                let of = self.processes.len() - 1;
                self.hold(of, tenant);
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

    /// Begins a request of a tenant, so that the process reads its store.
    fn hold(&self, of: usize, tenant: usize) {
        self.processes[of].0.tenant(&name(tenant)).unwrap();
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
            (0..NUM_TENANTS).for_each(|tenant| self.hold(of, tenant));
            assert!(self.exchange(of));
        }
        // The next deletion also removes what killed processes left.
        if self.is_divided {
            self.remove_unused();
        } else {
            self.processes[0].0.forget("nobody");
            assert!(self.exchange(0));
        }
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
    fn deleted_tenants_stay_deleted_and_confirmed_texts_are_kept(
        steps in steps(),
        is_divided: bool,
    ) {
        Fleet::new(is_divided).live(steps);
    }
}
