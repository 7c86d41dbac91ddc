//! Keys and values of some sequences, in pages of slots.
//!
//! A committed token lies in the slot of its position. Tokens of a pass take the slots after the committed ones,
//! in their order in the pass, until a path of them is committed and moved to the slots of its positions.

use std::ops::Range;

use memmap2::MmapMut;

use super::config::{Config, Mixer};
use super::recurrent::{MAX_RECORDED_TOKENS, RecurrentLayer, RecurrentShape, RecurrentSnapshot};
use crate::error::{Error, Result};
use crate::gguf::bytes::zeros;
use crate::simd::instructions::Instructions;
use crate::simd::vector::{f16, to_f16};

/// The slots of a page.
pub(crate) const PAGE_SLOTS: usize = 64;
/// The pages of a map: in few maps, passes over a thousand tokens take a tenth less time.
const PAGES_PER_MAP: usize = 8;

/// The precision of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheType {
    /// In float32, in which they are computed.
    #[default]
    Float32,
    /// Half the memory; numbers beyond 65,504 become 65,504.
    Float16,
}

impl CacheType {
    /// The bytes of a number.
    fn size(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Float16 => 2,
        }
    }

    /// Reads a number, by its index among numbers.
    fn read(self, bytes: &[u8], index: usize) -> f32 {
        match self {
            Self::Float32 => f32::from_le_bytes(bytes.as_chunks().0[index]),
            Self::Float16 => f16(bytes.as_chunks().0[index]),
        }
    }

    /// Writes a number, by its index among numbers.
    fn write(self, bytes: &mut [u8], index: usize, number: f32) {
        match self {
            Self::Float32 => bytes.as_chunks_mut().0[index] = number.to_le_bytes(),
            Self::Float16 => bytes.as_chunks_mut().0[index] = to_f16(number),
        }
    }
}

/// Keys and values of sequences, which are called rows.
#[derive(Debug)]
pub struct Cache {
    /// The sequences.
    pub(crate) rows: Vec<CacheRow>,
    /// The layout of their states.
    pub(crate) shape: CacheShape,
}

/// The layout of the states of each layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheShape {
    /// The layout of keys and values, by the index of the layer.
    pub(crate) layers: Vec<LayerShape>,
    /// The shapes of recurrent states, by the index of the layer; `None` for layers without them.
    recurrent: Vec<Option<RecurrentShape>>,
    /// The tokens above which a text has other rotations, as in the model; rows then know their tokens.
    short_context: Option<usize>,
    /// The instructions by whose lanes keys lie side by side.
    isa: Instructions,
    /// The numbers of a page of all layers.
    page_size: usize,
    /// The type of these numbers.
    pub(crate) kind: CacheType,
}

/// The layout of the keys and values of a layer in a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerShape {
    /// The type of numbers.
    pub(crate) kind: CacheType,
    /// The heads of keys; 0 for a layer without keys of its own.
    num_heads: usize,
    /// The numbers of a key.
    key_size: usize,
    /// The numbers of a value.
    pub(crate) value_size: usize,
    /// The slots whose keys lie side by side, one for each lane of a vector.
    lanes: usize,
    /// The index of the first number of the layer in a page of all layers.
    start: usize,
}

/// The states of a sequence.
#[derive(Debug, Default)]
pub(crate) struct CacheRow {
    /// The number of committed tokens.
    pub(crate) length: usize,
    /// The number of tokens of the last pass, none of them committed.
    pub(crate) num_pending: usize,
    /// The ids of the committed tokens and of those of the last pass, if the model has a short context.
    pub(crate) tokens: Vec<u32>,
    /// True if the states are those of a text above the short context.
    pub(crate) is_long: bool,
    /// Maps of `PAGES_PER_MAP` pages of all layers each.
    maps: Vec<MmapMut>,
    /// The recurrent states, by the index of the layer, if some layers have them.
    recurrent: Vec<Option<RecurrentLayer>>,
    /// True if a part of the last pass can be committed alone.
    pub(crate) is_recorded: bool,
    /// The number of tokens at the mark, and the recurrent states after them.
    mark: Option<(usize, Vec<RecurrentSnapshot>)>,
}

