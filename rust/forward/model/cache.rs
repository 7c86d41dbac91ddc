//! Keys and values of some sequences, in pages of slots.
//!
//! A committed token lies in the slot of its position. Tokens of a pass take the slots after the committed ones,
//! in their order in the pass, until a path of them is committed and moved to the slots of its positions.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use memmap2::MmapMut;

use super::config::Config;
use super::load::Model;
use crate::error::{Error, Result};
use crate::gguf::bytes::zeros;

/// The slots of a page.
pub(crate) const PAGE: usize = 64;
/// The pages that are mapped at once: in few maps, passes over a thousand tokens take a tenth less time.
const MAPPED: usize = 8;

/// Keys and values of sequences, which are called rows.
#[derive(Debug)]
pub struct Cache {
    pub(crate) rows: Vec<CacheRow>,
    pub(crate) shape: CacheShape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheShape {
    num_layers: usize,
    pub(crate) num_heads: usize,
    pub(crate) head_size: usize,
    /// Slots whose keys lie side by side.
    lanes: usize,
}

#[derive(Debug, Default)]
pub(crate) struct CacheRow {
    /// Committed tokens.
    pub(crate) length: usize,
    /// Tokens of the last pass, none of them committed.
    pub(crate) num_pending: usize,
    /// `(MAPPED, num_layers)` pages each.
    maps: Vec<MmapMut>,
}

/// Some slots of a layer.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a> {
    /// `(num_heads, PAGE / lanes, head_size, lanes)`.
    pub(crate) keys: &'a [f32],
    /// `(num_heads, PAGE, head_size)`.
    pub(crate) values: &'a [f32],
}

impl CacheShape {
    pub(crate) fn of(model: &Model) -> Self {
        let &Config { num_layers, num_kv_heads: num_heads, head_size, .. } = &model.config;
        Self { num_layers, num_heads, head_size, lanes: model.with.lanes() }
    }

    /// The numbers of the keys, or of the values, of a head in a page.
    pub(crate) fn page_size(self) -> usize {
        PAGE * self.head_size
    }

    /// The bytes of a page of all layers.
    fn page_bytes(self) -> usize {
        self.num_layers * 2 * self.num_heads * self.page_size() * size_of::<f32>()
    }

    /// The place of a number of a key in a page.
    fn key(self, head: usize, slot: usize, dimension: usize) -> usize {
        let block = slot % PAGE / self.lanes;
        let of_head = (block * self.head_size + dimension) * self.lanes + slot % self.lanes;
        head * self.page_size() + of_head
    }

    /// The places of the values of a head in the page of a slot.
    pub(crate) fn values(self, head: usize, slot: usize) -> Range<usize> {
        let start = head * self.page_size() + slot % PAGE * self.head_size;
        start..start + self.head_size
    }

    /// The map of a page of a layer, and its place there.
    fn place(self, page: usize, layer: usize) -> (usize, Range<usize>) {
        let size = self.page_bytes() / self.num_layers / size_of::<f32>();
        let place = (page % MAPPED * self.num_layers + layer) * size;
        (page / MAPPED, place..place + size)
    }
}

impl CacheRow {
    fn page(&self, shape: CacheShape, page: usize, layer: usize) -> Page<'_> {
        let (map, place) = shape.place(page, layer);
        let numbers = &cast_slice(&self.maps[map])[place];
        let (keys, values) = numbers.split_at(numbers.len() / 2);
        Page { keys, values }
    }

    /// The pages of the first slots in a layer.
    pub(crate) fn pages(&self, shape: CacheShape, layer: usize, num_slots: usize) -> Vec<Page<'_>> {
        (0..num_slots.div_ceil(PAGE)).map(|page| self.page(shape, page, layer)).collect()
    }

    /// Puts the keys and values of a token, head after head, into a slot.
    pub(crate) fn put(
        &mut self,
        shape: CacheShape,
        layer: usize,
        slot: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let (map, place) = shape.place(slot / PAGE, layer);
        let numbers: &mut [f32] = &mut cast_slice_mut(&mut self.maps[map])[place];
        let (of_keys, of_values) = numbers.split_at_mut(numbers.len() / 2);
        for head in 0..shape.num_heads {
            let of_head = head * shape.head_size..(head + 1) * shape.head_size;
            for (dimension, &number) in keys[of_head.clone()].iter().enumerate() {
                of_keys[shape.key(head, slot, dimension)] = number;
            }
            of_values[shape.values(head, slot)].copy_from_slice(&values[of_head]);
        }
    }

    /// The keys and values of some slots, head after head.
    fn read(&self, shape: CacheShape, layer: usize, slots: Range<usize>) -> [Vec<f32>; 2] {
        let mut read = [Vec::new(), Vec::new()];
        for slot in slots {
            let page = self.page(shape, slot / PAGE, layer);
            for head in 0..shape.num_heads {
                let key = |dimension| page.keys[shape.key(head, slot, dimension)];
                read[0].extend((0..shape.head_size).map(key));
                read[1].extend(&page.values[shape.values(head, slot)]);
            }
        }
        read
    }
}

