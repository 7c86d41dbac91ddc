//! Which suffixes does an index keep?

use crate::base::error::Result;
use crate::index::options::IndexOptions;
use crate::storage::token_array::Tokens;

/// Suffixes are duplicates where so many first tokens are the same: more than a draft takes to find
/// its match and to continue it.
const DUPLICATE_LEN: usize = 32;

/// The suffixes that are read at a time.
const BATCH: usize = 1 << 10;

/// Takes the positions of all suffixes in their order, and hands on those that are kept.
///
/// These are the suffixes that begin at a multiple of `position_stride`; and of those that are
/// duplicates, up to the separator at most, every s-th from the first one on, s being the smallest
/// power of two that leaves no more than `max_duplicates`. So half of these at least are kept, and
/// no more has to be remembered.
pub(crate) struct Thinner<'a> {
    tokens: &'a Tokens,
    separator: u32,
    position_stride: u32,
    max_duplicates: usize,
    /// How many suffixes that are kept begin with the token before.
    firsts: Vec<u32>,
    duplicates: Duplicates,
    kept: Vec<u32>,
}

/// The duplicates up to here of the last suffix.
#[derive(Default)]
struct Duplicates {
    /// Every `stride`-th of their positions.
    positions: Vec<u32>,
    count: usize,
    stride: usize,
    /// The last of them and its first token.
    last: Option<(u32, Option<u32>)>,
}

impl<'a> Thinner<'a> {
    /// O(n) to count what tokens suffixes begin with.
    pub(crate) fn new(tokens: &'a Tokens, options: &IndexOptions) -> Result<Self> {
        let mut firsts = vec![0; options.vocab_size as usize + 2];
        let mut is_known = true;
        let mut num_skipped = 0;
        tokens.visit(0, |token| {
            match firsts.get_mut(token as usize + 1) {
                Some(count) => *count += u32::from(num_skipped == 0),
                None => is_known = false,
            }
            num_skipped = (num_skipped + 1) % options.position_stride;
            is_known
        });
        if !is_known {
            let reason = "a token is outside the vocabulary";
            return Err(tokens.section().corrupt(reason));
        }
        Ok(Self {
            tokens,
            separator: options.separator,
            position_stride: options.position_stride,
            max_duplicates: options.max_duplicates as usize,
            firsts,
            duplicates: Duplicates::default(),
            kept: Vec::new(),
        })
    }

    /// Takes the next positions.
    pub(crate) fn add(
        &mut self,
        positions: &[u32],
        sink: &mut dyn FnMut(&[u32]) -> Result<()>,
    ) -> Result<()> {
        if self.position_stride == 1 && self.max_duplicates == 0 {
            return sink(positions);
        }
        self.kept.clear();
        let stride = self.position_stride;
        let strided = positions.iter().filter(|&position| position % stride == 0);
        if self.max_duplicates == 0 {
            self.kept.extend(strided);
        } else {
            let strided: Vec<_> = strided.copied().collect();
            for batch in strided.chunks(BATCH) {
                self.add_batch(batch);
            }
        }
        sink(&self.kept)
    }

    /// Hands on what is left and gives the numbers of kept suffixes that begin with a token below
    /// `t`, for each `t` in `0..=vocab_size + 1`.
    pub(crate) fn finish(mut self, sink: &mut dyn FnMut(&[u32]) -> Result<()>) -> Result<Vec<u32>> {
        self.kept.clear();
        self.end_duplicates();
        sink(&self.kept)?;
        let mut sum = 0;
        for count in &mut self.firsts {
            sum += *count;
            *count = sum;
        }
        Ok(self.firsts)
    }

    /// Reads all first tokens before it compares the rest, so that the processor waits for many at a
    /// time: nearly every read misses its caches.
    fn add_batch(&mut self, positions: &[u32]) {
        let tokens = self.tokens;
        let first = |position: &u32| tokens.get(*position as usize);
        let firsts: Vec<_> = positions.iter().map(first).collect();
        for (&position, first) in positions.iter().zip(firsts) {
            let is_duplicate = self.duplicates.last.is_some_and(|(last, token)| {
                let (last, position) = (last as usize, position as usize);
                first == token && tokens.are_alike(last, position, DUPLICATE_LEN, self.separator)
            });
            if !is_duplicate {
                self.end_duplicates();
            }
            self.duplicates.add(position, self.max_duplicates);
            self.duplicates.last = Some((position, first));
        }
    }

    fn end_duplicates(&mut self) {
        let duplicates = &mut self.duplicates;
        let first = duplicates.positions.first();
        if let Some(token) = first.and_then(|&first| self.tokens.get(first as usize)) {
            let num_dropped = duplicates.count - duplicates.positions.len();
            self.firsts[token as usize + 1] -=
                u32::try_from(num_dropped).expect("a shard has less than 2^31 tokens");
        }
        self.kept.append(&mut duplicates.positions);
        duplicates.count = 0;
        duplicates.stride = 1;
    }
}

impl Duplicates {
    fn add(&mut self, position: u32, limit: usize) {
        if self.count.is_multiple_of(self.stride) && self.positions.len() == limit {
            let mut index = 0;
            self.positions.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.stride *= 2;
        }
        if self.count.is_multiple_of(self.stride) {
            self.positions.push(position);
        }
        self.count += 1;
    }
}
