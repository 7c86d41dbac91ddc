//! Files of each architecture that lie in some places: answered or rejected, within bounds of time and memory.
//!
//! A file is made by its own errors: a field or tensor that is missing is added, a shape that is wrong is corrected,
//! until the model loads. So every architecture that loads is covered, with the layout that its code reads.
//! `make fuzz` makes a thousand times as many, and checks the bounds.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use specds_forward::gguf::Gguf;
use specds_forward::model::{Cache, CacheType, Input, LoadOptions, Model, PassOptions};
use specds_forward::{Activations, Error, Instructions};

use crate::heap;

const ARCHITECTURES: [&str; 15] = [
    "gemma3",
    "llama",
    "olmo2",
    "qwen2",
    "qwen3",
    "gpt-oss",
    "granitemoe",
    "olmoe",
    "qwen2moe",
    "qwen3moe",
    "lfm2",
    "lfm2moe",
    "qwen35",
    "qwen35moe",
    "qwen3next",
];
/// Number, weights and bytes of a block.
const TYPES: [(u32, u64, u64); 11] = [
    (0, 1, 4),
    (1, 1, 2),
    (2, 32, 18),
    (3, 32, 20),
    (6, 32, 22),
    (7, 32, 24),
    (8, 32, 34),
    (12, 256, 144),
    (13, 256, 176),
    (14, 256, 210),
    (30, 1, 2),
];
const MOST: u64 = u32::MAX as u64;
const ODD: [u64; 20] = [
    0,
    1,
    2,
    3,
    15,
    16,
    31,
    33,
    63,
    65,
    255,
    4097,
    1 << 20,
    1 << 24,
    1 << 31,
    MOST,
    1 << 40,
    1 << 62,
    1 << 63,
    u64::MAX,
];
/// The memory of any answer, besides four times the file.
const ALLOWED: usize = 48 << 20;
const MOST_SECONDS: f64 = 2.0;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }
}

fn text(of: &str) -> Vec<u8> {
    [&(of.len() as u64).to_le_bytes(), of.as_bytes()].concat()
}

#[derive(Clone)]
struct DraftTensor {
    name: String,
    dimensions: Vec<u64>,
    kind: (u32, u64, u64),
    /// A place that is not the one after the tensors before.
    offset: Option<u64>,
}

/// A file in the making.
#[derive(Clone, Default)]
struct ForgedFile {
    fields: BTreeMap<String, (u32, Vec<u8>)>,
    tensors: Vec<DraftTensor>,
}

impl ForgedFile {
    fn set(&mut self, key: String, number: u64) {
        self.fields.insert(key, (10, number.to_le_bytes().to_vec()));
    }

    fn new(random: &mut Random, architecture: &str) -> Self {
        let mut draft = Self::default();
        draft.fields.insert("general.architecture".to_owned(), (8, text(architecture)));
        let hidden = random.pick(&[32, 64, 96, 256]);
        let heads = random.pick(&[1, 2, 4]);
        let size = if heads == 1 { 32 } else { random.pick(&[16, 32, 48]) };
        let state = random.pick(&[16, 32]);
        for (name, number) in [
            ("embedding_length", hidden),
            ("feed_forward_length", random.pick(&[32, 64, 96, 256])),
            ("block_count", random.pick(&[1, 2, 4])),
            ("attention.head_count", heads),
            ("attention.head_count_kv", random.pick(&[1, heads])),
            ("attention.key_length", size),
            ("attention.value_length", size),
            ("expert_count", 4),
            ("ssm.time_step_rank", 2),
            ("ssm.group_count", random.pick(&[1, 2])),
            ("ssm.state_size", state),
            ("ssm.inner_size", 2 * state),
            ("context_length", 64),
        ] {
            draft.set(format!("{architecture}.{name}"), number);
        }
        if random.one_in(2) {
            let window = random.pick(&[1, 2, 7, 64, 65]);
            draft.set(format!("{architecture}.attention.sliding_window"), window);
        }
        let vocab = random.pick(&[1, 3, 17, 40, 100]);
        draft.put("token_embd.weight", &[hidden, vocab], TYPES[0]);
        draft
    }

