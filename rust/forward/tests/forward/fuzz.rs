//! Files of each architecture that lie in some places: answered or rejected, within bounds of time and memory.
//!
//! A file is made by its own errors: a field or tensor that is missing is added, a shape that is wrong is corrected,
//! until the model loads. So every architecture that loads is covered, with the layout that its code reads.
//! `make fuzz` makes a thousand times as many, and checks the bounds. `SPECDS_FUZZ_FROM=N` begins with the file `N`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use specds_forward::gguf::Gguf;
use specds_forward::model::{CacheType, Config, Input, LoadOptions, Model, PassOptions};
use specds_forward::{Activations, Error, Instructions};

use crate::heap;

/// Number, weights and bytes of a block.
const TYPES: [(u32, u64, u64); 16] = [
    (0, 1, 4),
    (1, 1, 2),
    (2, 32, 18),
    (3, 32, 20),
    (6, 32, 22),
    (7, 32, 24),
    (8, 32, 34),
    (10, 256, 84),
    (11, 256, 110),
    (12, 256, 144),
    (13, 256, 176),
    (14, 256, 210),
    (20, 32, 18),
    (23, 256, 136),
    (30, 1, 2),
    (39, 32, 17),
];
/// Tensors that some files have, of the layers that may have them. Their shapes are corrected as those of others.
const OPTIONAL: [&str; 10] = [
    "attn_qkv.weight",
    "attn_q.bias",
    "attn_k.bias",
    "attn_v.bias",
    "attn_output.bias",
    "ffn_up.bias",
    "ffn_down_exps.bias",
    "exp_probs_b.bias",
    "attn_sinks.weight",
    "ffn_gate_up.weight",
];
/// The files of a layout.
const FILES: u64 = 5;
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
        let num_layers = random.pick(&[1_usize, 2, 4]);
        for (name, number) in [
            ("embedding_length", hidden),
            ("feed_forward_length", random.pick(&[32, 64, 96, 256])),
            ("block_count", num_layers as u64),
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
            ("rope.scaling.original_context_length", 32),
        ] {
            draft.set(format!("{architecture}.{name}"), number);
        }
        let float = |number: f32| (6, number.to_le_bytes().to_vec());
        if random.one_in(3) {
            let kind = random.pick(&["linear", "yarn", "longrope", "none"]);
            draft.fields.insert(format!("{architecture}.rope.scaling.type"), (8, text(kind)));
            draft.fields.insert(format!("{architecture}.rope.scaling.factor"), float(4.0));
        }
        if random.one_in(3) {
            draft.fields.insert(format!("{architecture}.attention.temperature_scale"), float(0.1));
        }
        if architecture.starts_with("gemma3n") || architecture.starts_with("gemma4") {
            let shared = random.below(num_layers) as u64;
            draft.set(format!("{architecture}.attention.shared_kv_layers"), shared);
            draft.set(format!("{architecture}.embedding_length_per_layer_input"), 32);
            draft.set(format!("{architecture}.altup.num_inputs"), random.pick(&[2, 3]));
            let cutoffs = (0..num_layers).map(|_| random.pick(&[1.5_f32, f32::NEG_INFINITY]));
            let list = [&6_u32.to_le_bytes()[..], &(num_layers as u64).to_le_bytes()].concat();
            let list = [list, cutoffs.flat_map(f32::to_le_bytes).collect()].concat();
            draft.fields.insert(format!("{architecture}.activation_sparsity_scale"), (9, list));
        }
        if random.one_in(2) {
            let window = random.pick(&[1, 2, 7, 64, 65]);
            draft.set(format!("{architecture}.attention.sliding_window"), window);
        }
        let vocab = random.pick(&[1, 3, 17, 40, 100]);
        draft.put("token_embd.weight", &[hidden, vocab], TYPES[0]);
        for name in ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"] {
            if random.one_in(8) {
                draft.put(name, &[size / 2], TYPES[0]);
            }
        }
        draft
    }

    /// Adds tensors that models need not have. Not all of them fit to each other.
    fn decorate(&mut self, random: &mut Random) {
        for name in OPTIONAL {
            if random.one_in(6) {
                self.put(&format!("blk.{}.{name}", random.below(2)), &[32], TYPES[0]);
            }
        }
        if random.one_in(3) {
            self.put("output.weight", &[32], TYPES[0]);
        }
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
        // "has the tensor NAME, which is not computed here"
        if let Some(at) = words.windows(3).position(|of| of == ["which", "is", "not"]) {
            self.tensors.retain(|of| of.name != words[at - 1]);
            return true;
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
        if self.tensors.is_empty() {
            self.put("", &[1], TYPES[0]);
        }
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

    /// The parts of a split file; the first one has the fields.
    fn parts(&self, random: &mut Random) -> Vec<Self> {
        let count = random.pick(&[2, 3, 5]);
        let mut parts = vec![Self { fields: self.fields.clone(), ..Self::default() }];
        parts.resize(count, Self::default());
        for tensor in &self.tensors {
            parts[random.below(count)].tensors.push(tensor.clone());
        }
        for (place, part) in parts.iter_mut().enumerate() {
            part.set("split.no".to_owned(), place as u64);
            part.set("split.count".to_owned(), count as u64);
            part.set("split.tensors.count".to_owned(), self.tensors.len() as u64);
        }
        parts
    }
}

/// Writes the files of a model, one or the parts of a split one, and returns their paths and bytes.
fn write_files(
    folder: &Path,
    draft: &ForgedFile,
    num_lies: usize,
    random: &mut Random,
) -> (Vec<PathBuf>, usize) {
    let mut drafts = vec![draft.clone()];
    if random.one_in(5) {
        drafts = draft.parts(random);
    }
    for _ in 0..num_lies {
        let place = random.below(drafts.len());
        drafts[place].lie(random);
    }
    let (mut paths, mut num_bytes) = (Vec::new(), 0);
    for (place, draft) in drafts.iter().enumerate() {
        let mut bytes = draft.bytes(random);
        if num_lies > 0 && random.one_in(10) {
            bytes.truncate(random.below(bytes.len()));
        }
        num_bytes += bytes.len();
        let path = folder.join(format!("m-{:05}-of-{:05}.gguf", place + 1, drafts.len()));
        fs::write(&path, bytes).unwrap();
        if num_lies > 0 && random.one_in(40) {
            fs::remove_file(&path).unwrap();
        }
        paths.push(path);
    }
    (paths, num_bytes)
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
    let mut cache = model.new_cache(2, random.pick(&[CacheType::Float32, CacheType::Float16]));
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

/// The resident memory of this process in bytes, now and at its most.
fn resident() -> [usize; 2] {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ["VmRSS:", "VmHWM:"].map(|name| {
        let mut rows = status.lines().filter_map(|row| row.strip_prefix(name));
        rows.next()
            .and_then(|row| row.trim().strip_suffix(" kB")?.parse().ok())
            .map_or(0, |kib: usize| kib << 10)
    })
}

/// Time and memory at the start of an answer.
struct Bounds {
    seconds: f64,
    heap: usize,
    resident: usize,
}

impl Bounds {
    fn begin() -> Self {
        // Where the system allows it, the most memory is forgotten.
        let _ = fs::write("/proc/self/clear_refs", "5");
        Self { seconds: cpu_seconds(), heap: heap::begin(), resident: resident()[0] }
    }

    fn check(&self, num_bytes: usize, what: &str) {
        let seconds = cpu_seconds() - self.seconds;
        assert!(seconds < MOST_SECONDS, "{what}: {seconds} s");
        let heap = heap::most() - self.heap.min(heap::most());
        let resident = resident()[1].saturating_sub(self.resident);
        let most = 4 * num_bytes + ALLOWED;
        assert!(heap.max(resident) < most, "{what}: {heap} and {resident} bytes");
    }
}

/// Makes a layout of an architecture, and returns whether its model loads.
fn grown(random: &mut Random, architecture: &str, folder: &Path) -> (ForgedFile, bool) {
    let mut draft = ForgedFile::new(random, architecture);
    if random.one_in(2) {
        draft.decorate(random);
    }
    let path = folder.join("m.gguf");
    for _ in 0..400 {
        fs::write(&path, draft.bytes(random)).unwrap();
        let file = Gguf::open(&path).map(Arc::new);
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
    let number = |name: &str| std::env::var(name).ok().map(|of| of.parse::<u64>().unwrap());
    let times = number("SPECDS_FUZZ").unwrap_or(1);
    let first = number("SPECDS_FUZZ_FROM").unwrap_or(0) / FILES * FILES;
    let has_bounds = number("SPECDS_FUZZ_BOUNDS").is_some();
    let folder = tempfile::tempdir().unwrap();
    let architectures: Vec<_> = Config::architectures().collect();
    let mut whole: BTreeMap<_, _> = architectures.iter().map(|&name| (name, 0)).collect();
    let mut layout = (ForgedFile::default(), false);
    for number in 0..150 * times {
        let number = first + number;
        let mut random = Random((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let place = usize::try_from(number / FILES).unwrap() % architectures.len();
        let architecture = architectures[place];
        if number.is_multiple_of(FILES) {
            let mut grow = || grown(&mut random, architecture, folder.path());
            layout = (0..8).map(|_| grow()).find(|of| of.1).unwrap_or_else(&mut grow);
            *whole.get_mut(architecture).unwrap() += u64::from(layout.1);
        }
        let (draft, is_whole) = &layout;
        let num_lies = random.pick(&[0, 1, 1, 1, 2]);
        let (paths, num_bytes) = write_files(folder.path(), draft, num_lies, &mut random);
        let what = format!("file {number}, of {architecture},");
        let bounds = Bounds::begin();
        let done = use_all(&random.pick(&paths), &mut random);
        if has_bounds {
            bounds.check(num_bytes, &what);
        }
        let is_answered = num_lies > 0 || !is_whole || done.is_ok();
        assert!(is_answered, "{what} is rejected: {done:?}");
        for path in paths {
            let _ = fs::remove_file(path);
        }
    }
    // The streams of Gemma 3n are of more shapes than errors correct.
    whole.remove("gemma3n");
    assert!(whole.values().all(|&number| number > 0), "{whole:?}");
}
