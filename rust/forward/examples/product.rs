//! Multiplies a matrix of zeros with the states of some tokens.
//!
//! `product 12 9 int8 neon 2` does it twice, with nine tokens and weights of `Q4_K`, whose number in GGUF is 12.
//! `make bench-arm` counts its instructions.

use std::env::args;
use std::error::Error;

use specds_forward::gguf::{BlockType, Bytes, Tensor};
use specds_forward::model::LinearLayer;
use specds_forward::{Activations, Instructions};

/// Rows of full tiles.
const ROWS: usize = 96;
const COLUMNS: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = args().skip(1).collect();
    let [kind, num_tokens, activations, instructions, times] = arguments.as_slice() else {
        return Err("usage: product TYPE TOKENS float32|int8 INSTRUCTIONS TIMES".into());
    };
    let kind = BlockType::from_number(kind.parse()?).ok_or("unknown type")?;
    let activations = if activations == "int8" { Activations::Int8 } else { Activations::Float32 };
    let instructions = Instructions::named(instructions).ok_or("not on this processor")?;
    let bytes = Bytes::new(vec![0; kind.row_bytes(COLUMNS).ok_or("no row")? * ROWS]);
    let matrix = Tensor { kind, rows: ROWS, columns: COLUMNS, bytes };
    let matrix = LinearLayer::of(matrix, instructions)?;
    let states = vec![1.0; num_tokens.parse::<usize>()? * COLUMNS];
    for _ in 0..times.parse()? {
        matrix.product(&states, activations, 1)?;
    }
    Ok(())
}
