"""Random numbers of a batch: those of the baseline, each drawn as rarely as possible."""

import random

import pytest
import torch

from specds.generation import noise
from specds.transformers.accept import draws

VOCAB_SIZE, NUM_ROWS, NUM_STEPS = 5, 32, 60


@pytest.mark.parametrize(("num_stored", "most_again"), [(10**6, 0), (15, 48)])
def test_batch_draws_each_position_once_unless_it_exceeds_the_store(
    num_stored, most_again, monkeypatch
):
    monkeypatch.setattr(noise, "_MAX_BYTES", num_stored * NUM_ROWS * VOCAB_SIZE * 4)
    generator = torch.Generator().manual_seed(3)
    plain = [
        torch.empty(NUM_ROWS, VOCAB_SIZE).exponential_(generator=generator) for _ in range(400)
    ]
    made, draw = [], draws.Noise._draw
    monkeypatch.setattr(
        draws.Noise, "_draw", lambda self, place: made.append(place) or draw(self, place)
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        batch = draws.Noise(NUM_ROWS, VOCAB_SIZE, torch.device("cpu"))
        rng, at = random.Random(0), [0] * NUM_ROWS
        for _ in range(NUM_STEPS):
            nums, before, made[:] = [rng.randint(1, 9) for _ in at], batch._num_draws, []
            batch.drop_before(min(at))
            ahead = batch.draws_for(range(NUM_ROWS), at, nums)
            assert len(made) - (batch._num_draws - before) <= most_again
            assert len(batch._drawn) <= num_stored
            assert min({**batch._drawn, **batch._states}) >= min(at)
            for row, (first, num) in enumerate(zip(at, nums, strict=True)):
                expected = torch.stack(plain[first : first + num])[:, row]
                assert torch.equal(ahead[row, :num], expected)
            at = [place + rng.randint(1, num) for place, num in zip(at, nums, strict=True)]
        batch.close(max(at))
        generator.manual_seed(3)
        torch.empty(max(at), NUM_ROWS, VOCAB_SIZE).exponential_(generator=generator)
        assert torch.equal(
            torch.empty(9).exponential_(), torch.empty(9).exponential_(generator=generator)
        )
