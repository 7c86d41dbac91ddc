//! Deletion of tenants in processes that share files, in any order of events.

mod properties;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use specds_core::draft::Session;
use specds_core::fused::{FusedConfig, FusedDrafter, FusedSession};
use specds_core::memory::{Memory, MemoryOptions, Transfer};
use specds_index::{Datastore, DatastoreOptions};
use tempfile::TempDir;

use crate::{drafted, tempdir};

const VOCAB_SIZE: u32 = 1 << 20;
const NUM_PROCESSES: usize = 3;
const LENGTH: u32 = 12;
/// Processes share two stores; the third is a copy that is put back.
const NUM_FILES: usize = 3;
/// Another user, another group, and permissions for both.
const OWNER: (u32, u32, u32) = (65_534, 65_533, 0o750);

#[derive(Debug, Clone, Copy)]
enum SharingStep {
    /// A request of a tenant begins.
    Begin(usize, usize),
    /// The request ends, and its text is stored.
    End(usize),
    Forget(usize, usize),
    Clear(usize),
    /// More names than there are tombstones are deleted, none of which ever had data.
    ForgetStrangers(usize),
    /// The process exchanges with the store, as `share` does.
    Exchange(usize, usize),
    /// The process restarts, with the file or an empty memory.
    Kill(usize, bool),
    /// The command `specds memory forget`.
    ForgetInFile(usize, usize),
    /// The command `specds add --from-memory` begins, is killed, and ends.
    BeginMove(usize, usize),
    KillMove,
    EndMove,
    /// A store is replaced by a copy of another.
    Copy(usize, usize),
    /// Another user owns the store, if the test runs as root.
    Own(usize),
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

/// Returns whether a file has the path of a datastore that texts move to.
fn is_note(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "move")
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|at| at == part)
}

struct TenantText {
    tenant: usize,
    tokens: Vec<u32>,
    known: BTreeSet<usize>,
}

struct Move {
    transfer: Transfer,
    tenant: usize,
    file: usize,
    place: Place,
}

struct SharedFiles {
    folder: TempDir,
    max_bytes: usize,
    num_tenants: usize,
    processes: Vec<Process>,
    files: [Place; NUM_FILES],
    is_owned: [bool; NUM_FILES],
    moving: Option<Move>,
    /// Texts in the datastore.
    moved: BTreeSet<usize>,
    texts: Vec<TenantText>,
    /// The tenant of each deletion, or `None` for all tenants.
    forgettings: Vec<Option<usize>>,
}

fn name(tenant: usize) -> String {
    format!("the tenant {tenant:02}")
}

impl SharedFiles {
    fn new(max_bytes: usize, num_tenants: usize) -> Self {
        let mut world = Self {
            folder: tempdir().unwrap(),
            max_bytes,
            num_tenants,
            processes: Vec::new(),
            files: Default::default(),
            is_owned: Default::default(),
            moving: None,
            moved: BTreeSet::new(),
            texts: Vec::new(),
            forgettings: Vec::new(),
        };
        #[cfg(unix)]
        for file in 0..NUM_FILES {
            std::os::unix::fs::symlink(world.path(file), world.link(file)).unwrap();
        }
        let processes = (0..NUM_PROCESSES).map(|_| world.process(false));
        world.processes = processes.collect();
        world
    }

    fn path(&self, file: usize) -> PathBuf {
        self.folder.path().join(format!("memory {file}"))
    }

    fn link(&self, file: usize) -> PathBuf {
        self.folder.path().join(format!("link {file}"))
    }

    /// The name by which a process knows the file.
    fn path_of(&self, of: usize, file: usize) -> PathBuf {
        if cfg!(unix) && of == 1 { self.link(file) } else { self.path(file) }
    }

    fn datastore(&self) -> PathBuf {
        self.folder.path().join("d.specds")
    }

    fn staging(&self) -> PathBuf {
        self.folder.path().join(".d.specds.build")
    }

    fn options(&self) -> MemoryOptions {
        let max_bytes = self.max_bytes;
        MemoryOptions { max_bytes, ..MemoryOptions::new(VOCAB_SIZE) }
    }

    fn process(&self, reads: bool) -> Process {
        self.process_of(reads.then_some(0))
    }

