"""Small runs of the reliability experiments."""

import pytest

from reliability import families, third_party
from specds.transformers.accept.on_host import Sampler


def test_family_is_served_unchanged_or_rejected_with_a_reason(monkeypatch):
    monkeypatch.setattr(families, "NUM_REQUESTS", 2)
    said, _, num_accepted, different = families.verdict("roc_bert")
    assert (said, different) == ("served by `packed` and `model`", [])
    assert num_accepted > 5
    assert families.verdict("bloom")[0].startswith("rejected: its alibi biases count cache slots")
    assert families.verdict("qwen3_next")[0] == "served by `chain`"
    assert families.verdict("musicgen")[0].startswith("not built")
    monkeypatch.setattr(Sampler, "__call__", lambda *_: 5)
    monkeypatch.setattr(Sampler, "is_argmax", False, raising=False)
    assert families.verdict("roc_bert")[3] != []


@pytest.mark.slow
@pytest.mark.parametrize("name", third_party.CASES)
@pytest.mark.filterwarnings("ignore:.*")  # of third-party packages
def test_third_party_setup_works_or_raises_unsupported_error(name):
    found = third_party.tried(name)
    if found is None:
        pytest.skip("its package is not installed")
    assert found
    assert False not in found
