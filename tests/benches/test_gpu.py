"""Dry runs of the GPU benchmark on a CPU."""

import argparse
import json

from gpu import launches
from gpu.__main__ import DRY, SHARES, main
from triton_on_cpu import interpreted


def figures_of(out):
    return {figure["name"]: figure for figure in json.loads(out.read_text())["figures"]}


def test_all_parts_run_on_a_cpu(tmp_path, capsys):
    out = tmp_path / "gpu.json"
    parts = ("launches", "real", "invariant", "hybrid", *SHARES)
    main([*parts, "--dry", "--out", str(out)])
    printed, figures = capsys.readouterr().out, figures_of(out)
    assert not {f"{part} failed" for part in parts} & figures.keys(), printed
    assert figures["float32, greedy: texts that differ"]["met"]
    assert figures["bfloat16, sampled: texts that differ by their drafts, shape_invariant"]["met"]
    assert figures["7 rows of 151,936: wrong"]["met"]
    assert figures["draws that failed"]["met"]
    assert figures["63 nodes after 16 tokens, over none"]["met"] is not None
    assert figures["float32: texts of specds that differ"]["met"]
    assert figures["float32, chat: texts that differ by drafts, shape_invariant"]["met"]
    assert figures["qwen3_5: texts that differ"]["met"]
    assert figures["7 nodes of a chain after 16 tokens, over none"]["value"] > 0
    assert figures["Gemma 3: a layer"]["value"] > figures["Llama: a layer"]["value"] > 5


def test_part_without_enough_time_is_skipped(tmp_path, capsys):
    main(["noise", "--dry", "--seconds", "5", "--out", str(tmp_path / "gpu.json")])
    assert "skipped: 5 s are left of 10" in capsys.readouterr().out


def test_layer_with_triton_kernels_has_nine_launches(monkeypatch):
    monkeypatch.setattr(launches, "WIDTH", 2)
    with interpreted():
        found = [*launches.figures(argparse.Namespace(**DRY, dry=True))]
    held = [figure for figure in found if figure.at_most is not None]
    assert [figure.met for figure in held] == [True] * 6
    assert [figure.value for figure in found if "a layer" in figure.name] == [9] * 3