    /// A process that has read a file, if there is one.
    fn process_of(&self, file: Option<usize>) -> Process {
        let file = file.filter(|&file| self.path(file).exists());
        let (memory, place) = if let Some(file) = file {
            (Memory::open(self.path(file), self.options()), self.files[file].clone())
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

    fn is_about(&self, forgetting: usize, tenant: usize) -> bool {
        self.forgettings[forgetting].is_none_or(|of| of == tenant)
    }

    /// Removes the texts that a known deletion applies to.
    fn living(&self, mut place: Place) -> Place {
        place.texts.retain(|&text| {
            let text = &self.texts[text];
            let mut news = place.forgettings.difference(&text.known);
            !news.any(|&one| self.is_about(one, text.tenant))
        });
        place
    }

    fn take(&mut self, step: SharingStep) {
        match step {
            SharingStep::Begin(of, tenant) => {
                let number = self.texts.len();
                // The tokens are in no other text, and their bytes in no count.
                let first = 0x5_0000 + 0x80 * u32::try_from(number).unwrap() + 0x50;
                let tokens: Vec<_> = (first..first + LENGTH).collect();
                let session = Self::session(&self.processes[of], tenant, &tokens[..2]);
                let known = self.processes[of].place.forgettings.clone();
                self.texts.push(TenantText { tenant, tokens, known });
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
            SharingStep::ForgetStrangers(of) => {
                let memory = &self.processes[of].memory;
                let num_tombstones = memory.max_bytes() / 16 / 64;
                for number in 0..=num_tombstones {
                    memory.forget(&format!("stranger {number}"));
                }
            }
            SharingStep::Exchange(of, file) => {
                self.processes[of].memory.save(self.path_of(of, file), None).unwrap();
                let place = self.met(&self.processes[of].place, file);
                (self.files[file], self.processes[of].place) = (place.clone(), place);
            }
            SharingStep::Kill(of, reads) => self.processes[of] = self.process(reads),
            SharingStep::ForgetInFile(tenant, file) => self.forget_in_file(tenant, file),
            SharingStep::BeginMove(tenant, file) => self.begin_move(tenant, file),
            SharingStep::KillMove => self.kill_move(),
            SharingStep::EndMove => self.end_move(),
            SharingStep::Copy(from, to) => {
                if from != to && self.path(from).exists() {
                    let _ = fs::remove_dir_all(self.path(to));
                    fs::create_dir(self.path(to)).unwrap();
                    copy_all(&self.path(from), &self.path(to), &|_| true);
                    self.files[to] = self.files[from].clone();
                    self.is_owned[to] = false;
                }
            }
            SharingStep::Own(file) => self.own(file),
        }
    }

    fn own(&mut self, file: usize) {
        #[cfg(unix)]
        if self.path(file).exists() {
            use std::os::unix::fs::{PermissionsExt, chown};
            let (user, group, mode) = OWNER;
            self.is_owned[file] = chown(self.path(file), Some(user), Some(group)).is_ok();
            if self.is_owned[file] {
                fs::set_permissions(self.path(file), PermissionsExt::from_mode(mode)).unwrap();
            }
        }
    }

    fn forget_in_file(&mut self, tenant: usize, file: usize) {
        let path = self.path_of(tenant, file);
        let found = Memory::forget_in(&path, &[&name(tenant)]);
        assert_eq!(found.is_ok(), path.exists());
        if path.exists() {
            let one = self.forgets(Some(tenant));
            self.files[file].forgettings.insert(one);
            self.files[file] = self.living(self.files[file].clone());
            let note = format!(".memory {file}.");
            let names = fs::read_dir(self.folder.path()).unwrap();
            let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let is_noted = names.any(|name| name.starts_with(&note) && is_note(&name));
            assert!(!is_noted || self.moving.is_some(), "texts of a move that was killed");
        }
    }

    fn begin_move(&mut self, tenant: usize, file: usize) {
        if self.path(file).exists() && self.moving.is_none() {
            let (path, place) = (self.path_of(tenant, file), self.files[file].clone());
            let options = DatastoreOptions::new(VOCAB_SIZE, VOCAB_SIZE);
            let transfer = Transfer::begin(path, &name(tenant), self.datastore(), options);
            self.moving = Some(Move { transfer: transfer.unwrap(), tenant, file, place });
        }
    }

    /// Restores the files of the move, without its lock.
    fn kill_move(&mut self) {
        let Some(moving) = self.moving.take() else { return };
        let kept = tempdir().unwrap();
        let is_kept = |name: &str| name.starts_with(".d.specds") || is_note(name);
        copy_all(self.folder.path(), kept.path(), &is_kept);
        drop(moving);
        copy_all(kept.path(), self.folder.path(), &is_kept);
    }

    fn end_move(&mut self) {
        let Some(Move { transfer, tenant, file, place }) = self.moving.take() else { return };
        let is_of = |&text: &usize| self.texts[text].tenant == tenant;
        let texts: Vec<_> = place.texts.iter().copied().filter(is_of).collect();
        let mut news = self.files[file].forgettings.difference(&place.forgettings);
        let is_deleted = news.any(|&one| self.is_about(one, tenant));
        let finished = transfer.finish(&mut |_, _, _| Ok(()));
        assert_eq!(finished.is_err(), is_deleted && !texts.is_empty(), "{finished:?}");
        assert!(texts.is_empty() || !self.staging().exists());
        if finished.is_ok() && !texts.is_empty() {
            self.moved.extend(texts);
            self.files[file] = self.met(&place, file);
            self.files[file].texts.retain(|text| !self.moved.contains(text));
        }
        if let Ok(datastore) = Datastore::open(self.datastore()) {
            for (number, text) in self.texts.iter().enumerate() {
                let is_there = datastore.find(&text.tokens).unwrap().count() > 0;
                assert_eq!(is_there, self.moved.contains(&number));
            }
        }
    }

    fn forgotten_by(&mut self, of: usize, tenant: Option<usize>) {
        let one = self.forgets(tenant);
        self.processes[of].place.forgettings.insert(one);
        self.processes[of].place = self.living(self.processes[of].place.clone());
    }

    /// Merges a place with the deletions and the texts of a store.
    fn met(&self, place: &Place, file: usize) -> Place {
        let mut both = place.clone();
        both.forgettings.extend(&self.files[file].forgettings);
        both.texts.extend(&self.files[file].texts);
        self.living(both)
    }
}

/// Copies files and folders with such names.
fn copy_all(from: &Path, to: &Path, is_copied: &dyn Fn(&str) -> bool) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if !is_copied(&entry.file_name().to_string_lossy()) {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir_all(&to).unwrap();
            copy_all(&entry.path(), &to, &|_| true);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}
