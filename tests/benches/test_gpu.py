"""Dry runs of the GPU benchmark on a CPU."""

import argparse
import json
import sys
from types import SimpleNamespace

from torch.nn.functional import scaled_dot_product_attention

from gpu import launches
from gpu.__main__ import DRY, SHARES, main
from triton_on_cpu import interpreted


def figures_of(out):
    return {figure["name"]: figure for figure in json.loads(out.read_text())["figures"]}


class Prefill:
    """Fake of FlashInfer's documented prefill."""

    def __init__(self, workspace, kv_layout):
        assert kv_layout == "NHD"

    def plan(
        self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, *, custom_mask, **_
    ):
        self.mask = custom_mask.view(qo_indptr[1], kv_indptr[1])

    def run(self, *states):
        by_head = (of.transpose(0, 1)[None] for of in states)
        found = scaled_dot_product_attention(*by_head, attn_mask=self.mask, enable_gqa=True)
        return found[0].transpose(0, 1)


def test_all_parts_run_on_a_cpu(tmp_path, capsys, monkeypatch):
    stand_in = SimpleNamespace(BatchPrefillWithRaggedKVCacheWrapper=Prefill)
    monkeypatch.setitem(sys.modules, "flashinfer", stand_in)
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
    attention = "2 x 2 heads of 16, 64 slots, 64 tokens"
    assert all(
        figures[f"{attention}: {of} and torch differ by"]["met"] for of in ("flex", "flashinfer")
    )
    assert figures[f"{attention}: cudnn"]["value"] is None  # a processor has no such kernel
    assert "not a CUDA device" in figures[f"{attention}: tree"]["note"]


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