/// Some slots of a layer.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a> {
    /// The bytes of keys, `(num_heads, PAGE_SLOTS / lanes, key_size, lanes)`.
    pub(crate) keys: &'a [u8],
    /// The bytes of values, `(num_heads, PAGE_SLOTS, value_size)`.
    pub(crate) values: &'a [u8],
}

impl CacheShape {
    fn new(config: &Config, isa: Instructions, kind: CacheType) -> Self {
        let mut page_size = 0;
        let layers = config.layers.iter().map(|layer| {
            let (num_heads, key_size, value_size) = match &layer.mixer {
                Mixer::Attention(attention) => {
                    (attention.num_cached_heads(), attention.head_size, attention.value_size)
                }
                _ => (0, 1, 1),
            };
            let shape = LayerShape {
                kind,
                num_heads,
                key_size,
                value_size,
                lanes: isa.lanes(),
                start: page_size,
            };
            page_size += shape.page_size();
            shape
        });
        let layers = layers.collect();
        let recurrent = config.layers.iter().map(|layer| layer.recurrent(config.hidden_size));
        Self {
            layers,
            recurrent: recurrent.collect(),
            short_context: config.short_context,
            isa,
            page_size,
            kind,
        }
    }

    /// True if rows have states that no token can be dropped from.
    fn is_recurrent(&self) -> bool {
        self.recurrent.iter().any(Option::is_some)
    }

    /// The bytes of a page of all layers.
    fn page_bytes(&self) -> usize {
        self.page_size * self.kind.size()
    }

    /// The index of the map that has a page of a layer, and of its bytes there.
    fn locate(&self, page: usize, layer: usize) -> (usize, Range<usize>) {
        let (layer, size) = (self.layers[layer], self.kind.size());
        let start = page % PAGES_PER_MAP * self.page_size + layer.start;
        (page / PAGES_PER_MAP, start * size..(start + layer.page_size()) * size)
    }
}

impl LayerShape {
    /// The numbers of a page.
    fn page_size(self) -> usize {
        PAGE_SLOTS * self.width()
    }

    /// The numbers of the keys and values of a token.
    fn width(self) -> usize {
        self.num_heads * (self.key_size + self.value_size)
    }

    /// The index of the first byte of the values in a page, after all keys.
    fn values_start(self) -> usize {
        PAGE_SLOTS * self.num_heads * self.key_size * self.kind.size()
    }

    /// The indices of the numbers of the keys of a head in a page.
    pub(crate) fn keys(self, head: usize) -> Range<usize> {
        let size = PAGE_SLOTS * self.key_size;
        head * size..(head + 1) * size
    }

    /// The index of a key element (head, slot, dimension) in a page.
    fn key(self, head: usize, slot: usize, dimension: usize) -> usize {
        let block = slot % PAGE_SLOTS / self.lanes;
        let in_head = (block * self.key_size + dimension) * self.lanes + slot % self.lanes;
        self.keys(head).start + in_head
    }

    /// The indices of the numbers of the value of a head and a slot in its page.
    pub(crate) fn values(self, head: usize, slot: usize) -> Range<usize> {
        let start = (head * PAGE_SLOTS + slot % PAGE_SLOTS) * self.value_size;
        start..start + self.value_size
    }
}

impl CacheRow {
    /// Returns a row by its index.
    fn get(rows: &mut [Self], row: usize) -> Result<&mut Self> {
        rows.get_mut(row).ok_or_else(|| Error::invalid("row", "must be a row of the cache"))
    }

    /// The recurrent states of a layer that has some.
    pub(crate) fn recurrent(&mut self, layer: usize) -> &mut RecurrentLayer {
        self.recurrent[layer].as_mut().expect("a recurrent layer of a row that was reserved")
    }

