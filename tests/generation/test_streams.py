"""What who sees a stream can tell of a text by how many tokens come at once (arXiv 2411.01076)."""

from itertools import accumulate, groupby, zip_longest

import numpy as np
import pytest
import torch

from forced import Forces
from models import GREEDY, VOCAB_SIZE, Recorder, mixed_drafter, prompt, random_drafter, tiny_model
from specds import FusedConfig, FusedDrafter, accelerate, custom_generate, generate
from specds.verify import Runner

BUDGET, EVERY, LENGTH = 8, 8, 64
HIDDEN = {"stream_every": EVERY}


class ForcedTree(Forces, Runner):
    """What a model writes is given."""


class Observer(Recorder):
    """Notes after which pass of the model each token came."""

    def __init__(self, model):
        super().__init__()
        self.widths = []  # tokens of each pass: how long it takes
        self.at = []
        self._hook = model.register_forward_pre_hook(
            lambda _, __, inputs: self.widths.append(inputs["input_ids"].shape[1]),
            with_kwargs=True,
        )

    def put(self, value):
        self.at.append(len(self.widths))

    def end(self):
        self._hook.remove()

    @property
    def bursts(self):
        """How many tokens came at once; the prompt comes before any pass."""
        return [len([*tokens]) for _, tokens in groupby(self.at[1:])]

    @property
    def waits(self):
        """How many passes were between two releases."""
        return np.diff([0, *(at for at, _ in groupby(self.at[1:]))]).tolist()


def observed(repeats_at_end, trial, **settings):
    """A stream of one of two texts, some of whose tokens differ each time."""
    random = np.random.default_rng(trial)
    phrase, new = random.integers(3, VOCAB_SIZE, 12), random.integers(3, VOCAB_SIZE, LENGTH - 36)
    parts = [phrase, phrase, phrase, new]
    text = np.concatenate(parts[::-1] if repeats_at_end else parts)
    text = np.where(random.random(LENGTH) < 0.03, random.integers(3, VOCAB_SIZE), text)
    model = tiny_model("llama")
    observer = Observer(model)
    Forces.texts = torch.tensor([[*prompt(seed=trial)[0].tolist(), *text.tolist()]])
    generate(
        model,
        prompt(seed=trial),
        FusedDrafter(config=FusedConfig(recycled=False)),
        budget=BUDGET,
        verification=ForcedTree,
        self_check=False,
        max_new_tokens=len(text),
        streamer=observer,
        **settings,
    )
    assert len(observer.at) == 1 + len(text)
    return observer


def told_apart(traces):
    """How often what is most like a trace is of the same text; by chance at most 0.5."""

    def distance(one, other):
        return sum(abs(a - b) for a, b in zip_longest(*map(accumulate, (one, other)), fillvalue=0))

    right = []
    for label, trace in traces:
        others = [(name, distance(trace, other)) for name, other in traces if other is not trace]
        least = min(far for _, far in others)
        right.append(np.mean([name == label for name, far in others if far == least]))
    return np.mean(right)


@pytest.fixture(scope="module")
def streams():
    """Those of two texts, four times each, with the switch and without it."""
    return {
        is_hidden: [
            (text, observed(text, trial, **(HIDDEN if is_hidden else {})))
            for text in (False, True)
            for trial in range(4)
        ]
        for is_hidden in (False, True)
    }


def test_tokens_at_once_tell_texts_apart_and_not_with_the_switch(streams):
    seen = {key: [(name, one.bursts) for name, one in value] for key, value in streams.items()}
    assert told_apart(seen[False]) > 0.9
    assert told_apart(seen[True]) <= 0.5
    assert {size for _, bursts in seen[True] for size in bursts[:-1]} == {EVERY}


def test_nodes_of_a_step_tell_texts_apart_and_not_with_the_switch(streams):
    """As the time of a step does. The last one cannot emit a node."""
    for is_hidden, of_texts in streams.items():
        widths = {width for _, one in of_texts for width in one.widths[1:-1]}
        assert (widths == {1 + BUDGET}) == is_hidden
        assert max(widths) == 1 + BUDGET


def test_the_time_between_releases_remains(streams):
    """Which docs/RELIABILITY.md says: whoever measures it counts the steps of eight tokens."""
    assert told_apart([(name, one.waits) for name, one in streams[True]]) > 0.5


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("every", [1, 4, 100])
def test_a_streamer_gets_the_same_tokens_later(num_rows, every):
    model = tiny_model("llama")
    ids = prompt(length=21 * num_rows).reshape(num_rows, 21)
    settings = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 10, **GREEDY}
    plain, ours = Recorder(), Recorder()
    expected = model.generate(ids, streamer=plain, **settings)
    drafter = mixed_drafter(expected[0].tolist())
    hidden = {"budget": 5, "stream_every": every}
    output = generate(model, ids, drafter, streamer=ours, **hidden, **settings)
    assert output.sequences.tolist() == expected.tolist()
    assert ours.received == plain.received
    if num_rows == 1:
        for call in (custom_generate(drafter, **hidden), None):
            with accelerate(model, drafter, **hidden):
                by_route = Recorder()
                loop = {} if call is None else {"custom_generate": call}
                model.generate(ids, streamer=by_route, **loop, **settings)
            assert by_route.received == plain.received


def test_what_would_show_the_text_is_refused():
    with pytest.raises(ValueError, match="stream_every must be at least 1, got 0"):
        generate(tiny_model("llama"), prompt(), stream_every=0)
    with pytest.raises(ValueError, match="which budget 'auto' shows: give budget a number"):
        custom_generate(random_drafter(), stream_every=4)
