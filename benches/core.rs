//! Times of builds, lookups and drafts on the Python standard library, or on the Python files below the
//! folder that `SPECDS_BENCH_CORPUS` names.

#![expect(clippy::print_stdout, reason = "the figures")]

use std::collections::HashMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use std::{env, fs};

use specds_core::draft::{DraftLimits, Session, TokenTree};
use specds_core::papers::rest::{RestConfig, RestSession};
use specds_index::{Datastore, DatastoreBuilder, DatastoreOptions, MAX_SHARD_TOKENS};
use tempfile::TempDir;

const VOCAB_SIZE: u32 = u16::MAX as u32;
const SEPARATOR: u32 = VOCAB_SIZE;
const HELD_OUT: usize = 50;
const MAX_NODES: usize = 64;

static CORPUS: LazyLock<BenchCorpus> = LazyLock::new(BenchCorpus::read);
static BUILT: LazyLock<Built> = LazyLock::new(|| Built::new(MAX_SHARD_TOKENS));

fn main() {
    print_build();
    print_lookups();
    print_replays();
}

/// Token ids of files: every 50th is held out, to draft for.
struct BenchCorpus {
    documents: Vec<Vec<u32>>,
    held_out: Vec<Vec<u32>>,
}

impl BenchCorpus {
    fn read() -> Self {
        let mut paths = Vec::new();
        collect(&corpus_folder(), &mut paths);
        paths.sort();
        let texts: Vec<_> = paths.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
        let vocabulary = vocabulary(&texts);
        let id = |word| vocabulary.get(word).copied().unwrap_or(VOCAB_SIZE - 1);
        let documents = texts.iter().map(|text| words(text).map(id).collect()).enumerate();
        let (held_out, documents): (Vec<_>, Vec<_>) =
            documents.partition(|(index, _)| index % HELD_OUT == 0);
        let files = |found: Vec<(_, _)>| found.into_iter().map(|(_, file)| file).collect();
        let (documents, held_out) = (files(documents), files(held_out));
        Self { documents, held_out }
    }

    fn num_tokens(&self) -> usize {
        let lengths = self.documents.iter().map(|document| document.len() + 1);
        lengths.sum()
    }
}

fn corpus_folder() -> PathBuf {
    if let Some(folder) = env::var_os("SPECDS_BENCH_CORPUS") {
        return folder.into();
    }
    let program = "import sysconfig; print(sysconfig.get_path('stdlib'), end='')";
    let output = Command::new("python3").args(["-c", program]).output();
    let output = output.expect("python3 must run: its standard library is the corpus");
    String::from_utf8(output.stdout).expect("UTF-8").into()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder").flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        if kind.is_ok_and(|kind| kind.is_dir()) {
            if !path.ends_with("site-packages") {
                collect(&path, paths);
            }
        } else if path.extension().is_some_and(|extension| extension == "py") {
            paths.push(path);
        }
    }
}

/// Identifiers, numbers, runs of white space, and single other characters.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let class = |c: char| match c {
        'A'..='Z' | 'a'..='z' | '_' => 0,
        '0'..='9' => 1,
        c if c.is_whitespace() => 2,
        _ => 3,
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = class(rest.chars().next()?);
        let is_end = |(index, c): &(usize, char)| *index > 0 && (first == 3 || class(*c) != first);
        let end = rest.char_indices().find(is_end);
        let (word, after) = rest.split_at(end.map_or(rest.len(), |(index, _)| index));
        rest = after;
        Some(word)
    })
}

/// Ids by frequency; the last one is for all words beyond.
fn vocabulary(texts: &[String]) -> HashMap<&str, u32> {
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for word in texts.iter().flat_map(|text| words(text)) {
        *counts.entry(word).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|&(word, count)| (std::cmp::Reverse(count), word));
    let words = counts.into_iter().map(|(word, _)| word);
    words.zip(0..VOCAB_SIZE - 1).collect()
}

struct Built {
    datastore: Arc<Datastore>,
    elapsed: Duration,
    _folder: TempDir,
}

impl Built {
    fn new(max_shard_tokens: u64) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let start = Instant::now();
        let datastore = Arc::new(build(&folder.path().join("datastore"), max_shard_tokens));
        Self { datastore, elapsed: start.elapsed(), _folder: folder }
    }
}

fn build(path: &Path, max_shard_tokens: u64) -> Datastore {
    let options = DatastoreOptions {
        max_shard_tokens: Some(max_shard_tokens),
        ..DatastoreOptions::new(VOCAB_SIZE, SEPARATOR)
    };
    let mut builder = DatastoreBuilder::create(path, options).expect("a new datastore");
    for document in &CORPUS.documents {
        builder.add_document(document).expect("room on the disk");
    }
    builder.finish().expect("a datastore")
}

