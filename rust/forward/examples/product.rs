//! Multiplies a matrix of zeros with the states of some tokens.
//!
//! `product 12 96 9 int8 neon 2` does it twice, with nine tokens and 96 rows of `Q4_K`, whose number in GGUF is 12.
//! On x86-64 it prints what each time adds to the time stamp of the processor. `make bench-arm` and `make bench-x86` count
//! its instructions.

use std::env::args;
use std::error::Error;
#[cfg(target_arch = "x86_64")]
use std::io::{Write, stdout};

use specds_forward::gguf::{BlockType, Bytes, Tensor};
use specds_forward::model::LinearLayer;
use specds_forward::{Activations, Instructions};

const COLUMNS: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = args().skip(1).collect();
    let [kind, rows, num_tokens, activations, instructions, times] = arguments.as_slice() else {
        return Err("usage: product TYPE ROWS TOKENS float32|int8 INSTRUCTIONS TIMES".into());
    };
    let kind = BlockType::from_number(kind.parse()?).ok_or("unknown type")?;
    let activations = if activations == "int8" { Activations::Int8 } else { Activations::Float32 };
    let instructions = Instructions::named(instructions).ok_or("not on this processor")?;
    let rows = rows.parse()?;
    let bytes = Bytes::new(vec![0; kind.row_bytes(COLUMNS).ok_or("no row")? * rows]);
    let matrix = Tensor { kind, rows, columns: COLUMNS, bytes };
    let matrix = LinearLayer::of(matrix, instructions)?;
    let states = vec![1.0; num_tokens.parse::<usize>()? * COLUMNS];
    for _ in 0..times.parse()? {
        #[cfg(target_arch = "x86_64")]
        let start = time_stamp();
        matrix.product(&states, activations, 1)?;
        #[cfg(target_arch = "x86_64")]
        writeln!(stdout(), "{}", time_stamp() - start)?;
    }
    Ok(())
}

/// Emulators count instructions in it.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "an instruction without a safe name")]
fn time_stamp() -> u64 {
    // SAFETY: all processors of this kind have time stamps.
    unsafe { std::arch::x86_64::_rdtsc() }
}
