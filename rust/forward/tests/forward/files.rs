//! Files that are cut, forged or no GGUF: an error of one sentence, and no more memory than the file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use specds_forward::gguf::{Gguf, Value};
use specds_forward::model::{CacheType, Input, LoadOptions, Model, PassOptions, Watch};
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
    let mut cache = model.new_cache(1, CacheType::default());
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
        let options = LoadOptions { num_threads, watch: Some(&watch), ..LoadOptions::default() };
        let model = Model::load(Arc::clone(&gguf), Instructions::available()[0], options).unwrap();
        assert_eq!(watch.num_expected(), model.num_bytes);
    }
    assert_eq!(watch.num_done(), 2 * watch.num_expected());
    watch.stop();
    let options = LoadOptions { num_threads: 2, watch: Some(&watch), ..LoadOptions::default() };
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
        (&[32], 16, 0, "in the type IQ2_XXS"),
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

#[test]
fn tensors_that_overlap_are_refused() {
    for (offsets, reason) in [
        ([0, 128], ""),
        ([128, 0], ""),
        ([0, 96], "a and b overlap"),
        ([128, 64], "b and a overlap"),
        ([0, 0], "a and b overlap"),
    ] {
        let tables =
            [tensor("a", &[32], 0, offsets[0]), tensor("b", &[32], 0, offsets[1])].concat();
        let opened = Gguf::open(file(&[header(2, 0), tables, vec![0; 300]].concat()));
        match opened {
            Ok(gguf) => assert!(reason.is_empty() && gguf.num_weights() == 64),
            Err(error) => {
                let error = error.to_string();
                assert!(!reason.is_empty() && error.contains(reason), "{error}");
            }
        }
    }
}

#[test]
fn number_of_weights_does_not_overflow() {
    let tables = [tensor("a", &[u64::MAX], 99, 0), tensor("b", &[u64::MAX], 99, 64)].concat();
    let file = file(&[header(2, 0), tables, vec![0; 300]].concat());
    assert_eq!(Gguf::open(&file).unwrap().num_weights(), u64::MAX);
}

#[test]
fn metadata_take_memory_in_proportion_to_the_file() {
    let values = vec![1; 8 << 20];
    let file = file(&[header(0, 1), field("k", 9, &array(0, 8 << 20, &values))].concat());
    let error = Gguf::open(&file).unwrap_err().to_string();
    assert!(error.contains("takes more memory"), "{error}");
}

/// Writes the parts of a model, each with the fields of a split and some tensors, and returns their paths.
fn parts(folder: &Path, fields: &[[Option<u16>; 3]], tensors: &[&[&str]]) -> Vec<PathBuf> {
    let count = tensors.len();
    let path = |number: usize| folder.join(format!("m-{:05}-of-{count:05}.gguf", number + 1));
    for (number, (fields, names)) in fields.iter().zip(tensors).enumerate() {
        let keys = ["split.no", "split.count", "split.tensors.count"];
        let fields = keys.iter().zip(fields).filter_map(|(key, value)| Some((key, (*value)?)));
        let fields: Vec<_> =
            fields.map(|(key, value)| field(key, 2, &value.to_le_bytes())).collect();
        let tables = (0_u64..).zip(*names).map(|(at, name)| tensor(name, &[8], 0, at * 32));
        let tables: Vec<_> = tables.collect();
        let header = header(names.len() as u64, fields.len() as u64);
        let mut bytes = [header, fields.concat(), tables.concat()].concat();
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        let weights = names.iter().flat_map(|name| [name.len() as f32; 8]);
        bytes.extend(weights.flat_map(f32::to_le_bytes));
        fs::write(path(number), bytes).unwrap();
    }
    (0..count).map(path).collect()
}

#[test]
fn split_file_is_opened_by_any_part() {
    let folder = tempfile::tempdir().unwrap();
    let fields = [0, 1, 2].map(|number| [Some(number), Some(3), Some(4)]);
    let names = [&["a"][..], &[], &["bb", "ccc", "dddd"]];
    let paths = parts(folder.path(), &fields, &names);
    for path in &paths {
        let gguf = Gguf::open(path).unwrap();
        assert_eq!(gguf.num_weights(), 32);
        for (name, value) in [("a", 1.0), ("bb", 2.0), ("ccc", 3.0), ("dddd", 4.0)] {
            assert_eq!(gguf.tensor(name).unwrap().unwrap().numbers(), [value; 8]);
        }
    }
    let error = |path: &Path| Gguf::open(path).unwrap_err().to_string();
    fs::rename(&paths[1], folder.path().join("other")).unwrap();
    for path in [&paths[0], &paths[2]] {
        let error = error(path);
        assert!(error.contains("m-00002-of-00003.gguf is missing"), "{error}");
    }
    let renamed = folder.path().join("model.gguf");
    fs::rename(&paths[2], &renamed).unwrap();
    assert!(error(&renamed).contains("does not end in -00003-of-00003.gguf"));
}

#[test]
fn parts_of_different_files_are_refused() {
    let whole = [[Some(0), Some(2), Some(2)], [Some(1), Some(2), Some(2)]];
    for (place, key, value, names, reason) in [
        (1, 0, Some(0), ["a", "b"], "does not belong"),
        (1, 1, Some(3), ["a", "b"], "does not belong"),
        (1, 2, Some(3), ["a", "b"], "does not belong"),
        (1, 1, None, ["a", "b"], "does not belong"),
        (0, 0, Some(0), ["a", "a"], "earlier part has its tensor a"),
        (0, 0, Some(2), ["a", "b"], "split.no is not a number of this size"),
        (0, 1, Some(u16::MAX), ["a", "b"], "does not end in -00001-of-65535.gguf"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut fields = whole;
        fields[place][key] = value;
        let paths = parts(folder.path(), &fields, &[&names[..1], &names[1..]]);
        let error = Gguf::open(&paths[0]).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let fields = [0, 1].map(|number| [Some(number), Some(2), Some(3)]);
    let paths = parts(folder.path(), &fields, &[&["a"], &["b"]]);
    let error = Gguf::open(&paths[1]).unwrap_err().to_string();
    assert!(error.contains("2 tensors instead of 3"), "{error}");
}

/// Replaces a text of the same length in a whole model.
fn replaced(from: &str, to: &str) -> String {
    let mut bytes = model();
    let from = from.as_bytes();
    let place = bytes.windows(from.len()).position(|of| of == from).unwrap();
    bytes[place..place + from.len()].copy_from_slice(to.as_bytes());
    use_all(&file(&bytes)).unwrap_err().to_string()
}

#[test]
fn missing_tensors_are_named_with_the_layout_that_the_file_seems_to_have() {
    for (from, to, reason) in [
        ("blk.0.attn_k.weight", "blk.0.attn_x.weight", "has no tensor blk.0.attn_k.weight"),
        ("blk.0.ffn_down.weight", "blk.0.ffn_up.0.weight", "each expert in tensors of its own"),
        ("blk.0.attn_output.weight", "model.layers.0.self_attn", "the names of transformers"),
    ] {
        let to = &to[..from.len()];
        let error = replaced(from, to);
        assert!(error.contains(reason) && !error.contains("download"), "{error}");
    }
}
