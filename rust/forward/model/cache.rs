//! Keys and values of some sequences, in pages of slots.
//!
//! A committed token lies in the slot of its position. Tokens of a pass take the slots after the committed ones,
//! in their order in the pass, until a path of them is committed and moved to the slots of its positions.

use std::ops::Range;

use super::config::Config;
use super::load::Model;
use crate::error::{Error, Result};

/// The slots of a page.
pub(crate) const PAGE: usize = 64;

/// Keys and values of sequences, which are called rows.
#[derive(Debug)]
pub struct Cache {
    pub(crate) rows: Vec<Row>,
    pub(crate) shape: Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    num_layers: usize,
    pub(crate) num_heads: usize,
    pub(crate) head_size: usize,
    /// Slots whose keys lie side by side.
    lanes: usize,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Row {
    /// Committed tokens.
    pub(crate) length: usize,
    /// Tokens of the last pass, none of them committed.
    pub(crate) num_pending: usize,
    /// For each layer.
    pub(crate) pages: Vec<Vec<Page>>,
}

/// For each head some vectors of as many slots, with the slots side by side in keys.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    /// `(num_heads, PAGE / lanes, head_size, lanes)`.
    pub(crate) keys: Vec<f32>,
    /// `(num_heads, PAGE, head_size)`.
    pub(crate) values: Vec<f32>,
}

impl Shape {
    pub(crate) fn of(model: &Model) -> Self {
        let &Config { num_layers, num_kv_heads: num_heads, head_size, .. } = &model.config;
        Self { num_layers, num_heads, head_size, lanes: model.with.lanes() }
    }

    /// The place of a number of a key, without the head's own.
    fn key_place(self, slot: usize, dimension: usize) -> usize {
        let block = slot % PAGE / self.lanes;
        (block * self.head_size + dimension) * self.lanes + slot % self.lanes
    }

    pub(crate) fn page_size(self) -> usize {
        PAGE * self.head_size
    }
}

impl Cache {
    /// Returns a cache of empty rows; memory is taken as they grow.
    pub fn new(model: &Model, num_rows: usize) -> Self {
        Self { rows: (0..num_rows).map(|_| Row::default()).collect(), shape: Shape::of(model) }
    }

    pub fn num_rows(&self) -> usize {
        self.rows.len()
    }

    /// The number of committed tokens of a row, `None` where there is no such row.
    pub fn length(&self, row: usize) -> Option<usize> {
        self.rows.get(row).map(|row| row.length)
    }

    pub fn num_bytes(&self) -> usize {
        let pages: usize = self.rows.iter().flat_map(|row| &row.pages).map(Vec::len).sum();
        pages * 2 * self.shape.page_size() * self.shape.num_heads * size_of::<f32>()
    }

    pub(crate) fn is_for(&self, model: &Model) -> bool {
        self.shape == Shape::of(model)
    }

    /// Takes memory for the slots of a pass.
    pub(crate) fn reserve(&mut self, row: usize, num_tokens: usize) -> Result<()> {
        let shape = self.shape;
        let row = &mut self.rows[row];
        row.num_pending = 0;
        row.pages.resize_with(shape.num_layers, Vec::new);
        let size = shape.page_size() * shape.num_heads;
        for pages in &mut row.pages {
            while pages.len() * PAGE < row.length + num_tokens {
                pages.push(Page { keys: zeros(size)?, values: zeros(size)? });
            }
        }
        Ok(())
    }

    /// Commits tokens of the last pass: `path` are their places in it, each the child of the one before and the
    /// first one a child of the last committed token. Costs nothing where they are the first ones of the pass.
    ///
    /// # Errors
    ///
    /// `row` is out of range, or the path is not one of ascending places in the last pass.
    pub fn commit(&mut self, row: usize, path: &[usize]) -> Result<()> {
        let shape = self.shape;
        let row = self.row(row)?;
        let is_ascending = path.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_ascending || path.last().is_some_and(|&last| last >= row.num_pending) {
            return Err(Error::invalid(
                "path",
                "must be ascending places of tokens of the last pass",
            ));
        }
        for (depth, &place) in path.iter().enumerate().filter(|(depth, place)| depth != *place) {
            for pages in &mut row.pages {
                shape.copy(pages, row.length + place, row.length + depth);
            }
        }
        row.length += path.len();
        row.num_pending = 0;
        Ok(())
    }

