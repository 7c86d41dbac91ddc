//! Files that are cut, forged or no GGUF: an error of one sentence, and no more memory than the file.

use std::fs;
use std::sync::Arc;

use specds_forward::gguf::{Gguf, Value};
use specds_forward::model::{Cache, Input, LoadOptions, Model, PassOptions, Watch};
use specds_forward::{Error, Instructions};
use tempfile::NamedTempFile;

fn text(of: &str) -> Vec<u8> {
    [&(of.len() as u64).to_le_bytes(), of.as_bytes()].concat()
}

fn field(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(key), &kind.to_le_bytes()[..], value].concat()
}

fn array(kind: u32, length: u64, values: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &length.to_le_bytes(), values].concat()
}

fn header(num_tensors: u64, num_fields: u64) -> Vec<u8> {
    [&b"GGUF\x03\0\0\0"[..], &num_tensors.to_le_bytes(), &num_fields.to_le_bytes()].concat()
}

fn tensor(name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let number = u32::try_from(dimensions.len()).unwrap();
    let sizes: Vec<u8> = dimensions.iter().flat_map(|size| size.to_le_bytes()).collect();
    let places = [&kind.to_le_bytes()[..], &offset.to_le_bytes()].concat();
    [text(name), number.to_le_bytes().to_vec(), sizes, places].concat()
}

fn file(bytes: &[u8]) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    file
}

fn error(bytes: &[u8]) -> String {
    Gguf::open(file(bytes)).expect_err("a damaged file").to_string()
}

/// A whole model of one layer, with weights in `Q4_0`.
fn model() -> Vec<u8> {
    let sizes = ["embedding_length", "feed_forward_length", "block_count", "attention.head_count"];
    let mut bytes = header(11, 5 + sizes.len() as u64);
    bytes.extend(field("general.architecture", 8, &text("llama")));
    for (key, size) in sizes.into_iter().zip([32_u32, 32, 1, 2]) {
        bytes.extend(field(&format!("llama.{key}"), 4, &size.to_le_bytes()));
    }
    bytes.extend(field("tokenizer.ggml.tokens", 9, &array(8, 2, &[text("a"), text("b")].concat())));
    bytes.extend(field("tokenizer.ggml.scores", 9, &array(6, 2, &[0; 8])));
    bytes.extend(field("tokenizer.ggml.added", 9, &array(7, 2, &[0, 1])));
    bytes.extend(field("large", 10, &u64::MAX.to_le_bytes()));
    let mut offset = 0;
    let mut put = |name: &str, rows: u64| {
        let (name, place) = (format!("{name}.weight"), offset);
        offset += if rows == 0 { 128 } else { (rows * 18).next_multiple_of(32) };
        bytes.extend(match rows {
            0 => tensor(&name, &[32], 0, place),
            rows => tensor(&name, &[32, rows], 2, place),
        });
    };
    put("token_embd", 40);
    put("output_norm", 0);
    for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
        put(&format!("blk.0.{name}"), 32);
    }
    put("blk.0.attn_norm", 0);
    put("blk.0.ffn_norm", 0);
    let end = bytes.len().next_multiple_of(32) + usize::try_from(offset).unwrap();
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.resize(end, 0x2c);
    bytes
}

/// Opens a file, loads its model and runs it.
fn use_all(file: &NamedTempFile) -> Result<(), specds_forward::Error> {
    let gguf = Arc::new(Gguf::open(file)?);
    for name in gguf.tensor_names() {
        let _ = gguf.tensor(name);
    }
    let model = Model::load(gguf, Instructions::available()[0], LoadOptions::default())?;
    let mut cache = Cache::new(&model, 1);
    let input = Input { row: 0, tokens: &[1, 2, 3], parents: None, num_logits: 3 };
    let logits = model.forward(&mut cache, &[input], PassOptions::default())?;
    assert_eq!(logits.len(), 3 * model.config.vocab_size);
    Ok(())
}

#[test]
fn whole_file_is_read() {
    let file = file(&model());
    use_all(&file).unwrap();
    let gguf = Gguf::open(&file).unwrap();
    let list = |key: &str| match &gguf.metadata[key] {
        Value::List(values) => values.clone(),
        other => vec![other.clone()],
    };
    assert_eq!(list("tokenizer.ggml.tokens"), ["a", "b"].map(|of| Value::Text(of.to_owned())));
    assert_eq!(list("tokenizer.ggml.scores"), [Value::Float(0.0), Value::Float(0.0)]);
    assert_eq!(list("tokenizer.ggml.added"), [Value::Bool(false), Value::Bool(true)]);
    assert_eq!(list("large"), [Value::Uint(u64::MAX)]);
}

