//! Packing of all weights when a model is loaded, by threads.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use xxhash_rust::xxh3::xxh3_64;

use super::watch::Watch;
use crate::error::Result;
use crate::gguf::bytes::{Bytes, zeros};
use crate::gguf::file::Tensor;
use crate::kernel::interleave::Interleave;
use crate::kernel::packed::PackedMatrix;
use crate::parallel;
use crate::simd::instructions::Instructions;

/// The bytes that a thread packs at once; they stay in its cache.
const CHUNK_BYTES: usize = 1 << 19;

/// The most threads that pack.
const MAX_THREADS: usize = 256;

/// Options of loading.
#[derive(Clone, Copy, Default)]
pub struct LoadOptions<'a> {
    /// The folder of packed weights; `None` for memory of this process.
    pub cache: Option<PackedCache<'a>>,
    /// The number of threads; 0 means one.
    pub num_threads: usize,
    /// Lets another thread see the load, and stop it.
    pub watch: Option<&'a Watch>,
}

/// The folder that packed weights of files are kept in.
#[derive(Debug, Clone, Copy)]
pub struct PackedCache<'a> {
    /// The folder, which no other user can write.
    pub folder: &'a Path,
    /// The most bytes of all its files; the least recently used ones are removed first.
    pub max_bytes: u64,
}

/// All matrices of a model, whose packed bytes lie side by side in the order of a pass.
///
/// A pass in this order reads faster: pages are few, and what is fetched ahead of the end of a matrix is the next.
#[derive(Debug, Default)]
pub(crate) struct PackingPlan {
    /// The matrices in the order of their bytes.
    matrices: Vec<Matrix>,
    /// The packed bytes of all matrices.
    pub(crate) num_bytes: usize,
}

/// Rows of some tensors, one after the other.
#[derive(Debug)]
struct Matrix {
    /// The packed rows.
    packed: PackedMatrix,
    /// The tensors.
    parts: Vec<Tensor>,
    /// The indices of its bytes among those of all matrices.
    bytes: Range<usize>,
}

/// Some groups of a matrix.
pub(super) struct Chunk<'a, T> {
    /// The matrix.
    matrix: &'a Matrix,
    /// The indices of the groups of rows.
    groups: Range<usize>,
    /// The number of packed bytes.
    pub(super) bytes: usize,
    /// The destination of the bytes.
    pub(super) to: T,
}

impl<T> Chunk<'_, T> {
    /// Writes the packed bytes.
    pub(super) fn pack(&self, isa: Instructions, to: &mut [u8]) {
        self.matrix.pack(isa, self.groups.clone(), to);
    }
}

impl PackingPlan {
    /// Adds tensors of one type and of as many columns, as one matrix. Floats stay where they are, one tensor each.
    pub(crate) fn add(&mut self, parts: &[Tensor], lanes: usize) -> Option<PackedMatrix> {
        let first = parts.first()?;
        let rows = parts.iter().map(|part| part.rows).sum();
        let packed = PackedMatrix::new(first.kind, rows, first.columns, lanes);
        if packed.bits == 0 {
            packed.set(first.bytes.clone());
            return (parts.len() == 1).then_some(packed);
        }
        let end = self.num_bytes + packed.num_groups() * packed.group_bytes();
        let bytes = self.num_bytes..end;
        self.num_bytes = end;
        self.matrices.push(Matrix { packed: packed.clone(), parts: parts.to_vec(), bytes });
        Some(packed)
    }

    /// The number of chunks, which are the same for each plan of the same matrices.
    pub(super) fn num_chunks(&self) -> usize {
        self.chunks(|_| ()).count()
    }

    /// A checksum of the types and shapes of all matrices.
    pub(super) fn checksum(&self) -> u64 {
        let shape = |matrix: &Matrix| {
            let PackedMatrix { kind, rows, columns, .. } = matrix.packed;
            [kind.number() as usize, rows, columns].map(|number| (number as u64).to_le_bytes())
        };
        xxh3_64(self.matrices.iter().map(shape).collect::<Vec<_>>().as_flattened().as_flattened())
    }

    /// Packs all matrices into memory.
    ///
    /// `release` is called with bytes of tensors that are not read again, so that no file is in memory twice.
    pub(super) fn in_memory(
        &self,
        isa: Instructions,
        options: LoadOptions<'_>,
        release: &(dyn Fn(&[u8]) + Sync),
    ) -> Result<()> {
        // A map takes as long as the product of a small matrix: there is none without packed rows.
        if self.num_bytes == 0 {
            return Ok(());
        }
        let mut map = zeros(self.num_bytes, "the weights")?;
        let mut remaining: &mut [u8] = &mut map;
        let chunks =
            self.chunks(|bytes| remaining.split_off_mut(..bytes.len()).unwrap_or_default());
        each(chunks, options, release, |chunk| {
            chunk.matrix.pack(isa, chunk.groups.clone(), chunk.to);
            Ok(())
        })?;
        self.settle(&Arc::new(map), 0);
        Ok(())
    }

