"""The parts of a pass are timed one by one, and a kernel that cannot be used is told as such."""

import json

import gpu_passes


def test_passes_their_parts_and_every_way_to_attend_are_timed(tmp_path, capsys):
    out = tmp_path / "passes.json"
    sizes = ("--slots", "64", "48", "--widths", "1", "5")
    small = ("--device", "cpu", "--dtype", "float32", "--shape", "tiny")
    assert gpu_passes.main([*small, *sizes, "--out", str(out)]) == 0
    measured = json.loads(out.read_text())
    assert [row["width"] for row in measured["passes"]] == [1, 5]
    assert all(min(row.values()) > 0 for row in measured["passes"])
    assert {"linear", "pass", "accept", "accept and tell"} < measured["passes"][0].keys()
    seconds = {(r["slots"], r["width"], r["way"]): r["seconds"] for r in measured["attention"]}
    ways = ["chosen", *gpu_passes.KERNELS]
    assert [key[2] for key in seconds if key[:2] == (64, 5)] == [*ways, "2 chunks", "4 chunks"]
    assert [key[2] for key in seconds if key[:2] == (48, 1)] == ways
    assert seconds[64, 5, "4 chunks"] > 0
    # A processor has no such kernel.
    assert seconds[64, 5, "cudnn"] is None
    assert "attention of a layer" in capsys.readouterr().out