#[test]
fn loading_counts_bytes_and_can_be_stopped() {
    let gguf = Arc::new(Gguf::open(file(&model())).unwrap());
    let watch = Watch::default();
    for num_threads in [1, 3] {
        let options = LoadOptions { num_threads, watch: Some(&watch) };
        let model = Model::load(Arc::clone(&gguf), Instructions::available()[0], options).unwrap();
        assert_eq!(watch.num_expected(), model.num_bytes);
    }
    assert_eq!(watch.num_done(), 2 * watch.num_expected());
    watch.stop();
    let options = LoadOptions { num_threads: 2, watch: Some(&watch) };
    let stopped = Model::load(gguf, Instructions::available()[0], options).unwrap_err();
    assert!(matches!(stopped, Error::Stopped));
}

#[test]
fn forged_lengths_are_refused() {
    let deep = [1_u32.to_le_bytes(); 3].concat();
    for (bytes, reason) in [
        (vec![], "not a GGUF file"),
        (b"GGUF".to_vec(), "not a GGUF file"),
        ([b"GGUF".as_slice(), &[0, 0, 0, 3], &[0; 16]].concat(), "not a GGUF file"),
        (header(0, u64::MAX), "cannot follow"),
        (header(u64::MAX, 0), "cannot follow"),
        ([header(0, 1), u64::MAX.to_le_bytes().to_vec(), vec![0; 20]].concat(), "cannot follow"),
        ([header(0, 1), field("k", 9, &array(8, u64::MAX, &[]))].concat(), "cannot follow"),
        ([header(0, 1), field("k", 9, &array(12, 30, &[0; 30]))].concat(), "cut off"),
        ([header(0, 1), field("k", 9, &array(9, 1, &deep))].concat(), "array of arrays"),
        ([header(0, 1), field("k", 77, &[])].concat(), "unknown kind 77"),
        ([header(0, 1), field("k", 9, &array(77, 1, &[1]))].concat(), "unknown kind 77"),
        ([header(0, 2), field("k", 7, &[1]), field("k", 7, &[1])].concat(), "two fields"),
        ([header(1, 0), tensor("t", &[1; 5], 0, 0)].concat(), "5 dimensions"),
        ([header(1, 0), tensor("t", &[1, u64::MAX, 2], 0, 0)].concat(), "too large"),
        ([header(2, 0), tensor("t", &[1], 0, 0), tensor("t", &[1], 0, 0)].concat(), "two tensors"),
        ([header(0, 1), field("general.alignment", 4, &[0; 4])].concat(), "not an alignment"),
    ] {
        let error = error(&bytes);
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn tensors_outside_of_the_file_are_refused() {
    for (dimensions, kind, offset, reason) in [
        (&[4_u64][..], 0, u64::MAX, "not all in the file"),
        (&[1 << 40, 1 << 20], 0, 0, "not all in the file"),
        (&[u64::MAX], 0, 0, "part of a block"),
        (&[33], 2, 0, "part of a block"),
        (&[32], 10, 0, "in the type Q2_K"),
        (&[32], 99, 0, "in the type 99"),
    ] {
        let file =
            file(&[header(1, 0), tensor("t", dimensions, kind, offset), vec![0; 64]].concat());
        // What lies outside of the file is refused at once, the rest when it is asked for.
        let opened = Gguf::open(&file).and_then(|gguf| gguf.tensor("t").map(drop));
        let error = opened.expect_err("a tensor outside of the file").to_string();
        let is_size = error.contains("is not all in the file") && reason == "part of a block";
        assert!(error.contains(reason) || is_size, "{error}");
    }
}

#[test]
fn cut_files_are_refused() {
    let whole = model();
    for length in (0..whole.len()).step_by(if cfg!(debug_assertions) { 13 } else { 1 }) {
        assert!(use_all(&file(&whole[..length])).is_err(), "{length} of {}", whole.len());
    }
}

#[test]
fn damaged_files_are_answered_or_refused() {
    let times: u64 = std::env::var("SPECDS_FUZZ").map_or(1, |times| times.parse().unwrap());
    let whole = model();
    let mut state = 1_u64;
    let mut below = |limit: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % limit
    };
    for _ in 0..2000 * times {
        let mut bytes = whole.clone();
        for _ in 0..=below(4) {
            let limit = if below(4) > 0 { 1200 } else { bytes.len() };
            let place = below(limit);
            match below(3) {
                0 => bytes[place] ^= 1 << below(8),
                1 => bytes[place] = u8::try_from(below(256)).unwrap(),
                _ => {
                    let word = [0, 1, u64::MAX, 1 << 31, 1 << 40, 1 << 63][below(6)];
                    let end = bytes.len().min(place + 8);
                    bytes[place..end].copy_from_slice(&word.to_le_bytes()[..end - place]);
                }
            }
        }
        let _ = use_all(&file(&bytes));
    }
}

#[test]
fn sparse_files_take_no_memory() {
    let file = file(&[header(0, 1), field("k", 9, &array(9, 16 << 20, &[]))].concat());
    file.as_file().set_len(1 << 40).unwrap();
    assert!(Gguf::open(&file).is_err());
    assert!(Gguf::open(std::env::temp_dir()).is_err());
}
