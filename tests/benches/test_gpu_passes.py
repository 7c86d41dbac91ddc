"""The parts of a pass are timed one by one, and a kernel that cannot be used is told as such."""

import json

import gpu_passes


def test_passes_their_parts_and_every_way_to_attend_are_timed(tmp_path, capsys):
    out = tmp_path / "passes.json"
    sizes = ("--slots", "64", "--widths", "1", "5")
    small = ("--device", "cpu", "--dtype", "float32", "--shape", "tiny")
    assert gpu_passes.main([*small, *sizes, "--out", str(out)]) == 0
    measured = json.loads(out.read_text())
    assert all(min(row.values()) > 0 for row in measured["passes"])
    seconds = {row["way"]: row["seconds"] for row in measured["attention"] if row["width"] == 5}
    assert list(seconds) == ["chosen", *gpu_passes.KERNELS]
    assert seconds["cudnn"] is None  # a processor has no such kernel
    assert "attention of a layer" in capsys.readouterr().out
