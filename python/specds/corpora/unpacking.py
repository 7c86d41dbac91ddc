"""Compressed files: gzip and zstd, with windows of any length."""

import gzip
import io
from typing import Any

from specds._lazy import imported

COMPRESSED = (".gz", ".zst")
_CHUNK = 1 << 18
_LONGEST_WINDOW = 1 << 31  # `zstd --long=31`


def decompressed(file: Any, name: str) -> Any:
    """Open the decompressed content of a file: gzip, zstd or none, by its suffix."""
    if name.lower().endswith(".gz"):
        return gzip.GzipFile(fileobj=file)
    if name.lower().endswith(".zst"):
        return io.BufferedReader(_Zstd(file), _CHUNK)
    return file


class _Zstd(io.RawIOBase):
    """The content of a file of zstd frames; one that is cut short raises EOFError at its end."""

    def __init__(self, file: Any) -> None:
        self._file, self._zstd = file, imported("zstandard")
        self._frame: Any = None
        self._packed = self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            if not self._packed:
                self._packed = self._file.read(_CHUNK)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("the file ends within a frame of zstd")
                return 0
            self._left = self._unpack()
        given, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(given)] = given
        return len(given)

    def _unpack(self) -> bytes:
        if self._frame is None:
            unpacker = self._zstd.ZstdDecompressor(max_window_size=_LONGEST_WINDOW)
            self._frame = unpacker.decompressobj()
        try:
            content: bytes = self._frame.decompress(self._packed)
        except self._zstd.ZstdError as error:
            raise OSError(str(error)) from error
        self._packed = self._frame.unused_data if self._frame.eof else b""
        if self._frame.eof:
            self._frame = None
        return content
