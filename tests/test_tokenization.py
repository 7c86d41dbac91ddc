"""Fingerprints and batches of the tokenizers."""

import numpy as np
import pytest

from specds.loading import LoadingError, load_model, load_tokenizer
from specds.tokenization import encode_batch, fingerprint, vocab_size


def test_a_batch_is_each_text_after_the_other(demo_tokenizer):
    texts = ["def f():\n    return 1\n", "", "é" * 3]
    flat, lengths = encode_batch(demo_tokenizer, texts)
    rows = [demo_tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert lengths.tolist() == [len(row) for row in rows]
    assert flat.tolist() == [token for row in rows for token in row]
    assert flat.dtype == np.uint32


def test_fingerprint_tells_vocabularies_apart(demo_tokenizer):
    again = load_tokenizer("demo")
    assert fingerprint(again) == fingerprint(demo_tokenizer)
    assert vocab_size(again) == 4096
    again.add_tokens(["<one more>"])
    assert fingerprint(again) != fingerprint(demo_tokenizer)
    assert vocab_size(again) == 4097


def test_shipped_tokenizer_gives_text_back(demo_tokenizer):
    text = 'class A:\n\n    """Täst."""\n\tx = [1, 22, 333]  # ¿qué?\n'
    assert demo_tokenizer.decode(demo_tokenizer.encode(text)) == text


@pytest.mark.parametrize("load", [load_tokenizer, load_model])
def test_unknown_name_is_one_clear_error(load, tmp_path):
    with pytest.raises(LoadingError, match="no tokenizer"):
        load(str(tmp_path / "nowhere"))


def test_unknown_dtype_is_refused():
    with pytest.raises(LoadingError, match="no dtype `float3`"):
        load_model("demo-tiny", dtype="float3")
