"""Times of passes that are measured at load: their sizes, and what is kept of them."""

import json
import os

import pytest

from gguf_models import byte_tokenizer, write_model
from specds._core import ForwardModel, GgufFile, StepTimes
from specds.generation import budget
from specds.models import pass_times
from specds.models.gguf_model import GgufModel, load_gguf
from specds.models.pass_times import SIZES, pass_times_of


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDS_CACHE", str(tmp_path / "cache"))
    extra = byte_tokenizer()
    return write_model(tmp_path / "m.gguf", "llama", hidden=256, wide=256, vocab=258, extra=extra)


class NumberedTimes:
    """A model whose measured times are numbered."""

    instructions = "portable"

    def __init__(self):
        self.num_measured = 0

    def pass_times(self, sizes, **_):
        self.num_measured += 1
        return [float(self.num_measured)] * len(sizes)


def test_passes_over_more_tokens_take_longer(file):
    model = ForwardModel(GgufFile(file))
    seconds = model.pass_times([1, 256])
    assert 0 < seconds[0] < seconds[1]
    assert model.pass_times([]) == []
    for invalid in ([257], [1, 1 << 40], [0]):
        with pytest.raises(ValueError, match="sizes"):
            model.pass_times(invalid)
    with pytest.raises(ValueError, match="activations"):
        model.pass_times([1], activations="int4")


def test_measured_passes_leave_logits_as_they_are(file):
    model, _ = load_gguf(file, framework="numpy")
    other = GgufModel(model.weights, "float32")  # which has not measured
    states = [of.new_states(1) for of in (model, other)]
    model.pass_times()
    logits = [
        of.compute(at, [(0, [1, 2, 3], None, 3)])
        for of, at in zip((model, other), states, strict=True)
    ]
    assert (logits[0] == logits[1]).all()


def test_the_least_of_three_measurements_is_kept(file):
    model = NumberedTimes()
    measured = [[5.0, 4.0, 3.0, 2.0, 1.0], [6.0, 3.0, 4.0, 1.0, 2.0], [4.0, 5.0, 5.0, 5.0, 5.0]]
    model.pass_times = lambda *_, **__: measured.pop(0)
    found = [
        [seconds for _, seconds in pass_times_of(model, "int8", 1, str(file))] for _ in "12345"
    ]
    assert found[0] == [5.0, 4.0, 3.0, 2.0, 1.0]
    assert found[1] == [5.0, 3.0, 3.0, 1.0, 1.0]
    assert found[2:] == [[4.0, 3.0, 3.0, 1.0, 1.0]] * 3


def test_times_are_kept_by_file_activations_and_threads(file, tmp_path, monkeypatch):
    monkeypatch.setattr(pass_times, "MEASUREMENTS", 1)
    model = NumberedTimes()

    def measured(*about):
        [seconds] = {seconds for _, seconds in pass_times_of(model, *about)}
        return seconds

    assert [size for size, _ in pass_times_of(model, "float32", 1, str(file))] == [*SIZES]
    assert measured("float32", 1, str(file)) == 1
    assert measured("int8", 1, str(file)) == 2
    assert measured("float32", 2, str(file)) == 3
    assert [measured("float32", 1, str(file)), measured("int8", 1, str(file))] == [1, 2]
    os.utime(file, ns=(1, 1))  # another file of the same name
    assert measured("float32", 1, str(file)) == 4
    assert [measured("float32", 1, "") for _ in range(2)] == [5, 6]  # no file
    (tmp_path / "core").touch()
    monkeypatch.setattr(pass_times, "_extension", lambda: str(tmp_path / "core"))
    assert measured("int8", 1, str(file)) == 7  # other kernels


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"{",
        b'{"KEY": 3}',
        b'{"KEY": [3]}',
        b'{"KEY": [3, [[1, 2]]]}',
        b'{"KEY": [3, 4]}',
        b'{"KEY": [3, [[1, -1.0]]]}',
        b'{"KEY": [true, []]}',
    ],
)
def test_damaged_times_are_measured_again(file, tmp_path, content):
    model, path = NumberedTimes(), tmp_path / "cache" / "pass-times.json"
    pass_times_of(model, "int8", 1, str(file))
    [key] = json.loads(path.read_text())
    path.write_bytes(content.replace(b'"KEY"', json.dumps(key).encode()))
    pass_times_of(model, "int8", 1, str(file))
    assert model.num_measured == 2
    assert [*json.loads(path.read_text())] == [key]


def test_kept_times_are_limited(file, tmp_path, monkeypatch):
    monkeypatch.setattr(pass_times, "_MAX_ENTRIES", 3)
    for threads in range(5):
        pass_times_of(NumberedTimes(), "int8", threads, str(file))
    kept = json.loads((tmp_path / "cache" / "pass-times.json").read_text())
    assert [json.loads(key)[7] for key in kept] == [2, 3, 4]


def test_folder_that_cannot_be_written_is_ignored(file, monkeypatch):
    monkeypatch.setenv("SPECDS_CACHE", str(file))
    assert len(pass_times_of(NumberedTimes(), "int8", 1, str(file))) == len(SIZES)


def test_first_step_of_a_process_may_draft(file):
    """Without measured passes, three steps measure the time of one token."""
    model, _ = load_gguf(file, framework="numpy")

    class Runner:
        token_cost = 0.13

        def __init__(self, passes):
            self.pass_times = lambda: passes

    for passes, drafts in ((model.pass_times(), True), ((), False)):
        times = budget.step_times_of(NumberedTimes(), "setting", Runner(passes))
        assert isinstance(times, StepTimes)
        rule = budget.NodeBudget(budget.DraftStats(), times, 1)
        assert (rule.step_s > 0) == drafts
