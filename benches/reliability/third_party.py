"""Experiments with third-party models, packages and machines.

Cases whose package is not installed are skipped.
"""

import contextlib
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from models import (
    FAMILIES,
    GREEDY,
    HYBRIDS,
    SAMPLING,
    VOCAB_SIZE,
    build,
    mixed_drafter,
    plain_generate,
    tree_generate,
)
from specds import Datastore, FusedConfig, FusedDrafter, UnsupportedModelError

Tried = Iterator[bool | None]
"""Result of each try; None if it was rejected with an error that names the reason."""


def _alike(model: torch.nn.Module) -> Tried:
    """Compare greedy and sampled texts with `model.generate`."""
    for seed, mode in enumerate((GREEDY, SAMPLING)):
        expected = plain_generate(model, seed, 24, **mode)
        try:
            output = tree_generate(model, mixed_drafter(expected), seed, 24, **mode)
        except UnsupportedModelError:
            yield None
        else:
            yield output.sequences.tolist() == [expected]


def adapters(_: Path) -> Tried:
    """PEFT: other weights, or none, in each call."""
    from peft import LoraConfig, get_peft_model

    settings = {"r": 4, "init_lora_weights": False, "target_modules": "all-linear"}
    for family in ("llama", "gemma3", "gpt2"):
        config = LoraConfig(task_type="CAUSAL_LM", **settings)
        model = get_peft_model(build(*FAMILIES[family]), config, adapter_name="a")
        model.add_adapter("b", config)
        for name in ("a", "b", "a"):
            model.set_adapter(name)
            yield from _alike(model)
        with model.disable_adapter():
            yield from _alike(model)
        model.merge_adapter()
        yield from _alike(model)
        model.unmerge_adapter()
        yield from _alike(model.base_model.model)


def compiled(_: Path) -> Tried:
    """`torch.compile`: the object, its forward, the model in place, a layer of it."""
    with torch.random.fork_rng():
        yield from _alike(torch.compile(build(*FAMILIES["llama"]), backend="eager"))
        model = build(*FAMILIES["llama"])
        model.forward = torch.compile(model.forward, backend="eager")
        yield from _alike(model)
        model = build(*FAMILIES["llama"])
        model.compile(backend="inductor", dynamic=True)
        yield from _alike(model)
        model = build(*FAMILIES["gpt2"])
        model.transformer.h[0].compile(backend="eager")
        yield from _alike(model)


def torchao(_: Path) -> Tried:
    """Weights of eight bits."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    for family in ("llama", "qwen3", "gemma3"):
        model = build(*FAMILIES[family])
        quantize_(model, Int8WeightOnlyConfig())
        yield from _alike(model)


def bitsandbytes(folder: Path) -> Tried:
    """Weights of eight and of four bits, as `from_pretrained` loads them."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    config_class, shape = FAMILIES["llama"]
    wide = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}  # 64 share a scale
    build(config_class, shape | wide).save_pretrained(folder)
    for bits in ({"load_in_8bit": True}, {"load_in_4bit": True}):
        config = BitsAndBytesConfig(**bits)
        yield from _alike(AutoModelForCausalLM.from_pretrained(folder, quantization_config=config))


