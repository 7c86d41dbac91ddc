//! The cache of packed weights: a file that is mapped, so that processes share its memory.
//!
//! ```text
//! file := header packed checksum:u64*     a checksum for each chunk that is packed at once
//! ```
//!
//! A file is written under another name, locked by its writer, and renamed when it is complete. Nothing in it is
//! trusted for memory safety: all lengths come from the source, and any bytes are weights.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use memmap2::Mmap;
use xxhash_rust::xxh3::xxh3_64;

use super::packing::{LoadOptions, PackedCache, PackingPlan, each};
use crate::error::{Error, Result};
use crate::gguf::file::{Gguf, SourceFile};
use crate::simd::instructions::Instructions;

/// The number of unfinished files that this process has begun.
static NUMBER: AtomicU64 = AtomicU64::new(0);
/// The first bytes of a file.
const MAGIC: [u8; 8] = *b"SPCDSPKD";
/// The version of the layout of packed bytes and of this file.
const VERSION: u32 = 1;
/// The bytes of the header, a page of memory.
const HEADER_BYTES: usize = 4096;
/// The bytes of the identity of the weights in the header.
const IDENTITY: std::ops::Range<usize> = 0..56;
/// The bytes of the identity of the start of the system.
const BOOT: std::ops::Range<usize> = 56..92;
/// The bytes of the path of the source.
const PATH: std::ops::Range<usize> = 96..HEADER_BYTES;
/// The extension of the name of a whole file.
const EXTENSION: &str = "packed";
/// A source that was changed so shortly before may be changed again without a later time.
const SETTLED: Duration = Duration::from_secs(2);
/// The time that a process waits for another one that packs the same file and makes no progress.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time between two looks at what it has written.
const POLLED: Duration = Duration::from_millis(20);

/// Packs all matrices into the cache if they are not there, or into memory if it cannot hold them.
///
/// Returns the number of their bytes, and whether the cache holds them.
///
/// # Errors
/// [`Error::Stopped`](crate::Error::Stopped) and [`Error::OutOfMemory`].
pub(super) fn stored(
    plan: &PackingPlan,
    isa: Instructions,
    file: &Gguf,
    options: LoadOptions<'_>,
) -> Result<(usize, bool)> {
    if let Some(watch) = options.watch {
        watch.expect(plan.num_bytes);
    }
    let release = |bytes: &[u8]| file.release(bytes);
    let map = cached(plan, isa, file, options, &release)?;
    match &map {
        Some(map) => plan.settle(map, HEADER_BYTES),
        None => plan.in_memory(isa, options, &release)?,
    }
    Ok((plan.num_bytes, map.is_some()))
}

/// Returns the file of the cache, written if it is not there, or `None` if the cache cannot hold it.
///
/// # Errors
/// [`Error::Stopped`](crate::Error::Stopped) alone.
fn cached(
    plan: &PackingPlan,
    isa: Instructions,
    file: &Gguf,
    options: LoadOptions<'_>,
    release: &(dyn Fn(&[u8]) + Sync),
) -> Result<Option<Arc<Mmap>>> {
    let source = options.cache.and_then(|_| file.source());
    let (Some(PackedCache { folder, max_bytes }), Some(source)) = (options.cache, source) else {
        return Ok(None);
    };
    let age = SystemTime::now().duration_since(source.modified);
    if plan.num_bytes == 0 || age.is_ok_and(|age| age < SETTLED) {
        return Ok(None);
    }
    let name = format!(
        "weights-{:016x}-{}",
        xxh3_64(source.path.as_os_str().as_encoded_bytes()),
        isa.lanes()
    );
    let store = Store {
        folder,
        path: folder.join(format!("{name}.{EXTENSION}")),
        name,
        header: header(plan, isa, &source),
        checksums: HEADER_BYTES + plan.num_bytes,
        num_bytes: HEADER_BYTES + plan.num_bytes + 8 * plan.num_chunks(),
    };
    let mut waited = (0, Instant::now());
    loop {
        if let Ok(map) = store.open(plan, options) {
            return Ok(Some(Arc::new(map)));
        }
        if let Some(watch) = options.watch {
            watch.advance(0)?;
        }
        match store.begin(max_bytes) {
            Err(_) => return Ok(None),
            Ok(Begun::Unfinished(mut unfinished)) => {
                return match store.write(&mut unfinished, plan, isa, options, release) {
                    Err(Error::Stopped) => Err(Error::Stopped),
                    written => Ok(written.ok().map(Arc::new)),
                };
            }
            Ok(Begun::ByOther(length)) => {
                if length != waited.0 {
                    waited = (length, Instant::now());
                }
                if waited.1.elapsed() > PATIENCE {
                    return Ok(None);
                }
                thread::sleep(POLLED);
            }
        }
    }
}

