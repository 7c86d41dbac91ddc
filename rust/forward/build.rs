//! Chooses the instruction sets of x86-64 that kernels are compiled for: all of them, or with the feature `native` the
//! best one of this machine.

/// The instruction sets, the best one first.
const ALL: [&str; 3] = ["avx512", "avxvnni", "avx2"];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(kernels, values(\"avx512\", \"avxvnni\", \"avx2\"))");
    println!("cargo::rerun-if-changed=build.rs");
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    if of("CARGO_CFG_TARGET_ARCH") != "x86_64" {
        return;
    }
    let is_native = of("CARGO_FEATURE_NATIVE") == "1" && of("HOST") == of("TARGET");
    for name in if is_native { best() } else { &ALL } {
        println!("cargo::rustc-cfg=kernels=\"{name}\"");
    }
}

/// Returns the best instruction set of this machine, none where kernels are portable.
#[cfg(target_arch = "x86_64")]
fn best() -> &'static [&'static str] {
    let has_avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let has_avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni");
    match (has_avx2, has_avx512, is_x86_feature_detected!("avxvnni")) {
        (false, ..) => &[],
        (true, true, _) => &ALL[..1],
        (true, false, true) => &ALL[1..2],
        (true, false, false) => &ALL[2..],
    }
}

/// Other machines compile for x86-64 only as a host of another target.
#[cfg(not(target_arch = "x86_64"))]
fn best() -> &'static [&'static str] {
    &ALL
}