fn print_build() {
    let num_tokens = CORPUS.num_tokens() as f64;
    let seconds = BUILT.elapsed.as_secs_f64();
    let bytes_per_token = BUILT.datastore.num_bytes() as f64 / num_tokens;
    let (millions, num_files) = (num_tokens / 1e6, CORPUS.documents.len());
    let rate = millions / seconds;
    println!("corpus: {millions:.1} M tokens in {num_files} files");
    println!("build: {seconds:.2} s, {rate:.1} M tokens a second");
    println!("size: {bytes_per_token:.3} bytes a token");
}

/// Mean times of opening the datastore, and of looking up a thousand contexts that the caches of the processor have.
fn print_lookups() {
    let (path, most) = (BUILT.datastore.path(), RestConfig::default().max_match);
    let start = Instant::now();
    (0..100).for_each(|_| drop(Datastore::open(path).expect("a datastore")));
    let open_us = start.elapsed().as_secs_f64() * 1e4;
    let contexts = CORPUS.held_out.iter().flat_map(|file| file.windows(most)).take(1000);
    let start = Instant::now();
    for context in contexts.cycle().take(10_000) {
        black_box(BUILT.datastore.lookup(context, most, 1).expect("known tokens"));
    }
    let lookup_us = start.elapsed().as_secs_f64() * 1e2;
    println!("open: {open_us:.0} µs, look up: {lookup_us:.2} µs");
}

/// Times of drafts over held-out files, from one shard and from several.
fn print_replays() {
    println!("draft, {MAX_NODES} nodes, in µs:");
    print_replay(&BUILT.datastore);
    for num_shards in [4, 16] {
        let built = Built::new(CORPUS.num_tokens() as u64 / num_shards + (1 << 16));
        print_replay(&built.datastore);
    }
}

/// Each time is the best of five passes: others use the machine too.
fn print_replay(datastore: &Arc<Datastore>) {
    let (mut times, trees) = replay(datastore);
    for _ in 0..4 {
        let (again, _) = replay(datastore);
        let pairs = times.into_iter().zip(again);
        times = pairs.map(|(time, again)| time.min(again)).collect();
    }
    times.sort_unstable();
    let percentile = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
    let (p50, p90, p99) = (percentile(50), percentile(90), percentile(99));
    let mean = times.iter().sum::<Duration>().as_secs_f64() * 1e6 / times.len() as f64;
    let num_emitted: usize = trees.iter().map(|(_, num_accepted)| num_accepted + 1).sum();
    println!(
        "  {:>2} shards: p50 {p50:5.1}, p90 {p90:6.1}, p99 {p99:6.1}, mean {mean:5.1}; {:.2} tokens a draft, bonus included",
        datastore.manifest().shards.len(),
        num_emitted as f64 / trees.len() as f64,
    );
}

fn session(datastore: &Arc<Datastore>) -> RestSession {
    RestSession::new(Arc::clone(datastore), RestConfig::default()).expect("the defaults")
}

/// Drafts as a decoder would: observes the accepted tokens and one more. Gives the time of each
/// draft, and each tree with the number of its tokens that were accepted.
fn replay(datastore: &Arc<Datastore>) -> (Vec<Duration>, Vec<(TokenTree, usize)>) {
    let mut times = Vec::new();
    let mut trees = Vec::new();
    for file in &CORPUS.held_out {
        let mut session = session(datastore);
        let (prompt, mut answer) = file.split_at(file.len() / 2);
        session.observe(prompt, None).expect("known tokens");
        for _ in 0..25 {
            let start = Instant::now();
            let tree = session.draft(DraftLimits::nodes(MAX_NODES)).expect("a draft");
            times.push(start.elapsed());
            let num_accepted = num_accepted(&tree, answer);
            let (emitted, rest) = answer.split_at(answer.len().min(num_accepted + 1));
            session.observe(emitted, None).expect("known tokens");
            trees.push((tree, num_accepted));
            answer = rest;
        }
    }
    (times, trees)
}

fn num_accepted(tree: &TokenTree, tokens: &[u32]) -> usize {
    let mut last = -1;
    let mut depth = 0;
    for (node, (&token, &parent)) in (0..).zip(tree.token_ids().iter().zip(tree.parents())) {
        if parent == last && tokens.get(depth) == Some(&token) {
            (last, depth) = (node, depth + 1);
        }
    }
    depth
}