    fn put(&mut self, name: &str, dimensions: &[u64], kind: (u32, u64, u64)) {
        self.tensors.retain(|of| of.name != name);
        let dimensions = dimensions.to_vec();
        self.tensors.push(DraftTensor { name: name.to_owned(), dimensions, kind, offset: None });
    }

    /// Adds or corrects what an error names. Returns false for other errors.
    fn follow(&mut self, random: &mut Random, error: &str) -> bool {
        let words: Vec<&str> =
            error.split_whitespace().map(|word| word.trim_end_matches([':', ';', ','])).collect();
        let after =
            |of: &str| words.iter().position(|word| *word == of).and_then(|at| words.get(at + 1));
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        if let Some(at) = words.windows(3).position(|of| of == ["has", "no", "tensor"]) {
            let name = words[at + 3];
            self.put(name, &[32], TYPES[0]);
            return self.tensors.len() < 200;
        }
        // "has NAME in 1 rows and 32 columns, not in ROWS rows and COLUMNS columns"
        if let Some(at) = words.windows(2).position(|of| of == ["not", "in"]) {
            let (Some(rows), Some(columns), Some(name)) =
                (number(at + 2), number(at + 5), after("has"))
            else {
                return false;
            };
            let is_vector = rows == 1;
            let kinds: Vec<_> = TYPES.iter().filter(|of| columns % of.1 == 0).copied().collect();
            let kind = if is_vector { TYPES[0] } else { random.pick(&kinds) };
            let shape = if is_vector { vec![columns] } else { vec![columns, rows] };
            self.put(name, &shape, kind);
            return rows.saturating_mul(columns) < 1 << 20;
        }
        // "KEY is not a number of this size"
        if let Some(at) = words.windows(3).position(|of| of == ["not", "a", "number"]) {
            let number = random.pick(&[1, 2, 2, 4, 16, 32]);
            self.set(words[at - 2].to_owned(), number);
            return true;
        }
        false
    }

    /// Changes one thing into a lie.
    fn lie(&mut self, random: &mut Random) {
        let at = random.below(self.tensors.len());
        let keys: Vec<String> = self.fields.keys().cloned().collect();
        let key = random.pick(&keys);
        match random.below(9) {
            0 | 1 => drop(self.fields.insert(key, value(random))),
            2 => drop(self.fields.remove(&key)),
            3 => {
                let known = [
                    "rope.freq_base",
                    "rope.scaling.type",
                    "rope.scaling.factor",
                    "attention.scale",
                    "final_logit_softcapping",
                    "attention.sliding_window_pattern",
                    "rope.dimension_count",
                    "attention.layer_norm_rms_epsilon",
                    "expert_used_count",
                ];
                let architecture = key.split('.').next().unwrap_or_default().to_owned();
                self.fields
                    .insert(format!("{architecture}.{}", random.pick(&known)), value(random));
            }
            4 => {
                let dimensions = &mut self.tensors[at].dimensions;
                let place = random.below(dimensions.len());
                dimensions[place] = random.pick(&ODD);
            }
            5 => {
                self.tensors[at].offset =
                    Some(if random.one_in(2) { random.pick(&ODD) } else { random.next() % 9000 });
            }
            6 => {
                self.tensors[at].kind.0 =
                    random.pick(&[0, 1, 2, 4, 8, 9, 10, 12, 14, 15, 20, 30, 39, 255, u32::MAX]);
            }
            7 if random.one_in(2) => drop(self.tensors.remove(at)),
            7 => {
                let names = [
                    "rope_angles.weight",
                    "rope_freqs.weight",
                    "rope_angles_swa.weight",
                    "",
                    "blk.9.attn_q.weight",
                ];
                let mut copy = self.tensors[at].clone();
                copy.name = random.pick(&names).into();
                self.tensors.push(copy);
            }
            _ => self.tensors[at].dimensions.push(random.pick(&ODD)),
        }
        if self.tensors.is_empty() {
            self.put("", &[1], TYPES[0]);
        }
        if random.one_in(12) {
            self.tensors.iter_mut().for_each(|of| of.offset = Some(0));
        }
    }