    /// A page of a layer.
    fn page(&self, shape: &CacheShape, page: usize, layer: usize) -> Page<'_> {
        let (map, bytes) = shape.locate(page, layer);
        let (keys, values) = self.maps[map][bytes].split_at(shape.layers[layer].values_start());
        Page { keys, values }
    }

    /// The pages of the first slots in a layer.
    pub(crate) fn pages(
        &self,
        shape: &CacheShape,
        layer: usize,
        num_slots: usize,
    ) -> Vec<Page<'_>> {
        (0..num_slots.div_ceil(PAGE_SLOTS)).map(|page| self.page(shape, page, layer)).collect()
    }

    /// Puts the keys and values of a token, head after head, into a slot.
    pub(crate) fn put(
        &mut self,
        shape: &CacheShape,
        layer: usize,
        slot: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let (map, bytes) = shape.locate(slot / PAGE_SLOTS, layer);
        let shape = shape.layers[layer];
        let (of_keys, of_values) = self.maps[map][bytes].split_at_mut(shape.values_start());
        for (head, keys) in keys.chunks_exact(shape.key_size).enumerate() {
            for (dimension, &number) in keys.iter().enumerate() {
                shape.kind.write(of_keys, shape.key(head, slot, dimension), number);
            }
        }
        for (head, values) in values.chunks_exact(shape.value_size).enumerate() {
            for (index, &number) in shape.values(head, slot).zip(values) {
                shape.kind.write(of_values, index, number);
            }
        }
    }

    /// The keys and values of some slots, head after head.
    fn read(&self, shape: &CacheShape, layer: usize, slots: Range<usize>) -> [Vec<f32>; 2] {
        let mut read = [Vec::new(), Vec::new()];
        let of_layer = shape.layers[layer];
        for slot in slots {
            let page = self.page(shape, slot / PAGE_SLOTS, layer);
            for head in 0..of_layer.num_heads {
                let keys = (0..of_layer.key_size).map(|d| of_layer.key(head, slot, d));
                read[0].extend(keys.map(|index| shape.kind.read(page.keys, index)));
                let values = of_layer.values(head, slot);
                read[1].extend(values.map(|index| shape.kind.read(page.values, index)));
            }
        }
        read
    }
}

impl Cache {
    /// Returns a cache of empty rows for a model; memory is taken as they grow.
    pub(crate) fn new(
        config: &Config,
        isa: Instructions,
        num_rows: usize,
        kind: CacheType,
    ) -> Self {
        let rows = (0..num_rows).map(|_| CacheRow::default()).collect();
        Self { rows, shape: CacheShape::new(config, isa, kind) }
    }

    /// The most bytes of a row of this many tokens: its pages, and recurrent states, whatever their number.
    pub fn row_bytes(&self, num_tokens: usize) -> usize {
        let maps = num_tokens.div_ceil(PAGES_PER_MAP * PAGE_SLOTS);
        let pages = maps.saturating_mul(PAGES_PER_MAP * self.shape.page_bytes());
        let recurrent = self.shape.recurrent.iter().flatten();
        recurrent.map(|shape| shape.most_bytes()).fold(pages, usize::saturating_add)
    }

    /// The number of committed tokens of a row, `None` where there is no such row.
    pub fn length(&self, row: usize) -> Option<usize> {
        self.rows.get(row).map(|row| row.length)
    }

    /// Returns true for a cache of such a model.
    pub(crate) fn is_for(&self, config: &Config, isa: Instructions) -> bool {
        self.shape == CacheShape::new(config, isa, self.shape.kind)
    }

    /// Takes memory for the slots of a pass.
    pub(crate) fn reserve(&mut self, row: usize, num_tokens: usize) -> Result<()> {
        let row = &mut self.rows[row];
        (row.num_pending, row.is_recorded) = (0, num_tokens <= MAX_RECORDED_TOKENS);
        row.tokens.truncate(row.length);
        if self.shape.is_recurrent() && row.recurrent.is_empty() {
            let layers = self.shape.recurrent.iter().map(|shape| shape.map(RecurrentLayer::new));
            row.recurrent = layers.collect();
        }
        while row.maps.len() * PAGES_PER_MAP * PAGE_SLOTS < row.length + num_tokens {
            row.maps.push(zeros(PAGES_PER_MAP * self.shape.page_bytes(), "a cache")?);
        }
        Ok(())
    }

