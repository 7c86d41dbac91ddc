"""Requests at the same time: each text is the one that its request has alone."""

import json
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

import specds
from serving import complete, listening, make_served, metrics, post
from specds.cli import app
from specds.serving.app import tenants_of
from specds.serving.slots import Slots

PROMPTS = ["import os\n", "def add(a, b):\n", "class Tree:\n", "for i in range(", "x = [", "try:\n"]


def test_texts_do_not_depend_on_the_requests_next_to_them(served_model):
    model, tokenizer = served_model

    def alone(number):
        ids = tokenizer.encode(PROMPTS[number % len(PROMPTS)])
        drawn = {"do_sample": True, "temperature": 0.8, "top_k": 0} if number % 2 else {}
        seed = number if number % 2 else None
        output = specds.generate(model, ids, max_nodes=0, max_new_tokens=24, seed=seed, **drawn)
        return tokenizer.decode(output.sequences[0, len(ids) :])

    def asked(address, number):
        drawn = {"temperature": 0.8, "seed": number} if number % 2 else {}
        return complete(address, PROMPTS[number % len(PROMPTS)], **drawn)["choices"][0]["text"]

    with listening(make_served(*served_model, parallel=5)) as address:
        with ThreadPoolExecutor(12) as pool:
            found = [*pool.map(partial(asked, address), range(36))]
        passes = metrics(address)["specds_passes_total"]
    wanted = [alone(number) for number in range(36)]
    assert found == wanted
    assert passes < 24 * 36 / 3  # they shared them
    assert found != wanted[1:] + wanted[:1]