    /// Forgets all tokens of a row from this position on.
    ///
    /// # Errors
    ///
    /// `row` is out of range, or it is shorter.
    pub fn truncate(&mut self, row: usize, length: usize) -> Result<()> {
        let row = self.row(row)?;
        if length > row.length {
            return Err(Error::invalid("length", "must be at most that of the row"));
        }
        (row.length, row.num_pending) = (length, 0);
        for pages in &mut row.pages {
            pages.truncate(length.div_ceil(PAGE));
        }
        Ok(())
    }

    /// Replaces a row by a copy of another one.
    ///
    /// # Errors
    ///
    /// `row` is out of range.
    pub fn copy_row(&mut self, source: usize, target: usize) -> Result<()> {
        let copy = self.row(source)?.clone();
        *self.row(target)? = copy;
        Ok(())
    }

    /// Adds committed tokens to a row: `(num_layers, 2, num_tokens, num_heads * head_size)`, in a layer their keys and
    /// then their values.
    ///
    /// # Errors
    ///
    /// `row` is out of range, or the length of `states` is not a multiple of the values of a token.
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
        for (pages, states) in
            row.pages.iter_mut().zip(states.chunks(2 * width * num_tokens.max(1)))
        {
            let (keys, values) = states.split_at(width * num_tokens);
            let tokens = keys.chunks_exact(width).zip(values.chunks_exact(width));
            for (slot, (keys, values)) in (start..).zip(tokens) {
                shape.put(pages, slot, keys, values);
            }
        }
        row.length += num_tokens;
        Ok(())
    }

    /// Returns the states of a row as [`append`](Self::append) takes them.
    ///
    /// # Errors
    ///
    /// `row` is out of range.
    pub fn states(&mut self, row: usize) -> Result<Vec<f32>> {
        let shape = self.shape;
        let row = self.row(row)?;
        let mut states = Vec::new();
        for pages in &row.pages {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for slot in 0..row.length {
                shape.read(pages, slot, &mut keys, &mut values);
            }
            states.append(&mut keys);
            states.append(&mut values);
        }
        Ok(states)
    }

    fn row(&mut self, row: usize) -> Result<&mut Row> {
        self.rows.get_mut(row).ok_or_else(|| Error::invalid("row", "must be a row of the cache"))
    }
}

impl Shape {
    /// Puts the keys and values of a token, head after head, into a slot.
    pub(crate) fn put(self, pages: &mut [Page], slot: usize, keys: &[f32], values: &[f32]) {
        let page = &mut pages[slot / PAGE];
        for head in 0..self.num_heads {
            let of_head = head * self.head_size..(head + 1) * self.head_size;
            for (dimension, &number) in keys[of_head.clone()].iter().enumerate() {
                let place = self.key_place(slot, dimension);
                page.keys[head * self.page_size() + place] = number;
            }
            page.values[self.values(head, slot)].copy_from_slice(&values[of_head]);
        }
    }

    /// The places of the values of a head in the page of a slot.
    pub(crate) fn values(self, head: usize, slot: usize) -> Range<usize> {
        let start = head * self.page_size() + slot % PAGE * self.head_size;
        start..start + self.head_size
    }

    fn copy(self, pages: &mut [Page], from: usize, to: usize) {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        self.read(pages, from, &mut keys, &mut values);
        self.put(pages, to, &keys, &values);
    }

    /// Adds the keys and values of a slot, head after head.
    fn read(self, pages: &[Page], slot: usize, keys: &mut Vec<f32>, values: &mut Vec<f32>) {
        let page = &pages[slot / PAGE];
        for head in 0..self.num_heads {
            let start = head * self.page_size();
            let key = |dimension| page.keys[start + self.key_place(slot, dimension)];
            keys.extend((0..self.head_size).map(key));
            values.extend(&page.values[self.values(head, slot)]);
        }
    }
}

fn zeros(size: usize) -> Result<Vec<f32>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(size).map_err(|_| Error::OutOfMemory("a cache"))?;
    zeros.resize(size, 0.0);
    Ok(zeros)
}
