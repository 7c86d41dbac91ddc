//! Chooses the instruction sets of x86-64 that kernels are compiled for: all of them, or with the feature `native` the
//! best one of this machine.

#[path = "simd/detected.rs"]
mod detected;

/// The instruction sets, the best one first.
const ALL: [&str; 3] = ["avx512", "avxvnni", "avx2"];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(kernels, values(\"avx512\", \"avxvnni\", \"avx2\"))");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=simd/detected.rs");
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    if of("CARGO_CFG_TARGET_ARCH") != "x86_64" {
        return;
    }
    let is_native = of("CARGO_FEATURE_NATIVE") == "1" && of("HOST") == of("TARGET");
    let number = if is_native { 1 } else { ALL.len() };
    for name in ALL.into_iter().filter(|name| !is_native || detected::has(name)).take(number) {
        println!("cargo::rustc-cfg=kernels=\"{name}\"");
    }
}
