//! The laws of deletion, for random sequences of events.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{NUM_FILES, NUM_PROCESSES, OWNER, Process, SharedFiles, SharingStep, holds, name};
use crate::drafted;
use crate::files::read_all;

fn steps(num_tenants: usize) -> impl Strategy<Value = Vec<SharingStep>> {
    let of = 0..NUM_PROCESSES;
    let both = (of.clone(), 0..num_tenants);
    let (file, any_file) = (0..NUM_FILES - 1, 0..NUM_FILES);
    let tenant_file = || (0..num_tenants, 0..NUM_FILES - 1);
    vec(
        prop_oneof![
            8 => both.clone().prop_map(|(of, tenant)| SharingStep::Begin(of, tenant)),
            8 => of.clone().prop_map(SharingStep::End),
            4 => both.prop_map(|(of, tenant)| SharingStep::Forget(of, tenant)),
            1 => of.clone().prop_map(SharingStep::Clear),
            10 => (of.clone(), file.clone()).prop_map(|(of, file)| SharingStep::Exchange(of, file)),
            2 => (of, any::<bool>()).prop_map(|(of, reads)| SharingStep::Kill(of, reads)),
            3 => tenant_file().prop_map(|(tenant, file)| SharingStep::ForgetInFile(tenant, file)),
            2 => tenant_file().prop_map(|(tenant, file)| SharingStep::BeginMove(tenant, file)),
            1 => Just(SharingStep::KillMove),
            2 => Just(SharingStep::EndMove),
            2 => (any_file.clone(), any_file).prop_map(|(from, to)| SharingStep::Copy(from, to)),
            1 => file.prop_map(SharingStep::Own),
        ],
        0..40,
    )
}

/// Steps on one file that never delete tenant 0.
fn steps_with_strangers() -> impl Strategy<Value = Vec<SharingStep>> {
    let of = 0..NUM_PROCESSES;
    vec(
        prop_oneof![
            6 => (of.clone(), 0_usize..3).prop_map(|(of, one)| SharingStep::Begin(of, one)),
            6 => of.clone().prop_map(SharingStep::End),
            3 => (of.clone(), 1_usize..3).prop_map(|(of, one)| SharingStep::Forget(of, one)),
            3 => of.clone().prop_map(SharingStep::ForgetStrangers),
            8 => of.clone().prop_map(|of| SharingStep::Exchange(of, 0)),
            1 => (of, any::<bool>()).prop_map(|(of, reads)| SharingStep::Kill(of, reads)),
            2 => (1_usize..3).prop_map(|tenant| SharingStep::ForgetInFile(tenant, 0)),
        ],
        0..40,
    )
}

impl SharedFiles {
    /// Tenant 0 has all its texts.
    fn check_first(&self, process: &Process) {
        let kept = process.memory.texts(&name(0));
        let is_kept =
            |&text: &usize| self.texts[text].tenant != 0 || kept.contains(&self.texts[text].tokens);
        assert!(process.place.texts.iter().all(is_kept));
    }

    fn check(&self, process: &Process) {
        let memory = &process.memory;
        assert!(memory.num_bytes() <= memory.max_bytes());
        for tenant in 0..self.num_tenants {
            let kept: BTreeSet<_> = memory.texts(&name(tenant)).into_iter().collect();
            let is_of = |text: &&usize| self.texts[**text].tenant == tenant;
            let of_tenant = process.place.texts.iter().filter(is_of);
            let tokens = of_tenant.map(|&text| self.texts[text].tokens.clone());
            let expected: BTreeSet<_> = tokens.collect();
            assert_eq!(kept, expected);
        }
        for (number, text) in self.texts.iter().enumerate() {
            // The adapted weights still depend on a text that was moved.
            if !process.place.texts.contains(&number) && !self.moved.contains(&number) {
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

    fn check_file(&self, file: usize) {
        if !self.path(file).exists() {
            return;
        }
        #[cfg(unix)]
        if self.is_owned[file] {
            use std::os::unix::fs::MetadataExt;
            let found = |path: &Path| {
                let found = fs::metadata(path).unwrap();
                (found.uid(), found.gid(), found.mode() & 0o777)
            };
            assert_eq!(found(&self.path(file)), OWNER);
        }
        let place = &self.files[file];
        let bytes = read_all(&self.path(file)).into_values().collect::<Vec<_>>().concat();
        for (number, text) in self.texts.iter().enumerate() {
            let three = |token: &u32| token.to_le_bytes()[..3].to_vec();
            let part: Vec<_> = text.tokens[4..7].iter().flat_map(three).collect();
            let is_there = holds(&bytes, &part);
            assert_eq!(place.texts.contains(&number), is_there, "text {number}");
        }
        for tenant in 0..self.num_tenants {
            let is_of = |text: usize| self.texts[text].tenant == tenant;
            let is_about = |&one: &usize| self.is_about(one, tenant);
            let lives = place.texts.union(&self.moved).copied().any(is_of);
            let is_forgotten = place.forgettings.iter().any(is_about);
            let mut open = self.processes.iter().filter_map(Process::open_text);
            let is_named = holds(&bytes, name(tenant).as_bytes());
            assert!(lives || !is_forgotten || !is_named || open.any(is_of));
        }
        self.check(&self.process_of(Some(file)));
    }

    /// Runs the steps and checks each exchange.
    fn live(mut self, steps: Vec<SharingStep>) {
        for step in steps {
            self.take(step);
            if let SharingStep::Exchange(of, file) = step {
                self.check(&self.processes[of]);
                self.check_file(file);
            }
        }
        self.take(SharingStep::EndMove);
        for of in [0, 1, 2, 0, 1, 2] {
            self.take(SharingStep::Exchange(of, 0));
        }
        for process in &self.processes {
            assert_eq!(process.place.texts, self.files[0].texts);
            self.check(process);
        }
        for file in 0..NUM_FILES {
            self.check_file(file);
        }
    }

    fn live_with_strangers(mut self, steps: Vec<SharingStep>) {
        for step in steps.into_iter().chain([0, 1, 2, 0].map(|of| SharingStep::Exchange(of, 0))) {
            self.take(step);
            if let SharingStep::Exchange(of, file) = step {
                self.check_first(&self.processes[of]);
                self.check_first(&self.process_of(Some(file)));
            }
        }
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
        SharedFiles::new(1 << 22, 3).live(steps);
    }

    #[test]
    fn pruned_tombstones_delete_no_text_of_other_tenants(steps in steps_with_strangers()) {
        SharedFiles::new(1 << 20, 3).live_with_strangers(steps);
    }
}
