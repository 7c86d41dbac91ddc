//! Layouts of files that lack tensors of their architecture.

use super::file::{Gguf, Tensor};
use crate::error::Error;

/// Parts of names of tensors, and what files with them have.
const SIGNS: [(&str, &str); 8] = [
    (
        "ffn_gate.0.weight",
        "each expert in tensors of its own, as files of Mixtral from before April 2024",
    ),
    (
        "ffn_up.0.weight",
        "each expert in tensors of its own, as files of Mixtral from before April 2024",
    ),
    ("_exps.weight", "a mixture of experts"),
    ("attn_qkv.weight", "queries, keys and values in one tensor"),
    ("attn_kv_a_mqa", "multi-head latent attention"),
    ("ssm_", "recurrent layers"),
    ("shortconv", "short convolutions"),
    ("model.layers.", "the names of transformers, so that no converter wrote it"),
];

impl Gguf {
    /// The error for a tensor that the architecture needs.
    pub(crate) fn lacks(&self, name: &str) -> Error {
        let numbers =
            self.tensor_names().filter_map(|name| name.strip_prefix("blk.")?.split('.').next());
        let layers = numbers.filter_map(|number| number.parse::<u64>().ok()).max();
        let needed =
            name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
        let signs =
            SIGNS.iter().find(|(part, _)| self.tensor_names().any(|name| name.contains(part)));
        let seems = match (signs, layers, needed) {
            (Some((_, has)), ..) => format!("; it has {has}"),
            (_, Some(last), Some(needed)) if last < needed => {
                format!("; its last layer is {last}")
            }
            _ => String::new(),
        };
        self.layout(format!("has no tensor {name}{seems}"))
    }

    /// The error for a tensor that is not of these rows and columns.
    pub(crate) fn misshapen(
        &self,
        name: &str,
        found: &Tensor,
        [rows, columns]: [usize; 2],
    ) -> Error {
        let architecture = self.text("general.architecture").unwrap_or_default();
        let field = |name: &str| self.count(&format!("{architecture}.attention.{name}"));
        let is_keys = name.contains("attn_k.") || name.contains("attn_v.");
        let heads = if is_keys { field("head_count_kv") } else { field("head_count") };
        let is_heads = is_keys || name.contains("attn_q.");
        let seems = match heads.filter(|&heads| is_heads && heads > 0 && rows.is_multiple_of(heads))
        {
            Some(heads) if found.columns == columns && found.rows.is_multiple_of(heads) => {
                format!(
                    "; its {heads} heads would be of size {}, not {}",
                    found.rows / heads,
                    rows / heads
                )
            }
            Some(heads) if found.columns == columns && found.rows.is_multiple_of(rows / heads) => {
                let size = rows / heads;
                format!("; these would be {} heads of size {size}, not {heads}", found.rows / size)
            }
            _ => String::new(),
        };
        let found = format!("{} rows and {} columns", found.rows, found.columns);
        self.layout(format!(
            "has {name} in {found}, not in {rows} rows and {columns} columns{seems}"
        ))
    }
}
