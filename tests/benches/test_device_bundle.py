"""Pieces of a bundle for a machine with a GPU: joined, missing and damaged."""

import json
import sys

import pytest

from engines import device_assemble, device_bundle
from engines.device_assemble import MANIFEST, join, sha256


def test_pieces_are_joined_unless_one_is_missing_or_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr(device_bundle, "MOST_BYTES", 100)
    made, folder = tmp_path / "pieces", tmp_path / "folder"
    made.mkdir()
    wholes = {"bundle.tar.gz": bytes(range(250)), "model.gguf": bytes(1150)}
    pieces = []
    for name, content in wholes.items():
        whole = tmp_path / name
        whole.write_bytes(content)
        pieces += device_bundle.split(whole, made / name)
    assert [len(piece.read_bytes()) for piece in pieces] == [100, 100, 50, *[100] * 11, 50]
    (made / MANIFEST).write_text(json.dumps({piece.name: sha256(piece) for piece in pieces}))
    joined = join(made, folder)
    assert {path.name: path.read_bytes() for path in joined} == wholes
    pieces[1].write_bytes(bytes(100))
    pieces[-1].unlink()
    with pytest.raises(SystemExit, match=f"damaged: {pieces[1].name}, {pieces[-1].name}$"):
        join(made, tmp_path / "other")


def test_other_versions_of_python_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(device_assemble, "PYTHON", (3, sys.version_info.minor + 1))
    with pytest.raises(SystemExit, match="its wheels are for Python 3"):
        device_assemble.main()