    fn bytes(&self, random: &mut Random) -> Vec<u8> {
        let number = |of: usize| (of as u64).to_le_bytes();
        let mut bytes =
            [&b"GGUF\x03\0\0\0"[..], &number(self.tensors.len()), &number(self.fields.len())]
                .concat();
        for (key, (kind, value)) in &self.fields {
            bytes.extend([&text(key)[..], &kind.to_le_bytes(), value].concat());
        }
        let mut end = 0_u64;
        for of in &self.tensors {
            let length = of.dimensions.iter().fold(1_u64, |all, &size| all.saturating_mul(size));
            let length = (length / of.kind.1).saturating_mul(of.kind.2);
            bytes.extend(text(&of.name));
            bytes.extend(u32::try_from(of.dimensions.len()).unwrap().to_le_bytes());
            bytes.extend(of.dimensions.iter().flat_map(|size| size.to_le_bytes()));
            bytes.extend(of.kind.0.to_le_bytes());
            bytes.extend(of.offset.unwrap_or(end).to_le_bytes());
            let next = end.saturating_add(length).saturating_add(31) / 32 * 32;
            end = if next < 1 << 22 { next } else { end };
        }
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        let filling =
            random.pick(&[Some(0), Some(0xff), Some(0x7f), Some(0x2c), Some(0x3c), None, None]);
        bytes.extend((0..end).map(|_| filling.unwrap_or_else(|| random.next().to_le_bytes()[0])));
        bytes
    }
}

/// A value of any kind.
fn value(random: &mut Random) -> (u32, Vec<u8>) {
    let odd = random.pick(&ODD).to_le_bytes();
    let floats = [0.0, -0.0, 1.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-45, 3e38];
    match random.below(7) {
        0 => (10, odd.to_vec()),
        1 => (11, odd.to_vec()),
        2 => (4, odd[..4].to_vec()),
        3 => (6, random.pick(&floats).to_le_bytes().to_vec()),
        4 => (8, text(random.pick(&["llama", "qwen3", "", "linear", "yarn", "none"]))),
        5 => {
            let number = random.pick(&[0_u64, 1, 2, 4]);
            let kind = random.pick(&[4_u32, 7]);
            let width = if kind == 4 { 4 } else { 1 };
            let values = (0..number * width).map(|_| u8::from(random.one_in(2)));
            (
                9,
                [&kind.to_le_bytes()[..], &number.to_le_bytes(), &values.collect::<Vec<_>>()]
                    .concat(),
            )
        }
        _ => (u32::try_from(random.below(20)).unwrap(), vec![0; 8]),
    }
}

