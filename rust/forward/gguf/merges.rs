//! Merges of a `SentencePiece` vocabulary, which files leave out.

use std::collections::HashMap;

/// Returns the pairs of tokens that join to a token, as ids, the pair whose token has the highest score first.
///
/// Tokens without a score are not merged. Of equal tokens the last one counts.
pub fn merges(tokens: &[String], scores: &[Option<f64>]) -> Vec<[u32; 2]> {
    let scored = tokens.iter().zip(scores).zip(0_u32..);
    let known: HashMap<&str, (u32, f64)> =
        scored.filter_map(|((token, score), id)| Some((token.as_str(), (id, (*score)?)))).collect();
    let mut found = Vec::new();
    for (token, &(_, score)) in &known {
        for (cut, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(cut);
            if let (Some(&(left, _)), Some(&(right, _))) = (known.get(left), known.get(right)) {
                found.push((score, [left, right]));
            }
        }
    }
    found.sort_unstable_by(|(score, pair), (other, next)| {
        other.total_cmp(score).then(pair.cmp(next))
    });
    found.into_iter().map(|(_, pair)| pair).collect()
}

#[cfg(test)]
mod tests {
    use super::merges;

    #[test]
    fn pairs_of_the_likeliest_token_come_first() {
        let tokens = ["a", "b", "ab", "abb", "c", "ca"].map(str::to_owned);
        let scores = [Some(-1.0), Some(-2.0), Some(-5.0), Some(-4.0), None, Some(-3.0)];
        assert_eq!(merges(&tokens, &scores), [[2, 1], [0, 1]]);
    }
}
