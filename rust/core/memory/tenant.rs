//! Which texts does a memory hold of one tenant, and when was each last of use?

use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use crate::memory::history::{self, History, PIECE};
use crate::memory::slot_table::{self, SlotTable};

/// The texts of one tenant, in the order in which they came, as one history.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    history: History,
    documents: Vec<Document>,
    /// The documents by the hash of their tokens.
    by_hash: SlotTable,
}

/// Tokens of the history that a boundary follows.
#[derive(Debug)]
struct Document {
    start: u32,
    end: u32,
    hash: u64,
    last_use: AtomicU64,
}

/// What texts need to grow, made without changing them.
#[derive(Debug)]
pub(crate) struct Reserved {
    history: history::Reserved,
    by_hash: Option<SlotTable>,
}

impl Texts {
    /// The texts of these documents: tokens and last uses. O(tokens).
    pub(crate) fn of<T: AsRef<[u32]>>(documents: &[(T, u64)]) -> Self {
        let num_tokens = documents
            .iter()
            .map(|(tokens, _)| tokens.as_ref().len() + 1);
        let mut texts = Self {
            history: History::with_capacity(num_tokens.sum()),
            documents: Vec::with_capacity(documents.len()),
            by_hash: SlotTable::default(),
        };
        for (tokens, last_use) in documents {
            let tokens = tokens.as_ref();
            for (piece, is_last) in pieces(tokens) {
                texts.adopt(texts.reserved(piece.len()));
                texts.append(piece);
                if is_last {
                    texts.end_document(hash(tokens), *last_use);
                }
            }
        }
        texts
    }

    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// The tokens of each document, and its last use.
    pub(crate) fn documents(&self) -> impl ExactSizeIterator<Item = (&[u32], u64)> {
        self.documents.iter().map(|document| {
            let last_use = document.last_use.load(Ordering::Relaxed);
            (self.tokens(document), last_use)
        })
    }

    fn tokens(&self, document: &Document) -> &[u32] {
        &self.history.tokens()[document.start as usize..document.end as usize]
    }

    pub(crate) fn num_documents(&self) -> usize {
        self.documents.len()
    }

    /// The tokens of all documents, boundaries not counted.
    pub(crate) fn num_tokens(&self) -> usize {
        self.history.tokens().len() - self.documents.len()
    }

    /// Whether a document has just these tokens, whose hash is given; it was then of use.
    pub(crate) fn touch_same(&self, tokens: &[u32], hash: u64, now: u64) -> bool {
        let document = |number: u32| &self.documents[number as usize];
        let is_same = |number| self.tokens(document(number)) == tokens;
        let found = self.by_hash.get(hash, is_same).map(document);
        if let Some(document) = found {
            document.last_use.fetch_max(now, Ordering::Relaxed);
        }
        found.is_some()
    }

    /// The document that holds this position was of use; a boundary belongs to none.
    pub(crate) fn touch(&self, position: usize, now: u64) {
        let after = |document: &Document| document.end as usize <= position;
        let number = self.documents.partition_point(after);
        let document = self.documents.get(number);
        if let Some(document) = document.filter(|found| found.start as usize <= position) {
            document.last_use.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// The memory to append a piece of `num_tokens` tokens, and to end the document with it.
    pub(crate) fn reserved(&self, num_tokens: usize) -> Reserved {
        let hash = |number: u32| self.documents[number as usize].hash;
        Reserved {
            history: self.history.reserved(num_tokens + 1),
            by_hash: self.by_hash.grown(1, self.documents.len() + 1, hash),
        }
    }

    /// Grows; gives what is not needed any more.
    pub(crate) fn adopt(&mut self, reserved: Reserved) -> Reserved {
        Reserved {
            history: self.history.adopt(reserved.history),
            by_hash: slot_table::replace(&mut self.by_hash, reserved.by_hash),
        }
    }

    /// Appends a piece that there is room for to the document that has not ended.
    pub(crate) fn append(&mut self, piece: &[u32]) {
        self.history.append(piece);
    }

    /// Ends the document whose last piece was just appended, and whose tokens have this hash.
    pub(crate) fn end_document(&mut self, hash: u64, last_use: u64) {
        let start = self.documents.last().map_or(0, |document| document.end + 1);
        let end = u32::try_from(self.history.tokens().len()).expect("at most `MAX_BYTES`");
        let number = u32::try_from(self.documents.len()).expect("fewer than tokens");
        self.history.append(&[History::BOUNDARY]);
        if self.documents.len() == self.documents.capacity() {
            self.documents.reserve_exact(self.documents.len() / 8 + 1);
        }
        // Of two documents with one hash, the later one is found again.
        let documents = &self.documents;
        let is_same = |number: u32| documents[number as usize].hash == hash;
        self.by_hash.replace(hash, number, is_same);
        self.documents.push(Document {
            start,
            end,
            hash,
            last_use: last_use.into(),
        });
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.history.num_bytes()
            + size_of::<Document>() * self.documents.capacity()
            + self.by_hash.num_bytes()
    }

    /// The most memory that the texts take after another one of `num_tokens` tokens, in bytes.
    pub(crate) fn num_bytes_with(&self, num_tokens: usize) -> usize {
        let num_documents = self.documents.len() + 1;
        let room = num_documents + num_documents / 8;
        self.history.num_bytes_with(num_tokens + 1)
            + size_of::<Document>() * self.documents.capacity().max(room)
            + self.by_hash.num_bytes_with(1, 1)
    }
}

/// Cuts a document into pieces, which are appended one at a time; says which one is the last.
pub(crate) fn pieces(tokens: &[u32]) -> impl Iterator<Item = (&[u32], bool)> {
    // The boundary is appended with the last one.
    let pieces = tokens.chunks(PIECE - 1);
    let last = pieces.len().saturating_sub(1);
    (0..)
        .zip(pieces)
        .map(move |(number, piece)| (piece, number == last))
}

/// The hash by which a document is found again.
pub(crate) fn hash(tokens: &[u32]) -> u64 {
    xxh3_64(bytemuck::cast_slice(tokens))
}
