//! Panics of a pass, as a defect would cause them: the next pass computes what it computes without one.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{CacheType, Input, LoadOptions, Model, PassOptions};
use crate::gguf::blocks::BlockType;
use crate::gguf::bytes::Bytes;
use crate::gguf::file::{Gguf, Tensor};
use crate::gguf::reader::Value;
use crate::kernel::packed::PackedMatrix;
use crate::simd::instructions::Instructions;

const HIDDEN: usize = 64;
const VOCAB: usize = 2000;

fn model() -> Model {
    let tensor = |rows: usize, columns: usize| {
        let weight = |place: usize| ((place * 37 % 101) as f32 - 50.0) / 400.0;
        let bytes =
            (0..rows * columns).flat_map(|place| weight(place).to_le_bytes()).collect::<Vec<_>>();
        Tensor { kind: BlockType::F32, rows, columns, bytes: Bytes::new(bytes) }
    };
    let mut fields =
        BTreeMap::from([("general.architecture".to_owned(), Value::Text("llama".to_owned()))]);
    for (name, size) in [
        ("embedding_length", 64),
        ("feed_forward_length", 64),
        ("block_count", 2),
        ("attention.head_count", 2),
    ] {
        fields.insert(format!("llama.{name}"), Value::Int(size));
    }
    let mut arrays = BTreeMap::from([
        ("token_embd.weight".to_owned(), tensor(VOCAB, HIDDEN)),
        ("output_norm.weight".to_owned(), tensor(1, HIDDEN)),
    ]);
    for layer in 0..2 {
        for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
        {
            arrays.insert(format!("blk.{layer}.{name}.weight"), tensor(HIDDEN, HIDDEN));
        }
        for name in ["attn_norm", "ffn_norm"] {
            arrays.insert(format!("blk.{layer}.{name}.weight"), tensor(1, HIDDEN));
        }
    }
    let file = Gguf::of_arrays("it", fields, arrays);
    Model::load(Arc::new(file), Instructions::available()[0], LoadOptions::default()).unwrap()
}

#[test]
fn row_is_as_before_a_pass_that_panics() {
    let mut model = model();
    for num_threads in [1, 3] {
        let options = PassOptions { num_threads, ..PassOptions::default() };
        let mut cache = model.new_cache(2, CacheType::default());
        let mut pass = |model: &Model, tokens: &[u32]| {
            let inputs = [0, 1].map(|row| Input { row, tokens, parents: None, num_logits: 1 });
            let logits =
                catch_unwind(AssertUnwindSafe(|| model.forward(&mut cache, &inputs, options)));
            let committed = [0, 1].map(|row| cache.commit(row, &[0, 1]).is_ok());
            (logits.ok().map(Result::unwrap), committed)
        };
        assert_eq!(pass(&model, &[5, 6]).1, [true; 2]);
        let part = &mut model.head.parts[0];
        let empty = PackedMatrix::new(part.kind, part.rows, part.columns, part.lanes);
        let whole_part = std::mem::replace(part, empty);
        // In the last product, when keys and values are written; with threads, in each of them.
        assert_eq!(pass(&model, &[7, 8]), (None, [false; 2]));
        model.head.parts[0] = whole_part;
        let after = pass(&model, &[9, 3]);
        let mut other = model.new_cache(1, CacheType::default());
        let whole = Input { row: 0, tokens: &[5, 6, 9, 3], parents: None, num_logits: 1 };
        let expected = model.forward(&mut other, &[whole], options).unwrap();
        assert_eq!(after, (Some([expected.clone(), expected].concat()), [true; 2]));
    }
}
