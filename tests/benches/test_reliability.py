"""The chi-square of `make reliability ARGS=sampling` on fewer samples: it finds a bias."""

from dataclasses import replace

import numpy as np
import pytest

from reliability import sampling


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