def placed(folder: Path) -> Tried:
    """`device_map`: all weights on one device, and the last ones on the disk."""
    from transformers import AutoModelForCausalLM

    for family, of in (FAMILIES | HYBRIDS).items():
        model, saved = build(*of), folder / family
        model.save_pretrained(saved)
        part = {"cpu": model.get_memory_footprint() * 3 // 4}  # has the embeddings, as it must
        for room in (None, part):
            options = {"device_map": "auto", "max_memory": room, "offload_folder": folder / "disk"}
            yield from _alike(AutoModelForCausalLM.from_pretrained(saved, **options))


def _drafts(drafter: FusedDrafter, number: int) -> list[int]:
    prompt = np.random.default_rng(number).integers(0, VOCAB_SIZE, 9).tolist() * 2
    session = drafter.session(prompt)
    session.observe(prompt[:3])
    return session.draft(16).token_ids.tolist()


def forks(folder: Path) -> Tried:
    """A drafter in workers of a DataLoader that were forked, after the parent drafted with it."""
    from specds import build_from_token_ids

    texts = np.random.default_rng(1).integers(0, VOCAB_SIZE, (200, 50)).tolist()
    store = build_from_token_ids(texts, folder / "d", vocab_size=VOCAB_SIZE)
    drafter = FusedDrafter(store.path, FusedConfig(learns=False))
    expected = [_drafts(drafter, number) for number in range(64)]
    workers = {"num_workers": 4, "multiprocessing_context": get_context("fork"), "timeout": 60}
    drafts = partial(_drafts, drafter)
    loader = torch.utils.data.DataLoader(range(64), None, collate_fn=drafts, **workers)
    for one, other in zip(expected, loader, strict=True):
        yield one == other


def _build(corpus: Path, out: Path, around: str = "{}", options: str = "") -> tuple[int, str]:
    """Run `specds build` in a shell; return its exit code and error message."""
    command = f"exec {sys.executable} -m specds build --corpus {corpus} --tokenizer demo"
    shell = ["sh", "-c", around.format(f"{command} --out {out} {options}")]
    ran = subprocess.run(shell, capture_output=True, text=True)
    told = [line for line in ran.stderr.splitlines() if line.startswith("error: ")]
    return ran.returncode, told[-1] if told and "Traceback" not in ran.stderr else ""


def _corpus(folder: Path) -> Path:
    words = [f"def word_{number}(): return {number * number}\n" for number in range(20_000)]
    (folder / "a.txt").write_text("".join(words))
    return folder / "a.txt"


def quotas(folder: Path) -> Tried:
    """A build under a limit on the size of files: one sentence, and the next build is whole."""
    corpus, out = _corpus(folder), folder / "d"
    for blocks in (2, 32, 256, 1024):  # of 512 bytes
        code, told = _build(corpus, out, f"ulimit -f {blocks}; {{}}")
        yield code == 1 and "file too large" in told and not out.exists()
    yield _build(corpus, out)[0] == 0 and Datastore(out).verify() is None


def full_disks(folder: Path) -> Tried:
    """A build on a small disk that fills."""
    corpus, disk = _corpus(folder), folder / "disk"
    disk.mkdir()
    for size in ("8k", "64k", "256k", "512k"):
        mount = f"mount -t tmpfs -o size={size} none {disk}"
        code, told = _build(corpus, disk / "d", f"exec unshare -rm sh -c '{mount} && {{}}'")
        yield code == 1 and "no space left" in told and str(disk) in told
    yield _build(corpus, folder / "d")[0] == 0


def bombs(folder: Path) -> Tried:
    """Files that unpack to 2 GiB, with 4 GB of address space: skipped or rejected."""
    good = b'{"text": "some words of a text"}\n'
    for name, start, filling in (
        ("a.jsonl.gz", b'{"text": "', b"a"),
        ("b.json.gz", b'[{"text": "', b"a"),
        ("c.txt.gz", b"", b"a b "),
        ("d.jsonl.gz", b"", b"["),
    ):
        with gzip.open(folder / name, "wb", compresslevel=1) as file:
            file.write(good + start if name.endswith("l.gz") else start)
            for _ in range(1 << 7):
                file.write(filling * ((1 << 24) // len(filling)))
        for skips in ("fail", "skip"):
            bound, options = "ulimit -v 4000000; {}", f"--on-bad-row {skips}"
            code, told = _build(folder / name, folder / "d", bound, options)
            whole = skips == "skip" and name.endswith("l.gz")
            yield code == (0 if whole else 1) and bool(told) != whole
            shutil.rmtree(folder / "d", ignore_errors=True)


def small_files(folder: Path) -> Tried:
    """Build from files of a line each; a build is killed, and the next one has twice the time."""
    for number in range(NUM_SMALL_FILES):
        path = folder / "src" / str(number % 100) / f"{number}.py"
        if number < 100:
            path.parent.mkdir(parents=True)
        path.write_text(f"x{number} = {number}\n")
    code, seconds = -1, 1
    while code < 0:
        code, _ = _build(folder / "src", folder / "d", f"ulimit -t {seconds}; {{}}")
        yield code <= 0
        seconds *= 2
    built = Datastore(folder / "d")
    built.verify()
    names = {built.source(index) for index in range(0, NUM_SMALL_FILES, 1000)}
    yield built.num_documents == NUM_SMALL_FILES and len(names) == NUM_SMALL_FILES // 1000


NUM_SMALL_FILES = 100_000
CASES: dict[str, Callable[[Path], Tried]] = {
    "PEFT adapters switched between calls": adapters,
    "models by `torch.compile`": compiled,
    "models quantized by torchao": torchao,
    "models quantized by bitsandbytes": bitsandbytes,
    "models placed by `device_map`": placed,
    "drafters in forked workers of a DataLoader": forks,
    "builds under a quota on the size of files": quotas,
    "builds on a disk that fills": full_disks,
    "files that unpack to 2 GiB": bombs,
    "100,000 small files, under kills": small_files,
}


def tried(name: str) -> list[bool | None] | None:
    """Return the results of a case; None if its package is not installed."""
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ImportError):
        return [*CASES[name](Path(folder))]
    return None


def figures() -> list[str]:
    """Return the lines of the section: a table of cases."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    rows = ["| case | runs | rejected | wrong |", "| --- | ---: | ---: | ---: |"]
    for name in CASES:
        found = tried(name)
        count = "not installed | | "
        if found is not None:
            count = f"{len(found)} | {found.count(None)} | {found.count(False)}"
        print(name, count, flush=True)
        rows.append(f"| {name} | {count} |")
    return rows
