"""Parts of `make reliability` on less: a bias is found; families, strangers' worlds are right."""

from dataclasses import replace

import numpy as np
import pytest

from reliability import families, sampling, strangers
from specds.accept.on_host import Sampler


def test_samples_follow_the_law_and_not_that_of_another_temperature():
    case = replace(sampling.CASES["fused, `packed`"], num_samples=2000)
    counts, num_accepted = sampling.sample(case)
    law = sampling.law(case)
    assert law.sum() == pytest.approx(1)
    assert num_accepted > counts.sum()
    _, freedom, p = sampling.chi_square(counts, law)
    assert p > 1e-4
    assert 50 < freedom < len(law)
    assert sampling.chi_square(counts, sampling.law(replace(case, temperature=1.3)))[2] < 1e-6
    even = np.full(6, 1 / 6)
    assert sampling.chi_square(np.array([10, 10, 10, 10, 10, 10]), even) == (0, 5, 1)
    assert sampling.chi_square(np.array([20, 10, 10, 10, 10, 0]), even)[0] == 20


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