def test_a_conversation_continues_from_what_is_kept(served_model):
    model, tokenizer = served_model
    prompt = "def area(width, height):\n    return width * height\n\n" * 6
    with listening(make_served(*served_model)) as address:
        first = complete(address, prompt)
        longer = prompt + first["choices"][0]["text"] + "\ndef perimeter(width, height):\n"
        second = complete(address, longer)
        # The beginning of both, which a third text shares: it is copied.
        third = complete(address, prompt[: len(prompt) // 3] + "class Door:\n")
        again = complete(address, longer)
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (first, second, third)]
    assert cached[0] == 0
    assert cached[1] > len(tokenizer.encode(prompt)) - 5
    assert cached[2] > len(tokenizer.encode(prompt)) / 4
    for asked, answer in ((longer, second), (longer, again)):
        ids = tokenizer.encode(asked)
        output = specds.generate(model, ids, max_nodes=0, max_new_tokens=24)
        assert answer["choices"][0]["text"] == tokenizer.decode(output.sequences[0, len(ids) :])


def test_kept_texts_outlive_the_server(served_model, tmp_path):
    file = tmp_path / "slots.npz"
    with listening(served := make_served(*served_model)) as address:
        prompts = [prompt * 20 for prompt in PROMPTS]
        texts = [complete(address, prompt)["choices"][0]["text"] for prompt in prompts]
    served.engine._slots.save(file, "tiny")
    assert file.stat().st_mode & 0o777 == 0o600
    # Fewer rows: the latest texts stay.
    again = make_served(*served_model, parallel=1, rows=3)
    again.engine._slots.load(file, "tiny")
    with listening(again) as address:
        for prompt, text in [*zip(prompts, texts, strict=True)][::-1]:
            answer = complete(address, prompt)
            assert answer["choices"][0]["text"] == text
            if prompt in prompts[-3:]:
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 30
    for name, content in ((b"other", file.read_bytes()), (b"tiny", b"no slots")):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(ValueError, match="has no slots of this model"):
            again.engine._slots.load(tmp_path / "other", name.decode())


@pytest.mark.parametrize("is_shared", [False, True])
def test_prefixes_and_drafts_are_of_a_tenant(served_model, is_shared):
    tenants = tenants_of("one", "ann") | tenants_of("two", "bob")
    prompt = "def area(width, height):\n    return width * height\n\n" * 4
    served = make_served(*served_model, tenants=tenants, is_shared=is_shared)
    with listening(served) as address:
        assert post(address, "/v1/completions", {"prompt": prompt})[0] == 401
        assert post(address, "/v1/completions", {"prompt": prompt}, "three")[0] == 401
        complete(address, prompt, "one")
        of_other = complete(address, prompt, "two")["usage"]["prompt_tokens_details"]
        of_user = complete(address, prompt, "one", user="eve")["usage"]["prompt_tokens_details"]
        of_same = complete(address, prompt, "one")["usage"]["prompt_tokens_details"]
    assert (of_other["cached_tokens"] > 0) == (of_user["cached_tokens"] > 0) == is_shared
    assert of_same["cached_tokens"] > 0
    memory = served.drafting.drafter.memory
    assert len(memory.texts("ann")) >= 1
    assert len(memory.texts("bob")) == len(memory.texts("ann/eve")) == 1


def test_deletion_in_the_file_reaches_the_running_server_and_its_kept_texts(served_model, tmp_path):
    memory, kept = tmp_path / "memory", tmp_path / "slots.npz"
    tenants = tenants_of("one", "ann") | tenants_of("two", "bob")
    served = make_served(*served_model, tenants=tenants, memory=memory)
    slots, store = served.engine._slots, served.drafting.drafter.memory
    prompt = "def area(width, height):\n    return width * height\n\n" * 4

    def num_cached(address, key):
        return complete(address, prompt, key)["usage"]["prompt_tokens_details"]["cached_tokens"]

    def tenants_with_states(slots):
        return {slot.tenant for slot in slots._all if slots.states.length(slot.row)}

    with listening(served) as address:
        assert [num_cached(address, key) for key in ("one", "two")] == [0, 0]
        served.drafting.save()
        slots.save(kept, "tiny")
        result = CliRunner().invoke(app, ["memory", "forget", str(memory), "ann"])
        assert result.exit_code == 0
        served.engine._idle()
        assert tenants_with_states(slots) == {"ann", "bob"}
        served.drafting.save()  # as the exchange of each minute does
        assert store.texts("ann") == []
        served.engine._idle()
        assert tenants_with_states(slots) == {"bob"}
        assert num_cached(address, "one") == 0
        assert num_cached(address, "two") > 30
        assert num_cached(address, "one") > 30
    again = make_served(*served_model, memory=memory)
    again.engine._slots.load(kept, "tiny")  # which was written before
    assert tenants_with_states(again.engine._slots) == {"bob"}


def test_open_text_of_a_deleted_tenant_is_not_kept(served_model):
    model, deletions = served_model[0], {}
    slots = Slots(model, 4, 1 << 28, deleted_at=lambda tenant: deletions.get(tenant, 0.0))
    prompt, num_kept = np.arange(3, 60), {}
    open_slots = {tenant: slots.take(tenant, prompt) for tenant in ("ann", "bob")}
    for slot in open_slots.values():
        model.compute(slots.states, [(slot.row, prompt, None, 1)])
        slots.states.commit(slot.row, np.arange(len(prompt)))
    deletions["ann"] = time.time()
    slots.forget_deleted()
    for tenant, slot in open_slots.items():
        assert slots.states.length(slot.row) == len(prompt)
        slots.give_back(slot, prompt)
        num_kept[tenant] = slots.states.length(slot.row)
    assert num_kept == {"ann": 0, "bob": len(prompt)}


def test_states_beyond_the_limit_of_memory_are_forgotten(served_model):
    model, _ = served_model
    of_one = model.weights.cache_bytes(100)
    served = make_served(*served_model, max_bytes=2 * of_one)
    with listening(served) as address:
        for prompt in PROMPTS:
            complete(address, prompt)
            assert served.engine._slots.num_bytes <= 2 * of_one


def test_a_request_whose_client_leaves_ends(served_model):
    with listening(make_served(*served_model, parallel=1)) as address:
        body = {"prompt": "x = 1\n", "max_tokens": 900, "stream": True, "logit_bias": {"0": -100}}
        for stream in (True, False):
            request = urllib.request.Request(
                f"{address}/v1/completions", json.dumps(body | {"stream": stream}).encode()
            )
            if stream:
                with urllib.request.urlopen(request) as answer:
                    answer.readline()
            else:
                with pytest.raises(TimeoutError):
                    urllib.request.urlopen(request, timeout=0.05)
        # The only place is free again.
        complete(address, "import os\n")
        assert metrics(address)["specds_requests_canceled_total"] == 2


def test_a_full_queue_is_an_answer(served_model):
    body = {"prompt": "x = 1\n", "max_tokens": 900, "logit_bias": {"0": -100}}
    with listening(make_served(*served_model, parallel=1, max_waiting=1)) as address:
        threads = [
            threading.Thread(target=post, args=(address, "/v1/completions", body)) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        while metrics(address)["specds_requests_waiting"] < 1:
            time.sleep(0.01)
        request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode())
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        with refused.value as error:
            assert (error.code, error.headers["Retry-After"]) == (503, "2")
            assert json.loads(error.read())["error"]["type"] == "overloaded_error"
        for thread in threads:
            thread.join()
        assert metrics(address)["specds_requests_finished_total"] == 2


def test_a_grammar_that_fails_ends_its_own_text_alone(served_model, monkeypatch):
    served = make_served(*served_model)
    read = served.reader.completion

    def with_fault(body, tenant):
        call = read(body, tenant)
        if body["prompt"] == "fail":
            # A grammar of another tokenizer fails at its first token.
            call.prompts[0].__dict__["grammar"] = partial(_Broken, np.zeros(7, dtype=bool))
        return call

    monkeypatch.setattr(served.reader, "completion", with_fault)
    with listening(served) as address, ThreadPoolExecutor(2) as pool:
        other = pool.submit(complete, address, "import os\n", max_tokens=100)
        status, answer = post(address, "/v1/completions", {"prompt": "fail", "max_tokens": 50})
        assert (status, "grammar" in answer["error"]["message"]) == (400, True)
        assert other.result()["usage"]["completion_tokens"] == 100


class _Broken:
    ended = False

    def __init__(self, allowed):
        self._allowed = allowed

    def ahead(self):
        return []

    def push(self, token):
        return False

    def pop(self, count):
        pass

    def mask(self):
        return self._allowed