    /// Commits tokens of the last pass: `path` are their indices in it, each the child of the one before and the
    /// first one a child of the last committed token. Costs nothing where they are the first ones of the pass.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the row is out of range, or the path is not an ascending list of nodes of the last pass.
    pub fn commit(&mut self, row: usize, path: &[usize]) -> Result<()> {
        let Self { rows, shape } = self;
        let row = CacheRow::get(rows, row)?;
        let is_ascending = path.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_ascending || path.last().is_some_and(|&last| last >= row.num_pending) {
            let reason = "must be ascending indices of tokens of the last pass";
            return Err(Error::invalid("path", reason));
        }
        let is_first = path.last().is_none_or(|&last| last < path.len());
        let is_recorded = row.is_recorded || path.len() == row.num_pending;
        if shape.is_recurrent() && !(is_first && is_recorded) {
            let reason = format!(
                "must be the first tokens of the last pass, and all of a pass over more than \
                 {MAX_RECORDED_TOKENS}, because the model has recurrent states"
            );
            return Err(Error::invalid("path", reason));
        }
        let num_pending = std::mem::take(&mut row.num_pending);
        if shape.short_context.is_some() {
            let pending = row.tokens.split_off(row.length);
            row.tokens.extend(path.iter().map(|&index| pending[index]));
        }
        for layer in row.recurrent.iter_mut().flatten() {
            layer.commit(shape.isa, path.len(), num_pending);
        }
        for (depth, &index) in path.iter().enumerate().filter(|(depth, index)| depth != *index) {
            let slot = row.length + index;
            for layer in 0..shape.layers.len() {
                let [keys, values] = row.read(shape, layer, slot..slot + 1);
                row.put(shape, layer, row.length + depth, &keys, &values);
            }
        }
        row.length += path.len();
        Ok(())
    }

    /// Forgets all tokens of a row from this position on. A row with recurrent states can forget all tokens, or those
    /// after its [mark](Self::mark).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the row is out of range, has fewer tokens, or has no states of this position.
    pub fn truncate(&mut self, row: usize, length: usize) -> Result<()> {
        if length > CacheRow::get(&mut self.rows, row)?.length {
            return Err(Error::invalid("length", "must be at most that of the row"));
        }
        let kept = self.kept(row, length)?;
        if kept < length {
            let reason = format!("must be {kept} or less: recurrent states drop no tokens");
            return Err(Error::invalid("length", reason));
        }
        let row = &mut self.rows[row];
        if length < row.length {
            row.mark.take_if(|mark| mark.0 > length);
            let states = row.mark.as_ref().filter(|mark| mark.0 == length).map(|mark| &mark.1);
            for (index, layer) in row.recurrent.iter_mut().flatten().enumerate() {
                layer.restore(states.map(|states| &states[index]));
            }
        }
        (row.length, row.num_pending) = (length, 0);
        row.tokens.truncate(length);
        row.maps.truncate(length.div_ceil(PAGES_PER_MAP * PAGE_SLOTS));
        Ok(())
    }

    /// Returns the most tokens of a row, at most `length`, after which it has states.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the row is out of range.
    pub fn kept(&mut self, row: usize, length: usize) -> Result<usize> {
        let is_recurrent = self.shape.is_recurrent();
        let row = CacheRow::get(&mut self.rows, row)?;
        let mark = row.mark.as_ref().map_or(0, |mark| mark.0);
        Ok(match length.min(row.length) {
            all if !is_recurrent || all == row.length => all,
            some if mark <= some => mark,
            _ => 0,
        })
    }

