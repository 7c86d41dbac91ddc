"""Prompts while they are read: progress, and interruption at any time."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from gguf_models import byte_tokenizer, write_model
from specds import Chat, FusedDrafter, generate, load_gguf
from specds._core import ForwardCache
from specds.cli.stream_output import stopped_by_interrupt

TEMPLATE = "{% for message in messages %}{{ message['content'] + '<|im_end|>' }}{% endfor %}"
GREEDY = {"max_new_tokens": 9, "do_sample": False}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "a.gguf"
    extra = byte_tokenizer(TEMPLATE)
    return write_model(path, "llama", ("Q8_0",), vocab=258, extra=extra, context_length=1 << 16)


@pytest.fixture(params=["numpy", "transformers"])
def loaded(path, request):
    return load_gguf(path, framework=request.param)


def prompt(model, length):
    ids = np.random.default_rng(0).integers(0, 256, (1, length))
    if type(model).__name__ == "GgufModel":
        return ids
    import torch

    return torch.from_numpy(ids)


@pytest.mark.parametrize("is_native", [True, False])
def test_progress_reaches_the_length_of_the_prompt(loaded, tiny_model, is_native):
    model = loaded[0] if is_native else tiny_model[0]
    seen = []
    report = lambda *of: seen.append(of)  # noqa: E731
    generate(model, prompt(model, 700), None, on_prefill=report, **GREEDY)
    assert (seen[0], seen[-1]) == ((0, 700), (700, 700))
    assert seen == sorted(seen)
    assert not is_native or {(256, 700), (512, 700)} <= {*seen}


def test_chat_reports_new_tokens_only(loaded):
    seen = []
    chat = Chat(*loaded, FusedDrafter(), on_prefill=lambda *of: seen.append(of), **GREEDY)
    chat.send("one two three")
    first = seen[-1][1]
    chat.send("one two three")
    whole = loaded[1].apply_chat_template(chat.messages[:3], return_dict=True)["input_ids"]
    assert seen[-1][1] == len(whole) - first


def test_exception_of_the_callback_leaves_the_conversation_as_it_was(loaded):
    chat, other = (Chat(*loaded, FusedDrafter(), **GREEDY) for _ in range(2))
    assert chat.send("one two") == other.send("one two")

    def refuse(num_read, _):
        if num_read > 0:
            raise TimeoutError("too slow")

    with pytest.raises(TimeoutError, match="too slow"):
        chat.send("three " * 200, on_prefill=refuse)
    assert len(chat.messages) == 2
    assert chat.send("one two") == other.send("one two")


def test_first_interrupt_ends_the_reading(loaded):
    model, _ = loaded
    reports = []

    def press(num_read, num_tokens):
        interrupt.on_prefill(num_read, num_tokens)
        reports.append(num_read)
        if num_read > 0:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), stopped_by_interrupt() as interrupt:
        generate(model, prompt(model, 2000), None, on_prefill=press, **GREEDY)
    assert interrupt.is_reading
    assert reports[-1] <= 512


@pytest.mark.parametrize("ends_by", ["signal", "poll"])
def test_pass_ends_within_a_layer_and_the_row_stays_usable(path, ends_by):
    """One pass over a long prompt, which no Python code divides."""
    model, _ = load_gguf(path, framework="numpy")
    ids = prompt(model, 20_000)[0]
    states = ForwardCache(model.weights, 1)
    model.compute(states, [(0, ids[:9], None, 0)])
    states.commit(0, range(9))
    shares = []

    def poll(share):
        shares.append(share)
        if ends_by == "poll" and len(shares) > 1:
            raise KeyboardInterrupt
        if ends_by == "signal" and len(shares) == 1:
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()

    started = time.process_time()
    with pytest.raises(KeyboardInterrupt):
        model.compute(states, [(0, ids[9:], None, 1)], poll)
    assert time.process_time() - started < 60
    assert max(shares) < 0.9
    assert states.length(0) == 9
    found = model.compute(states, [(0, ids[9:50], None, 1)])
    other = ForwardCache(model.weights, 1)
    assert np.array_equal(found, model.compute(other, [(0, ids[:50], None, 1)]))


def test_stream_that_is_left_while_the_prompt_is_read_ends(path):
    chat = Chat(*load_gguf(path, framework="numpy"), FusedDrafter(), **GREEDY)
    shares, reading = [], threading.Event()

    def report(num_read, num_tokens):
        shares.append(num_read / num_tokens)
        reading.set()

    pieces = chat.stream("one two three four " * 1000, on_prefill=report)
    threading.Thread(target=lambda: (reading.wait(), signal_main())).start()
    with pytest.raises(KeyboardInterrupt):
        next(pieces)
    assert max(shares) < 0.9
    assert chat.messages == []


def signal_main():
    time.sleep(0.1)  # until the main thread waits for the first piece
    os.kill(os.getpid(), signal.SIGINT)