/// The file of the weights of a source.
struct Store<'a> {
    /// The folder of the cache.
    folder: &'a Path,
    /// The path of the file.
    path: PathBuf,
    /// The name of the file without its extension, which unfinished ones begin with.
    name: String,
    /// The bytes of the header.
    header: Vec<u8>,
    /// The index of the first byte of the checksums.
    checksums: usize,
    /// The bytes of the file.
    num_bytes: usize,
}

/// The start of a file that is not there.
enum Begun {
    /// This process writes it.
    Unfinished(Unfinished),
    /// Another process writes it, and has written this many bytes.
    ByOther(u64),
}

/// A locked file, which is removed unless it is renamed.
struct Unfinished {
    /// The open file.
    file: File,
    /// The name under which it is removed.
    path: PathBuf,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // it was renamed, or the next process removes it
    }
}

impl Store<'_> {
    /// Maps the file if it is whole and was made from the same source.
    fn open(&self, plan: &PackingPlan, options: LoadOptions<'_>) -> io::Result<Mmap> {
        let mut file = File::open(&self.path)?;
        let found = file.metadata()?;
        let mut header = vec![0; HEADER_BYTES];
        let is_whole = found.is_file() && found.len() == self.num_bytes as u64;
        if !is_whole {
            return Err(io::ErrorKind::InvalidData.into());
        }
        file.read_exact(&mut header)?;
        if header[IDENTITY] != self.header[IDENTITY] {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let map = map(&file)?;
        // Since the system began, it has kept what was written. A loss of power may have left holes.
        let boot = &self.header[BOOT];
        if header[BOOT] != *boot || boot.iter().all(|&byte| byte == 0) {
            self.check(plan, &map, options)?;
            if let Ok(mut file) = OpenOptions::new().write(true).open(&self.path) {
                let _ = file
                    .seek(SeekFrom::Start(BOOT.start as u64))
                    .and_then(|_| file.write_all(boot));
            }
        }
        let _ = file.set_modified(SystemTime::now()); // the least recently used are removed first
        Ok(map)
    }

    /// Compares the checksums of all chunks.
    fn check(&self, plan: &PackingPlan, map: &Mmap, options: LoadOptions<'_>) -> io::Result<()> {
        let checksums = map[self.checksums..].as_chunks().0;
        let mut number = 0..;
        let chunks = plan.chunks(|bytes| (bytes, number.next().unwrap_or(0)));
        let options = LoadOptions { watch: None, ..options };
        let checked = each(chunks, options, &|_| (), |chunk| {
            let (bytes, number) = chunk.to;
            let bytes = &map[HEADER_BYTES + bytes.start..HEADER_BYTES + bytes.end];
            let is_as_written = xxh3_64(bytes).to_le_bytes() == checksums[number];
            if is_as_written { Ok(()) } else { Err(Error::invalid("cache", "is damaged")) }
        });
        checked.map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Creates an unfinished file, unless another process writes one, after it has made room for it.
    fn begin(&self, max_bytes: u64) -> io::Result<Begun> {
        if let Some(length) = self.others()? {
            return Ok(Begun::ByOther(length));
        }
        self.make_room(max_bytes)?;
        let number = RandomState::new().hash_one(NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = self.folder.join(format!(".{}.{number:016x}.tmp", self.name));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        let unfinished = Unfinished { file, path };
        unfinished.file.try_lock()?;
        Ok(Begun::Unfinished(unfinished))
    }

    /// Removes files that no process writes any longer; returns the length of one that another process writes in
    /// place of this one.
    fn others(&self) -> io::Result<Option<u64>> {
        let mut found = None;
        for entry in fs::read_dir(self.folder)? {
            let path = entry?.path();
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
            let is_unfinished = path.extension().is_some_and(|extension| extension == "tmp");
            let Some(name) = name.filter(|name| is_unfinished && name.starts_with(".weights-"))
            else {
                continue;
            };
            let Ok(file) = File::open(&path) else { continue };
            if file.try_lock().is_ok() {
                let _ = fs::remove_file(&path); // another process has done it
            } else if name[1..].starts_with(&self.name) {
                found = Some(file.metadata()?.len());
            }
        }
        Ok(found)
    }

    /// Removes the least recently used files until this one fits in.
    fn make_room(&self, max_bytes: u64) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(self.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION) && path != self.path
            {
                let found = path.metadata()?;
                files.push((found.modified()?, found.len(), path));
            }
        }
        files.sort();
        let mut total = self.num_bytes as u64;
        if total > max_bytes {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        total += files.iter().map(|file| file.1).sum::<u64>();
        for (_, length, path) in files {
            if total <= max_bytes {
                break;
            }
            fs::remove_file(path)?;
            total -= length;
        }
        Ok(())
    }

    /// Packs all weights into a file, renames it and maps it.
    fn write(
        &self,
        unfinished: &mut Unfinished,
        plan: &PackingPlan,
        isa: Instructions,
        options: LoadOptions<'_>,
        release: &(dyn Fn(&[u8]) + Sync),
    ) -> Result<Mmap> {
        let path = &unfinished.path;
        let failed = |source| Error::Io { path: path.clone(), source };
        // The header is written last.
        unfinished.file.set_len(HEADER_BYTES as u64).map_err(failed)?;
        let mut number = 0..;
        let chunks = plan.chunks(|bytes| (bytes.start, number.next().unwrap_or(0)));
        let checksums = Mutex::new(vec![[0; 8]; plan.num_chunks()]);
        each(chunks, options, release, |chunk| {
            let (start, number): (usize, usize) = chunk.to;
            let mut bytes = vec![0; chunk.bytes];
            chunk.pack(isa, &mut bytes);
            let checksum = xxh3_64(&bytes).to_le_bytes();
            checksums.lock().unwrap_or_else(PoisonError::into_inner)[number] = checksum;
            // Each handle has a position of its own.
            let mut file = OpenOptions::new().write(true).open(path).map_err(failed)?;
            let start = SeekFrom::Start((HEADER_BYTES + start) as u64);
            file.seek(start).and_then(|_| file.write_all(&bytes)).map_err(failed)
        })?;
        let checksums = checksums.into_inner().unwrap_or_else(PoisonError::into_inner);
        let file = &mut unfinished.file;
        let mut put = |start: usize, bytes: &[u8]| {
            file.seek(SeekFrom::Start(start as u64)).and_then(|_| file.write_all(bytes))
        };
        put(self.checksums, checksums.as_flattened()).map_err(failed)?;
        put(0, &self.header).map_err(failed)?;
        fs::rename(path, &self.path).map_err(failed)?;
        map(file).map_err(failed)
    }
}

/// Maps a whole file.
fn map(file: &File) -> io::Result<Mmap> {
    #[expect(unsafe_code, reason = "processes share the weights")]
    // SAFETY: the map is read-only, and its bytes are numbers, valid whatever they are. The file is in a folder that
    // this user alone can write; one that is cut while it is open ends the process, as with the map of the source.
    unsafe {
        Mmap::map(file)
    }
}

/// Identity of the weights, start of the system, and path of the source.
fn header(plan: &PackingPlan, isa: Instructions, source: &SourceFile) -> Vec<u8> {
    let modified = source.modified.duration_since(SystemTime::UNIX_EPOCH);
    let modified = modified.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(0));
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend(u32::try_from(isa.lanes()).unwrap_or(0).to_le_bytes());
    for number in
        [source.num_bytes, modified, source.checksum, plan.num_bytes as u64, plan.checksum()]
    {
        header.extend(number.to_le_bytes());
    }
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    header.extend(boot.iter().take(BOOT.len()));
    header.resize(PATH.start, 0);
    let path = source.path.to_string_lossy();
    header.extend(path.bytes().take(PATH.len()));
    header.resize(HEADER_BYTES, 0);
    header
}
