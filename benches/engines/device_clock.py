"""Time of steps on a simulated device, whose clock is virtual: its work takes a given time.

`python -m engines.device_clock` prints, for steps of 8, 20 and 60 ms, the time of a step over that
of vLLM without specds, where nothing can be drafted, with asynchronous scheduling and without; and
the tokens of a step where the answers repeat their prompts. Then, for steps whose time rises with
their tokens, the speedup of the first steps if their cost is known, if passes of the model were
measured before, and if only steps are, where the answers repeat all but some tokens. The host can
only queue work and wait for it. Its own time, and that of the thread that drafts, is the CPU time
that they take here, which other load does not change. Our own kernels are not counted.
"""

import sys
from time import thread_time
from types import SimpleNamespace

import numpy as np
import torch

from specds.integrations.vllm_ahead import AheadSpeculator, Copied, SideStream
from specds.integrations.vllm_v2 import ChainSpeculator

K, VOCAB_SIZE, PROMPT = 8, 50_000, 400
SCHEDULING_S = 0.001
"""Host time of a step of vLLM itself."""


class SimulatedWorker:
    """The thread that drafts: its work is done when the clock of the device has passed its end."""

    def __init__(self):
        self.waiting = []

    def submit(self, work, *args):
        self.waiting.append((work, args))


class SimulatedCopy(Copied):
    """A copy that the device ends at a time."""

    def __init__(self, host, runner):
        super().__init__(host)
        self.runner, self.ready_s = runner, runner.device_s

    def is_ready(self):
        return self.ready_s <= self.runner.drafting_s


class SimulatedStream(SideStream):
    def __init__(self, runner):
        super().__init__(torch.device("cpu"))
        self.runner, self.writes = runner, []

    def copied(self, tensor):
        return SimulatedCopy(tensor.clone(), self.runner)

    def write(self, tables, rows, values):
        self.writes.append((tables, rows, values))


class SimulatedRunner:
    """A model that writes known answers, in steps of a known time.

    Attributes:
        host_s, device_s, drafting_s: The clocks of the host, of the device, and of the drafting
            thread.
    """

    def __init__(self, answers, step_s, kind, *, token_s=0.0, step_cost="ignored"):
        rows, length = answers.shape
        self.answers, self.step_s, self.kind, self.token_s = answers, step_s, kind, token_s
        self.tokens = torch.zeros((rows, length), dtype=torch.int32)
        self.tokens[:, :PROMPT] = torch.from_numpy(answers[:, :PROMPT].astype(np.int32))
        self.lengths = torch.full((rows,), PROMPT, dtype=torch.int32)
        self.last = torch.zeros((rows, 1), dtype=torch.int64)
        self.num_sampled = torch.ones(rows, dtype=torch.int32)
        self.drafts = torch.zeros((rows, K), dtype=torch.int64)
        self.num_drafted = np.zeros(rows, np.int64)
        self.names = [f"request {row}" for row in range(rows)]
        self.host_s = self.device_s = self.drafting_s = 0.0
        self.ends, self.written = [0.0, 0.0], []
        states = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=self.tokens),
            total_len=SimpleNamespace(gpu=self.lengths),
            req_id_to_index={name: row for row, name in enumerate(self.names)},
        )
        self.speculator = None
        if kind is not None:
            config = config_of(rows, length, step_cost, is_async=kind is AheadSpeculator)
            self.speculator = kind(config, torch.device("cpu"), states)
            self.speculator._now = lambda: self.host_s
        if kind is AheadSpeculator:
            self.stream = self.speculator.stream = SimulatedStream(self)
            self.worker = self.speculator._worker = SimulatedWorker()

    def compute(self):
        """Accept the drafts that the answers have, and write one more token of each row."""
        for row, length in enumerate(self.lengths.tolist()):
            drafted = self.drafts[row, : self.num_drafted[row]].numpy()
            following = self.answers[row, length : length + K + 1]
            agrees = drafted == following[: len(drafted)]
            number = 1 + (len(agrees) if agrees.all() else int(agrees.argmin()))
            emitted = torch.from_numpy(following[:number].astype(np.int32))
            self.tokens[row, length : length + number] = emitted
            self.lengths[row] += number
            self.last[row, 0], self.num_sampled[row] = emitted[-1].item(), number

    def num_tokens(self):
        """Return the tokens of the next step."""
        return len(self.names) + int(self.num_drafted.sum())

    def pass_s(self, num_tokens):
        return self.step_s + self.token_s * (num_tokens - 1)

    def step(self, new=()):
        """Run a step, and drafts after it, on all clocks."""
        is_ahead = self.kind in (None, AheadSpeculator)
        # With asynchronous scheduling, the host knows the tokens of the step before the last.
        self.host_s = max(self.host_s, self.ends[-2 if is_ahead else -1]) + SCHEDULING_S
        self.device_s = max(self.host_s, self.device_s) + self.pass_s(self.num_tokens())
        self.ends.append(self.device_s)
        self.compute()
        if self.speculator is None:
            return
        if self.kind is AheadSpeculator:
            self.draft_before(self.device_s)
        else:
            self.host_s = self.device_s
        begun = thread_time()
        drafts = self.propose(new)
        self.host_s += thread_time() - begun
        self.drafts.copy_(drafts)
        if self.kind is AheadSpeculator:
            self.num_drafted = (self.speculator.draft_token_confidence_probs > 0).sum(1).numpy()
        else:
            taken = SimpleNamespace(req_ids=self.names, draft_token_ids=drafts.tolist())
            sizes = map(len, self.speculator.cut(taken).draft_token_ids)
            self.num_drafted = np.fromiter(sizes, np.int64, len(self.names))

    def draft_before(self, time_s):
        """Let the drafting thread run until the device compares its drafts."""
        while self.worker.waiting and self.drafting_s <= time_s:
            work, args = self.worker.waiting.pop(0)
            ready_s = self.speculator._copies[0].ready_s
            self.drafting_s = max(self.drafting_s, ready_s)
            begun = thread_time()
            work(*args)
            self.drafting_s += thread_time() - begun
            self.written += [(self.drafting_s, write) for write in self.stream.writes]
            self.stream.writes = []
        while self.written and self.written[0][0] <= time_s:
            SideStream.write(self.stream, *self.written.pop(0)[1])

    def propose(self, new):
        self.speculator.begin_step(
            SimpleNamespace(
                scheduled_new_reqs=new,
                scheduled_spec_decode_tokens={name: [-1] * K for name in self.names},
                finished_req_ids=set(),
                num_invalid_spec_tokens=None,
            )
        )
        places = np.arange(len(self.names))
        batch = SimpleNamespace(
            num_reqs=len(self.names),
            req_ids=self.names,
            idx_mapping=torch.from_numpy(places),
            idx_mapping_np=places,
        )
        about = (None, {}, None, None, self.num_sampled, None, self.last)
        return self.speculator.propose(batch, *about)

    def run(self, num_steps):
        """Return the seconds of a step and the new tokens of a row in it."""
        prompts = self.answers[:, :PROMPT].tolist()
        new = [
            SimpleNamespace(
                req_id=name,
                sampling_params=None,
                prompt_token_ids=prompt,
                prefill_token_ids=prompt,
            )
            for name, prompt in zip(self.names, prompts, strict=True)
        ]
        self.step(new)
        if self.kind is AheadSpeculator:
            self.draft_before(float("inf"))  # the prompts were read by more than one step
        self.drafting_s = self.host_s = self.device_s
        begun, before = self.device_s, self.lengths.sum().item()
        for _ in range(num_steps):
            self.step()
        if self.speculator is not None:
            assert self.speculator.num_failures == 0
        number = (self.lengths.sum().item() - before) / num_steps / len(self.names)
        return (self.device_s - begun) / num_steps, number