    /// Assigns the packed bytes, which begin at this byte of a map, to all matrices.
    pub(super) fn settle<T: AsRef<[u8]> + Send + Sync + 'static>(
        &self,
        map: &Arc<T>,
        start: usize,
    ) {
        for Matrix { packed, bytes, .. } in &self.matrices {
            let bytes = Bytes::part(map, start + bytes.start..start + bytes.end);
            packed.set(bytes.expect("a part of the map"));
        }
    }

    /// Divides the groups of all matrices in the order of their bytes; `to` is where they go.
    pub(super) fn chunks<'a, T>(
        &'a self,
        mut to: impl FnMut(Range<usize>) -> T + Send + 'a,
    ) -> impl Iterator<Item = Chunk<'a, T>> + Send + 'a {
        let of_matrix = |matrix: &'a Matrix| {
            let (number, size) = (matrix.packed.num_groups(), matrix.packed.group_bytes());
            let step = (CHUNK_BYTES / size.max(1)).max(1);
            (0..number).step_by(step).map(move |first| (matrix, first..number.min(first + step)))
        };
        self.matrices.iter().flat_map(of_matrix).map(move |(matrix, groups)| {
            let size = matrix.packed.group_bytes();
            let [start, end] =
                [groups.start, groups.end].map(|group| matrix.bytes.start + group * size);
            Chunk { matrix, groups, bytes: end - start, to: to(start..end) }
        })
    }
}

/// Does the work of each chunk by threads, until one fails.
pub(super) fn each<'a, T: Send>(
    chunks: impl Iterator<Item = Chunk<'a, T>> + Send,
    options: LoadOptions<'_>,
    release: &(dyn Fn(&[u8]) + Sync),
    work: impl Fn(Chunk<'a, T>) -> Result<()> + Sync,
) -> Result<()> {
    let (chunks, failed) = (Mutex::new(chunks), Mutex::new(None));
    let is_stopped = AtomicBool::new(false);
    let fail = |error| {
        is_stopped.store(true, Ordering::Relaxed);
        *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    };
    let next = || chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
    parallel::each((0..options.num_threads.clamp(1, MAX_THREADS)).collect(), |_| {
        while !is_stopped.load(Ordering::Relaxed) {
            let Some(chunk) = next() else { break };
            let (matrix, groups, bytes) = (chunk.matrix, chunk.groups.clone(), chunk.bytes);
            if let Err(error) = work(chunk) {
                return fail(error);
            }
            matrix.release(groups, release);
            if let Some(Err(error)) = options.watch.map(|watch| watch.advance(bytes)) {
                return fail(error);
            }
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

impl Matrix {
    /// Writes some groups of rows.
    fn pack(&self, isa: Instructions, groups: Range<usize>, to: &mut [u8]) {
        let lanes = self.packed.lanes;
        let zeros = vec![0; self.row_bytes()];
        let rows = groups.start * lanes..groups.end * lanes;
        let rows: Vec<&[u8]> = rows.map(|row| self.row(row).unwrap_or(&zeros)).collect();
        isa.run(Interleave { matrix: &self.packed, rows: &rows, groups: to });
    }

    /// The bytes of a row, `None` past the last one.
    fn row(&self, mut row: usize) -> Option<&[u8]> {
        for part in &self.parts {
            if row < part.rows {
                return part.bytes.get(row * self.row_bytes()..(row + 1) * self.row_bytes());
            }
            row -= part.rows;
        }
        None
    }

    /// The bytes of a row in the file.
    fn row_bytes(&self) -> usize {
        self.packed.kind.row_bytes(self.packed.columns).unwrap_or(0)
    }

    /// Releases the rows of some groups.
    fn release(&self, groups: Range<usize>, release: &(dyn Fn(&[u8]) + Sync)) {
        let mut before = 0;
        for part in &self.parts {
            let [start, end] = [groups.start, groups.end].map(|group| {
                let row = (group * self.packed.lanes).saturating_sub(before).min(part.rows);
                row * self.row_bytes()
            });
            before += part.rows;
            if start < end {
                release(&part.bytes[start..end]);
            }
        }
    }
}
