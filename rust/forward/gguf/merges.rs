//! Merges of a `SentencePiece` vocabulary, which files leave out.

use crate::error::Error;

/// Vocabularies of models have 2 to 3 merges for each token.
const MAX_PER_TOKEN: usize = 16;
/// The merges that a small vocabulary may have in any case.
const MAX_OF_FEW: usize = 1 << 16;
/// The tokens between two calls of `proceed`.
const STEP: usize = 1 << 12;

/// Returns the pairs of tokens that join to a token, as ids, the pair whose token has the highest score first.
///
/// Tokens without a score are not merged. Of equal tokens the last one counts. Sorting apart, it takes time in
/// proportion to the length of all tokens. It calls `proceed` meanwhile, whose error ends it.
///
/// # Errors
/// [`Error::Invalid`] if there are more than 16 pairs for each token, which take more memory than the tokens.
pub fn merges<E: From<Error>>(
    tokens: &[String],
    scores: &[Option<f64>],
    mut proceed: impl FnMut() -> Result<(), E>,
) -> Result<Vec<[u32; 2]>, E> {
    let scored = tokens.iter().zip(scores).zip(0_u32..);
    let known = scored.filter_map(|((text, score), id)| Some((text.as_bytes(), id, (*score)?)));
    let mut known: Vec<_> = known.filter(|(text, ..)| !text.is_empty()).collect();
    known.sort_unstable_by(|(text, id, _), (other, next, _)| text.cmp(other).then(next.cmp(id)));
    known.dedup_by_key(|&mut (text, ..)| text);
    proceed()?;
    let texts: Vec<&[u8]> = known.iter().map(|token| token.0).collect();
    let prefixes = longest_prefixes(&texts, |text, place| text[place]);
    proceed()?;
    // The longest suffix is the longest prefix from the end.
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_unstable_by(|&a, &b| texts[a].iter().rev().cmp(texts[b].iter().rev()));
    proceed()?;
    let reversed: Vec<&[u8]> = order.iter().map(|&index| texts[index]).collect();
    let mut suffixes = vec![None; texts.len()];
    let links = longest_prefixes(&reversed, |text, place| text[text.len() - 1 - place]);
    for (&index, link) in order.iter().zip(links) {
        suffixes[index] = link.map(|link| order[link]);
    }
    let most = tokens.len().saturating_mul(MAX_PER_TOKEN).max(MAX_OF_FEW);
    let (mut found, mut ends) = (Vec::new(), Vec::new());
    for (place, &(text, _, score)) in known.iter().enumerate() {
        if place % STEP == 0 {
            proceed()?;
        }
        ends.clear();
        ends.extend(chain(&suffixes, place));
        // Prefixes become shorter, and the suffixes that complete them longer.
        for left in chain(&prefixes, place) {
            let rest = text.len() - texts[left].len();
            while ends.last().is_some_and(|&right: &usize| texts[right].len() < rest) {
                ends.pop();
            }
            if let Some(&right) = ends.last().filter(|&&right| texts[right].len() == rest) {
                found.push((score, [known[left].1, known[right].1]));
            }
        }
        if found.len() > most {
            return Err(Error::invalid("tokens", "join in more than 16 ways each").into());
        }
    }
    found.sort_unstable_by(|(score, pair), (other, next)| {
        other.total_cmp(score).then(pair.cmp(next))
    });
    Ok(found.into_iter().map(|(_, pair)| pair).collect())
}

/// Follows the links from a token, without itself.
fn chain(links: &[Option<usize>], from: usize) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(links[from], |&index| links[index])
}

/// Returns the longest proper prefix of each text among sorted texts without repetition.
fn longest_prefixes(sorted: &[&[u8]], letter: impl Fn(&[u8], usize) -> u8) -> Vec<Option<usize>> {
    // The text before and its prefixes; those of a text are among them.
    let mut open: Vec<usize> = Vec::new();
    let mut found = Vec::with_capacity(sorted.len());
    for (place, text) in sorted.iter().enumerate() {
        let before = place.checked_sub(1).map_or(&[][..], |before| sorted[before]);
        let most = before.len().min(text.len());
        let common = (0..most).take_while(|&at| letter(before, at) == letter(text, at)).count();
        while open.last().is_some_and(|&index| sorted[index].len() > common) {
            open.pop();
        }
        found.push(open.last().copied());
        open.push(place);
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Cuts each token at each place.
    fn by_cuts(tokens: &[String], scores: &[Option<f64>]) -> Vec<[u32; 2]> {
        let scored = tokens.iter().zip(scores).zip(0_u32..);
        let known: HashMap<&str, (u32, f64)> = scored
            .filter_map(|((token, score), id)| Some((token.as_str(), (id, (*score)?))))
            .collect();
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

    fn merged(tokens: &[String], scores: &[Option<f64>]) -> Result<Vec<[u32; 2]>, Error> {
        merges(tokens, scores, || Ok(()))
    }

    #[test]
    fn pairs_of_the_likeliest_token_come_first() {
        let tokens = ["a", "b", "ab", "abb", "c", "ca"].map(str::to_owned);
        let scores = [Some(-1.0), Some(-2.0), Some(-5.0), Some(-4.0), None, Some(-3.0)];
        assert_eq!(merged(&tokens, &scores).unwrap(), [[2, 1], [0, 1]]);
    }

    proptest! {
        #[test]
        fn pairs_are_those_of_all_cuts(
            rows in prop::collection::vec(
                (prop::collection::vec(prop::sample::select(vec!["a", "b", "é"]), 0..6),
                 prop::option::weighted(0.8, -5.0..0.0)),
                0..60,
            )
        ) {
            let (tokens, scores): (Vec<String>, Vec<Option<f64>>) =
                rows.into_iter().map(|(letters, score)| (letters.concat(), score)).unzip();
            prop_assert_eq!(merged(&tokens, &scores).unwrap(), by_cuts(&tokens, &scores));
        }
    }

    #[test]
    fn long_tokens_take_time_in_proportion_to_their_length() {
        let long = "x".repeat(10_000_000);
        let tokens = [long.clone(), long[1..].to_owned(), "x".to_owned(), "xx".to_owned()];
        assert_eq!(merged(&tokens, &[Some(0.0); 4]).unwrap(), [[1, 2], [2, 1], [2, 2]]);
    }

    #[test]
    fn pairs_beyond_memory_are_refused_and_an_interruption_ends() {
        let tokens: Vec<String> = (1..800).map(|length| "x".repeat(length)).collect();
        let scores = vec![Some(0.0); tokens.len()];
        let error = merged(&tokens, &scores).unwrap_err().to_string();
        assert!(error.contains("more than 16 ways"), "{error}");
        let stopped = || Err(Error::invalid("it", "is interrupted"));
        assert!(merges(&tokens, &scores, stopped).unwrap_err().to_string().contains("interrupted"));
    }
}
