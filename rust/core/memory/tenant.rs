//! Which texts does a memory hold of one tenant, and when was each last of use?

use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use crate::memory::history::History;
use crate::memory::slot_table::{SlotTable, reserve};

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

impl Texts {
    /// What a text takes beside its tokens, and what texts take that are just begun: tables and lists
    /// have room to spare.
    pub(crate) const FIXED_BYTES: usize = 1024;

    /// The texts of these documents: tokens and last uses. O(tokens).
    pub(crate) fn of<T: AsRef<[u32]>>(documents: &[(T, u64)]) -> Self {
        let mut texts = Self::default();
        for (tokens, last_use) in documents {
            texts.append(tokens.as_ref());
            texts.end_document(hash(tokens.as_ref()), *last_use);
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
        let found = self.by_hash.get(hash, |number| document(number).hash);
        let is_same = |document: &&Document| self.tokens(document) == tokens;
        let found = found.map(document).filter(is_same);
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

    /// Appends tokens to the document that has not ended.
    pub(crate) fn append(&mut self, tokens: &[u32]) {
        self.history.extend(tokens);
    }

    /// Ends the document whose last tokens were just appended, and all of whose tokens have this hash.
    pub(crate) fn end_document(&mut self, hash: u64, last_use: u64) {
        let start = self.documents.last().map_or(0, |document| document.end + 1);
        let end = u32::try_from(self.history.tokens().len()).expect("at most `MAX_BYTES`");
        let number = u32::try_from(self.documents.len()).expect("fewer than tokens");
        self.history.extend(&[History::BOUNDARY]);
        reserve(&mut self.documents, 1);
        self.documents.push(Document {
            start,
            end,
            hash,
            last_use: last_use.into(),
        });
        // Of two documents with one hash, the later one is found again.
        let documents = &self.documents;
        self.by_hash
            .replace(number, |number| documents[number as usize].hash);
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.history.num_bytes()
            + size_of::<Document>() * self.documents.capacity()
            + self.by_hash.num_bytes()
    }
}

/// The hash by which a document is found again.
pub(crate) fn hash(tokens: &[u32]) -> u64 {
    xxh3_64(bytemuck::cast_slice(tokens))
}