def config_of(rows, length, step_cost, *, is_async):
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            num_speculative_tokens=K, enable_adaptive_verification=True
        ),
        scheduler_config=SimpleNamespace(
            max_num_seqs=rows, max_num_batched_tokens=rows * (K + 1), async_scheduling=is_async
        ),
        model_config=SimpleNamespace(
            max_model_len=length, get_vocab_size=lambda: VOCAB_SIZE, tokenizer=None
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        additional_config={"specds": {"step_cost": step_cost}},
    )


def answers_of(rows, num_steps, *, repeats, new_share=0.0):
    """Return prompts and answers, of random tokens or of those of the prompts in turns.

    `new_share` of the latter are random too.
    """
    random = np.random.default_rng(0)
    length = PROMPT + (num_steps + 3) * (K + 1)
    texts = random.integers(0, VOCAB_SIZE, (rows, length))
    if repeats:
        repeated = np.tile(texts[:, :PROMPT], length // PROMPT + 1)[:, : length - PROMPT]
        is_new = random.random(repeated.shape) < new_share
        texts[:, PROMPT:] = np.where(is_new, texts[:, PROMPT:], repeated)
    return texts


TOKEN_COSTS = [(1, 0.05), (1, 0.2), (10, 0.01), (10, 0.03), (32, 0.003), (32, 0.02)]
"""Rows, and the time of a further token over that of a step of one token."""
STEP_S, NUM_FIRST, NEW_SHARE = 0.020, 60, 0.15


def speedups(rows, token_s, num_steps=NUM_FIRST):
    """Return the speedup of the first steps by the way in which their cost is known."""
    texts = answers_of(rows, num_steps, repeats=True, new_share=NEW_SHARE)
    about = {"token_s": token_s}
    seconds, _ = SimulatedRunner(texts, STEP_S, None, **about).run(num_steps)
    found = {}
    for way in ("known", "passes", "steps"):
        costs = [(n, STEP_S + SCHEDULING_S + token_s * (n - 1)) for n in (1, 4096)]
        cost = costs if way == "known" else "measured"
        runner = SimulatedRunner(texts, STEP_S, ChainSpeculator, **about, step_cost=cost)
        if way == "passes":
            sizes = (2**power for power in range((rows * (K + 1)).bit_length()))
            runner.speculator.drafter.set_passes([(n, runner.pass_s(n)) for n in sizes])
        with_drafts, number = runner.run(num_steps)
        found[way] = seconds / with_drafts * number
    return found


def main(rows=32, num_steps=100):
    texts = [answers_of(rows, num_steps, repeats=repeats) for repeats in (False, True)]
    print(
        "| ms of a step | asynchronous: time, new text | tokens of a step, repeated text |", end=""
    )
    print(" synchronous: time | tokens |\n| ---: | ---: | ---: | ---: | ---: |")
    for ms in (8, 20, 60):
        plain, _ = SimulatedRunner(texts[0], ms / 1000, None).run(num_steps)
        cells = []
        for kind in (AheadSpeculator, ChainSpeculator):
            seconds, _ = SimulatedRunner(texts[0], ms / 1000, kind).run(num_steps)
            _, number = SimulatedRunner(texts[1], ms / 1000, kind).run(num_steps)
            cells += [f"{seconds / plain:.3f}", f"{number:.2f}"]
        print(f"| {ms} | {' | '.join(cells)} |")
    print("\n| rows | cost of a token | speedup, cost known | passes measured | steps measured |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for number, share in TOKEN_COSTS:
        found = speedups(number, share * STEP_S)
        cells = " | ".join(f"{speedup:.2f}" for speedup in found.values())
        print(f"| {number} | {100 * share:.1f} % | {cells} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
