"""Programs that are typed to, in a pseudo-terminal of their own."""

import os
import pty
import select
import subprocess
import sys
import time

_MISSED_S = 10.0
"""Seconds without an answer after which a Ctrl-C was missed."""


class Typed:
    """A program of Python in a terminal.

    Attributes:
        shown: What it has shown so far, as UTF-8.
    """

    def __init__(self, *words, seconds=60, **variables):
        self._ours, theirs = pty.openpty()
        self._seconds, self.shown = seconds, ""
        self._process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200", **variables},
            preexec_fn=_own_terminal,
        )
        os.close(theirs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def type(self, text):
        os.write(self._ours, text.encode())

    def interrupt(self):
        """Press Ctrl-C. Python's readline misses one between its prompt and its `select`."""
        time.sleep(0.3)
        self.type("\x03")

    def interrupt_until(self, text, after):
        """Press Ctrl-C, again if it was missed, and wait as `wait_for` does."""
        self.interrupt()
        again = time.monotonic() + _MISSED_S
        while text not in self.shown[after:] and time.monotonic() < again:
            assert self._read(), (text, self.shown[after:])
        if text not in self.shown[after:]:
            self.interrupt()
        return self.wait_for(text, after)

    def wait_for(self, text, after=0):
        """Wait until the program has shown a text, and return where it ends."""
        deadline = time.monotonic() + self._seconds
        while text not in self.shown[after:]:
            assert time.monotonic() < deadline, (text, self.shown[after:])
            assert self._read(), (text, self.shown[after:])
        return self.shown.index(text, after) + len(text)

    def end(self):
        """Read until the program has ended, and return its exit code."""
        deadline = time.monotonic() + self._seconds
        while self._read():
            assert time.monotonic() < deadline, self.shown
        return self._process.wait(self._seconds)

    def _read(self):
        """Read what is shown within a second; return whether the program may show more."""
        if not select.select([self._ours], [], [], 1)[0]:
            return True
        try:
            more = os.read(self._ours, 1 << 16)
        except OSError:  # Linux's report of a terminal that no program has open
            return False
        self.shown += more.decode(errors="replace")
        return bool(more)


def _own_terminal():
    """Make the terminal the controlling one, whose Ctrl-C interrupts the program."""
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
