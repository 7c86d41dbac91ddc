//! Run-length encoding.

/// Returns each run of equal tokens as the token and the length of the run.
pub fn runs(tokens: impl Iterator<Item = u32>) -> impl Iterator<Item = (u32, f32)> {
    let mut tokens = tokens.peekable();
    std::iter::from_fn(move || {
        let token = tokens.next()?;
        let mut count = 1.0;
        while tokens.next_if_eq(&token).is_some() {
            count += 1.0;
        }
        Some((token, count))
    })
}
