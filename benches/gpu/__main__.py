"""Benchmark of a GPU in independent parts, each figure printed with its threshold.

    PYTHONPATH=python:benches:tests/helpers python -m gpu [PART ...] [--case ANSWERS STORE BAR] ...

A part that fails does not stop the next. `--out` receives all figures so far. Only `real`
downloads, a model. `--dry` runs small sizes on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu.figure import Figure

DRY = {
    "device": "cpu",
    "dtype": "float32",
    "shape": "tiny",
    "contexts": [16],
    "batches": [2],
    "limit": 2,
    "new_tokens": 6,
    "runs": 1,
    "second_shape": "tiny",
    "kinds": ["chat"],
    "ways": ["generate", "plain"],
    "model": str(Path(__file__).parents[2] / "packages/demo/specds_demo/tiny"),
}
USUAL = ("curve", "curve-of-second")
"""Parts of a run without names, in order."""
PARTS = {
    **dict.fromkeys(("curve", "curve-of-second"), "curve"),
    "answers": "forced",
    **dict.fromkeys(("real", "invariant"), "weights"),
}
"""The module of each part, where it is `figures` or the function of its name."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    if options.dry:
        vars(options).update(DRY)
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        print("no CUDA device: this needs a GPU whose memory holds the shape; try --dry")
        return 1
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        figures = list(_figures(options))
    # A figure without a value has not met its threshold.
    held = [figure for figure in figures if figure.bar]
    missed = [figure.name for figure in held if not figure.met]
    print(f"\n{len(held) - len(missed)} of {len(held)} thresholds met", *missed, sep="\n  missed: ")
    return 1 if missed else 0


def _figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Yield the figures of all parts, each printed and saved at once."""
    from gpu.figure import machine

    written: list[dict[str, Any]] = []
    for name in options.parts or USUAL:
        print(f"\n{name}", flush=True)
        started = perf_counter()
        for figure in _until_failure(name, options):
            met = {True: "met", False: "MISSED", None: ""}[figure.met]
            value = "-" if figure.value is None else f"{figure.value:,.4g}"
            print(
                f"  {figure.name}: {value} {figure.unit}  {figure.bar} {met}  {figure.note}",
                flush=True,
            )
            written.append(figure.to_dict())
            options.out.parent.mkdir(parents=True, exist_ok=True)
            about = {"machine": machine(), "options": vars(options), "figures": written}
            options.out.write_text(json.dumps(about, indent=1, default=str), encoding="utf-8")
            yield figure
        print(f"  ({perf_counter() - started:.0f} s)", flush=True)
        free_memory()


def _until_failure(name: str, options: argparse.Namespace) -> Iterator[Figure]:
    """Yield the figures of a part; a failure ends them, and is one that misses its threshold."""
    from gpu.figure import Figure

    try:
        # A part that cannot be imported does not stop the others either.
        module = import_module(f"gpu.{PARTS[name]}")
        part = getattr(module, "figures", None) or getattr(module, name.replace("-", "_"))
        print(f"  {(part.__doc__ or '').splitlines()[0]}", flush=True)
        yield from part(options)
    except Exception:
        traceback.print_exc()
        yield Figure(f"{name} failed", None, at_most=0)


def free_memory() -> None:
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.compiler.reset()
        torch.cuda.empty_cache()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="by default those of steps")
    parser.add_argument(
        "--case",
        nargs=3,
        metavar=("ANSWERS", "DATASTORE", "BAR"),
        action="append",
        default=[],
        help="recorded answers, a datastore, and the minimum speedup",
    )
    parser.add_argument("--dry", action="store_true", help="small sizes on a CPU")
    parser.add_argument("--shape", default="llama-2-7b")
    parser.add_argument("--second-shape", default="llama-3-8b")
    parser.add_argument("--tokenizer", help="of the answers; by default the datastore's")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 8192])
    sizes = {"type": int, "nargs": "+", "default": [1, 7, 15, 31, 63]}
    parser.add_argument("--nodes", **sizes, help="of a pass")
    parser.add_argument("--model", default="smollm2", help="of `make bench-real`, or a folder")
    several = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--kinds", **several, help="of requests to a real model; by default all")
    ways = ["generate", "compiled", "plain"]
    parser.add_argument("--ways", **several, default=ways, help="beside ours; `plain` must be one")
    parser.add_argument("--batches", type=int, nargs="*", default=[4, 16, 32])
    parser.add_argument("--limit", type=int, default=16, help="answers of a file")
    parser.add_argument("--new-tokens", type=int, default=256, help="of an answer at most")
    parser.add_argument("--runs", type=int, default=3)
    out = Path(os.environ.get("OUT", "build"), "bench-gpu.json")
    parser.add_argument("--out", type=Path, default=out)
    return parser


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
