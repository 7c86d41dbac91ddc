"""Parts of `make reliability` on less: a bias is found; families, strangers' worlds are right."""

import pytest

from reliability import families, strangers
from specds.accept.on_host import Sampler


def test_a_family_is_served_as_it_writes_or_refused_by_name(monkeypatch):
    monkeypatch.setattr(families, "NUM_REQUESTS", 2)
    said, num_accepted, different = families.verdict("roc_bert")
    assert (said, different) == ("served by `packed` and `model`", [])
    assert num_accepted > 5
    assert families.verdict("bloom")[0].startswith("refused: its alibi biases count cache slots")
    assert families.verdict("qwen3_next")[0] == (
        "refused: layers that are no plain attention over a KV cache"
    )
    assert families.verdict("musicgen")[0].startswith("not built")
    monkeypatch.setattr(Sampler, "__call__", lambda *_: 5)
    monkeypatch.setattr(Sampler, "is_argmax", False, raising=False)
    assert families.verdict("roc_bert")[2] != []


@pytest.mark.slow
@pytest.mark.parametrize("name", strangers.CASES)
@pytest.mark.filterwarnings("ignore:.*")  # of packages that are not ours
def test_what_strangers_have_works_or_is_refused_by_name(name):
    found = strangers.tried(name)
    if found is None:
        pytest.skip("its package is not installed")
    assert found
    assert False not in found