    /// Keeps a copy of the recurrent states of a row, if the model has some, so that [`truncate`](Self::truncate) can
    /// return to this position. It replaces the one before.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the row is out of range.
    pub fn mark(&mut self, row: usize) -> Result<()> {
        let row = CacheRow::get(&mut self.rows, row)?;
        let states: Vec<_> =
            row.recurrent.iter().flatten().map(RecurrentLayer::committed).collect();
        row.mark = (!states.is_empty()).then_some((row.length, states));
        Ok(())
    }

    /// Gives a row the states of another one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a row is out of range, and [`Error::OutOfMemory`].
    pub fn copy(&mut self, from: usize, to: usize) -> Result<()> {
        CacheRow::get(&mut self.rows, to)?;
        let source = CacheRow::get(&mut self.rows, from)?;
        let copied = CacheRow {
            recurrent: source.recurrent.clone(),
            mark: source.mark.clone(),
            is_long: source.is_long,
            ..CacheRow::default()
        };
        let (length, tokens) = (source.length, source.tokens.clone());
        if from == to {
            return Ok(());
        }
        self.rows[to] = copied;
        self.reserve(to, length)?;
        let mut maps = std::mem::take(&mut self.rows[to].maps);
        let mut remaining = length.div_ceil(PAGE_SLOTS) * self.shape.page_bytes();
        for (from, to) in self.rows[from].maps.iter().zip(&mut maps) {
            let num_bytes = remaining.min(to.len());
            to[..num_bytes].copy_from_slice(&from[..num_bytes]);
            remaining -= num_bytes;
        }
        // The tokens come last: reserving forgets those after the row's length.
        (self.rows[to].maps, self.rows[to].length, self.rows[to].tokens) = (maps, length, tokens);
        Ok(())
    }

    /// Adds committed tokens to a row. For each layer, `(num_tokens, num_heads * key_size)` keys and then
    /// `(num_tokens, num_heads * value_size)` values.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the row is out of range, or the states of a token are incomplete; [`Error::OutOfMemory`].
    pub fn append(&mut self, row: usize, states: &[f32]) -> Result<()> {
        let start = CacheRow::get(&mut self.rows, row)?.length;
        self.require_states_of_tokens()?;
        let width = self.shape.page_size / PAGE_SLOTS;
        let num_tokens = states.len().checked_div(width).unwrap_or(0);
        if num_tokens * width != states.len() {
            return Err(Error::invalid("states", "must be those of whole tokens"));
        }
        self.reserve(row, num_tokens)?;
        let Self { rows, shape } = self;
        let row = &mut rows[row];
        let mut remaining = states;
        for (layer, layout) in shape.layers.iter().enumerate() {
            let (states, others) = remaining.split_at(num_tokens * layout.width());
            remaining = others;
            let sizes = [layout.key_size, layout.value_size];
            let [key_width, value_width] = sizes.map(|size| layout.num_heads * size);
            if key_width == 0 || value_width == 0 {
                continue; // it reads the keys and values of another layer
            }
            let (keys, values) = states.split_at(num_tokens * key_width);
            let tokens = keys.chunks_exact(key_width).zip(values.chunks_exact(value_width));
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
        CacheRow::get(&mut self.rows, row)?;
        self.require_states_of_tokens()?;
        let Self { rows, shape } = self;
        let row = CacheRow::get(rows, row)?;
        let layers = 0..shape.layers.len();
        Ok(layers.flat_map(|layer| row.read(shape, layer, 0..row.length).concat()).collect())
    }

    /// Requires that the states of a token do not depend on others, so that rows can be taken apart.
    fn require_states_of_tokens(&self) -> Result<()> {
        let kind = match self.shape.short_context {
            _ if self.shape.is_recurrent() => "with recurrent states",
            Some(_) => "whose rotations depend on the length of the text",
            None => return Ok(()),
        };
        let reason = format!("cannot be taken from or added to a cache {kind}: copy the row");
        Err(Error::invalid("states", reason))
    }
}
