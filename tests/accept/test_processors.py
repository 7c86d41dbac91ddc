"""Processors of arrays: the scores are those of transformers' processors."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig
from transformers.generation.utils import GenerationMixin

from specds.generation.processors import Processing

VOCAB, PROMPT_LENGTH = 6, 2
tokens = st.integers(0, VOCAB - 1)
numbers = st.floats(-4, 4, width=16)
sequences = st.lists(tokens, min_size=1, max_size=3)
SETTINGS = {
    "sequence_bias": st.lists(st.tuples(sequences, numbers), min_size=1),
    "repetition_penalty": st.floats(0.5, 2),
    "no_repeat_ngram_size": st.integers(0, 4),
    "bad_words_ids": st.lists(sequences, min_size=1, max_size=4),
    "min_length": st.integers(0, 6),
    "min_new_tokens": st.integers(0, 4),
    "suppress_tokens": st.lists(tokens, min_size=1),
    "begin_suppress_tokens": st.lists(tokens, min_size=1),
}  # fmt: skip


def theirs(settings, ends, token_ids, scores):
    class Host(GenerationMixin):
        config = type("Config", (), {"is_encoder_decoder": False})()

    config = GenerationConfig(**settings)
    config._eos_token_tensor = torch.tensor(ends) if ends else None
    processors = Host()._get_logits_processor(config, input_ids_seq_length=PROMPT_LENGTH)
    return processors(torch.tensor([token_ids]), torch.tensor([scores])).numpy()


@given(
    st.fixed_dictionaries({}, optional=SETTINGS),
    st.lists(tokens, max_size=2, unique=True),
    st.lists(tokens, min_size=PROMPT_LENGTH, max_size=9),
    st.lists(numbers, min_size=VOCAB, max_size=VOCAB),
)
def test_scores_are_those_of_transformers(settings, ends, token_ids, scores):
    if "sequence_bias" in settings:
        biases = {tuple(sequence): float(bias) for sequence, bias in settings["sequence_bias"]}
        settings["sequence_bias"] = [[[*sequence], bias] for sequence, bias in biases.items()]
    if all(word in [[end] for end in ends] for word in settings.get("bad_words_ids", [()])):
        settings.pop("bad_words_ids", None)  # transformers rejects a list that becomes empty
    if settings.get("no_repeat_ngram_size") == 0:
        del settings["no_repeat_ngram_size"]
    found = np.array([scores], dtype=np.float32)
    expected = theirs(settings, ends, token_ids, scores)
    for process in Processing(**settings).processors(PROMPT_LENGTH, ends, VOCAB):
        found = process(np.array([token_ids]), found)
    assert np.allclose(found, expected, atol=1e-6)


def test_each_setting_changes_scores():
    settings = {
        "sequence_bias": {(1,): 2.0}, "repetition_penalty": 1.5, "no_repeat_ngram_size": 1,
        "bad_words_ids": [[3]], "min_length": 9, "min_new_tokens": 4, "suppress_tokens": [2],
        "begin_suppress_tokens": [2],
    }  # fmt: skip
    assert settings.keys() == SETTINGS.keys() == vars(Processing()).keys()
    for name, value in settings.items():
        [process] = Processing(**{name: value}).processors(2, [5], VOCAB)
        scores = np.ones((1, VOCAB), dtype=np.float32)
        assert (process(np.array([[0, 1]]), scores) != 1).any()
    assert Processing().processors(2, [5], VOCAB) == []


def test_negative_bias_of_the_wrong_shape_is_named():
    for wrong in ([[1, 2.0]], 5, {(1,): "a"}):
        with pytest.raises(ValueError, match="sequence_bias must be a dictionary"):
            Processing(sequence_bias=wrong).processors(2, [5], VOCAB)
