"""Drafts as a batch of path rows: unsupported attention, and controls with wrong rows."""

import pytest

from models import build, prompt, random_drafter, tiny_model, unpackable
from passes import WIDE_SHAPE
from specds.generation import generate
from specds.generation.runner import UnsupportedModelError
from specds.transformers.verify.path_rows import PathRows
from specds.transformers.verify.support import check_model

REFUSED = {
    "gpt_oss": (
        "GptOssConfig",
        {**WIDE_SHAPE, "num_local_experts": 2, "num_experts_per_tok": 1},
        "attention with s_aux cannot be packed: use verification='model'",
    ),
    "gemma2": ("Gemma2Config", WIDE_SHAPE, "its attention caps logits: use verification='model'"),
}


@pytest.mark.parametrize("name", [*REFUSED, "xglm"])
def test_unsupported_attention_is_refused_by_path_rows(name):
    if name == "xglm":
        model, reason = unpackable(), "its attention cannot be exchanged: use verification='model'"
    else:
        config_class, settings, reason = REFUSED[name]
        settings = {**settings, "pad_token_id": None, "eos_token_id": None}
        model = build(config_class, settings, attn_implementation="eager")
    assert check_model(model).ok
    assert reason in check_model(model, verification=PathRows).reasons[0]
    assert model.config._attn_implementation == "eager"
    with pytest.raises(UnsupportedModelError, match=f"drafts by 'PathRows': .*{reason}"):
        generate(model, prompt(), random_drafter(), max_new_tokens=3, verification=PathRows)


def test_unknown_backend_is_an_error():
    with pytest.raises(ValueError, match="or 'chain' or 'native', got 'rows'"):
        check_model(tiny_model("llama"), verification="rows")