impl Cache {
    /// Returns a cache of empty rows; memory is taken as they grow.
    pub fn new(model: &Model, num_rows: usize) -> Self {
        Self {
            rows: (0..num_rows).map(|_| CacheRow::default()).collect(),
            shape: CacheShape::of(model),
        }
    }

    /// The number of committed tokens of a row, `None` where there is no such row.
    pub fn length(&self, row: usize) -> Option<usize> {
        self.rows.get(row).map(|row| row.length)
    }

    pub(crate) fn is_for(&self, model: &Model) -> bool {
        self.shape == CacheShape::of(model)
    }

    /// Takes memory for the slots of a pass.
    pub(crate) fn reserve(&mut self, row: usize, num_tokens: usize) -> Result<()> {
        let row = &mut self.rows[row];
        row.num_pending = 0;
        while row.maps.len() * MAPPED * PAGE < row.length + num_tokens {
            row.maps.push(zeros(MAPPED * self.shape.page_bytes(), "a cache")?);
        }
        Ok(())
    }

    /// Commits tokens of the last pass: `path` are their places in it, each the child of the one before and the
    /// first one a child of the last committed token. Costs nothing where they are the first ones of the pass.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the row is out of range, or the path is not an ascending list of nodes of the last pass.
    pub fn commit(&mut self, row: usize, path: &[usize]) -> Result<()> {
        let shape = self.shape;
        let row = self.row(row)?;
        let is_ascending = path.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_ascending || path.last().is_some_and(|&last| last >= row.num_pending) {
            let reason = "must be ascending places of tokens of the last pass";
            return Err(Error::invalid("path", reason));
        }
        row.num_pending = 0;
        for (depth, &place) in path.iter().enumerate().filter(|(depth, place)| depth != *place) {
            let slot = row.length + place;
            for layer in 0..shape.num_layers {
                let [keys, values] = row.read(shape, layer, slot..slot + 1);
                row.put(shape, layer, row.length + depth, &keys, &values);
            }
        }
        row.length += path.len();
        Ok(())
    }

    /// Forgets all tokens of a row from this position on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the row is out of range, or has fewer tokens.
    pub fn truncate(&mut self, row: usize, length: usize) -> Result<()> {
        let row = self.row(row)?;
        if length > row.length {
            return Err(Error::invalid("length", "must be at most that of the row"));
        }
        (row.length, row.num_pending) = (length, 0);
        row.maps.truncate(length.div_ceil(MAPPED * PAGE));
        Ok(())
    }

    /// Adds committed tokens to a row: `(num_layers, 2, num_tokens, num_heads * head_size)`, in a layer their keys and
    /// then their values.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the row is out of range, or the states of a token are incomplete; [`Error::OutOfMemory`].
    pub fn append(&mut self, row: usize, states: &[f32]) -> Result<()> {
        let shape = self.shape;
        let width = shape.num_heads * shape.head_size;
        let start = self.row(row)?.length;
        let num_tokens = states.len() / (2 * width * shape.num_layers);
        if num_tokens * 2 * width * shape.num_layers != states.len() {
            return Err(Error::invalid("states", "must be those of whole tokens"));
        }
        self.reserve(row, num_tokens)?;
        let row = &mut self.rows[row];
        for (layer, states) in states.chunks(2 * width * num_tokens.max(1)).enumerate() {
            let (keys, values) = states.split_at(width * num_tokens);
            let tokens = keys.chunks_exact(width).zip(values.chunks_exact(width));
            for (slot, (keys, values)) in (start..).zip(tokens) {
                row.put(shape, layer, slot, keys, values);
            }
        }
        row.length += num_tokens;
        Ok(())
    }

    /// Returns the states of a row as [`append`](Self::append) takes them.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the row is out of range.
    pub fn states(&mut self, row: usize) -> Result<Vec<f32>> {
        let shape = self.shape;
        let row = self.row(row)?;
        let layers = 0..shape.num_layers;
        Ok(layers.flat_map(|layer| row.read(shape, layer, 0..row.length).concat()).collect())
    }

    fn row(&mut self, row: usize) -> Result<&mut CacheRow> {
        self.rows.get_mut(row).ok_or_else(|| Error::invalid("row", "must be a row of the cache"))
    }
}
