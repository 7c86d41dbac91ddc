"""Commands of specds in processes of their own."""

import os
import signal
import subprocess
import sys


def started(*words, env=None, **options):
    """Start a command, unbuffered, that handles interrupts (a shell's background jobs do not)."""
    return subprocess.Popen(
        [sys.executable, "-m", "specds", *map(str, words)],
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env={**(env or os.environ), "PYTHONUNBUFFERED": "1"},
        **options,
    )