/// Opens a file, loads its model and runs random passes.
fn use_all(path: &Path, random: &mut Random) -> Result<usize, Error> {
    let file = Arc::new(Gguf::open(path)?);
    file.num_weights();
    for name in file.tensor_names() {
        if let Ok(Some(tensor)) = file.tensor(name) {
            drop(tensor.numbers());
        }
    }
    let options = LoadOptions { num_threads: random.below(4), ..LoadOptions::default() };
    let model = Model::load(file, random.pick(&Instructions::available()), options)?;
    let vocab = u32::try_from(model.config.vocab_size).unwrap();
    let mut cache = Cache::new(&model, 2, random.pick(&[CacheType::Float32, CacheType::Float16]));
    let mut num_passes = 0;
    for _ in 0..4 {
        let number = random.pick(&[1_usize, 2, 5, 9, 70]);
        let is_wrong = random.one_in(12);
        let tokens: Vec<u32> = (0..number)
            .map(|_| {
                if is_wrong {
                    random.pick(&[vocab, u32::MAX, 0])
                } else {
                    u32::try_from(random.next() % u64::from(vocab.max(1))).unwrap()
                }
            })
            .collect();
        let is_chain = random.one_in(3);
        let parents: Vec<i32> = (0..i32::try_from(number).unwrap())
            .map(|at| match () {
                () if random.one_in(60) => random.pick(&[-2, at, 1 << 30, i32::MIN]),
                () if is_chain => at - 1,
                () => i32::try_from(random.next() % (u64::try_from(at).unwrap() + 1)).unwrap() - 1,
            })
            .collect();
        let parents = (!random.one_in(3)).then_some(&parents[..]);
        let row = random.pick(&[0, 0, 0, 1, 1, 1, 5]);
        let input = Input { row, tokens: &tokens, parents, num_logits: random.below(number + 2) };
        let other = Input { row: 1, tokens: &tokens[..1], parents: None, num_logits: 1 };
        let inputs = if random.one_in(3) { vec![input, other] } else { vec![input] };
        let activations = random.pick(&[Activations::Float32, Activations::Int8]);
        let options =
            PassOptions { activations, num_threads: random.below(4), ..PassOptions::default() };
        if model.forward(&mut cache, &inputs, options).is_err() {
            continue;
        }
        num_passes += 1;
        let path: Vec<usize> = if random.one_in(2) {
            (0..random.below(number + 1)).collect()
        } else {
            (0..number).filter(|_| random.one_in(2)).collect()
        };
        let _ = cache.commit(row, &path);
        if random.one_in(3) {
            let length = cache.length(row).unwrap_or(0);
            let _ = cache.truncate(row, random.below(length + 2));
        }
        if random.one_in(4) {
            let states = cache.states(row).unwrap_or_default();
            let _ = cache.append(1, &states[..states.len().saturating_sub(random.below(3))]);
        }
    }
    Ok(num_passes)
}

/// The seconds of this process on all processors.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn grown(random: &mut Random, architecture: &str, path: &Path) -> (ForgedFile, bool) {
    let mut draft = ForgedFile::new(random, architecture);
    for _ in 0..400 {
        fs::write(path, draft.bytes(random)).unwrap();
        let file = Gguf::open(path).map(Arc::new);
        let loaded = file.and_then(|file| {
            Model::load(file, Instructions::available()[0], LoadOptions::default())
        });
        match loaded {
            Ok(_) => return (draft, true),
            Err(error) if !draft.follow(random, &error.to_string()) => break,
            Err(_) => {}
        }
    }
    (draft, false)
}

#[test]
fn models_with_lies_are_answered_or_rejected() {
    let times = std::env::var("SPECDS_FUZZ").ok().map(|times| times.parse::<u64>().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut whole = BTreeMap::from(ARCHITECTURES.map(|name| (name, 0)));
    for seed in 0..45 * times.unwrap_or(1) {
        let mut random = Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let architecture = ARCHITECTURES[usize::try_from(seed).unwrap() % ARCHITECTURES.len()];
        let path = folder.path().join("m.gguf");
        let (mut draft, is_whole) = grown(&mut random, architecture, &path);
        *whole.get_mut(architecture).unwrap() += u64::from(is_whole);
        let num_lies = random.pick(&[0, 0, 1, 1, 2]);
        for _ in 0..num_lies {
            draft.lie(&mut random);
        }
        let mut bytes = draft.bytes(&mut random);
        if num_lies > 0 && random.one_in(10) {
            bytes.truncate(random.below(bytes.len()));
        }
        fs::write(&path, &bytes).unwrap();
        let (start, before) = (cpu_seconds(), heap::begin());
        let done = use_all(&path, &mut random);
        let most = heap::most() - before.min(heap::most());
        if times.is_some() {
            assert!(cpu_seconds() - start < MOST_SECONDS, "seed {seed}: {architecture}");
            assert!(most < 4 * bytes.len() + ALLOWED, "seed {seed}: {architecture}: {most} bytes");
        }
        let is_answered = num_lies > 0 || !is_whole || done.is_ok();
        assert!(is_answered, "seed {seed}: {architecture} is rejected");
    }
    assert!(whole.values().all(|&number| number > 0), "{whole:?}");
}
