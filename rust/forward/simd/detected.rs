//! Detection of instruction sets, for kernels and for the script that chooses which are compiled.

/// Returns whether this processor has all that kernels of `avx512`, `avxvnni` or `avx2` use.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has(name: &str) -> bool {
    let has_avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    has_avx2
        && match name {
            "avx512" => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vnni")
            }
            "avxvnni" => is_x86_feature_detected!("avxvnni"),
            _ => true,
        }
}

/// Returns false: no other processor has them.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn has(_: &str) -> bool {
    false
}
