"""A headless Chromium: what a page becomes, and what it says to its console."""

import re
import shutil
import subprocess

CHROMIUM = shutil.which("chromium-browser") or shutil.which("chrome") or "chromium"


def rendered(url, folder, *, width=1400, height=1000, shot=None):
    """The document after its scripts, and the lines of its console; a screenshot on demand."""
    command = [
        CHROMIUM,
        *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--disable-dev-shm-usage", "--enable-logging=stderr", "--virtual-time-max_nodes=4000"),
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},{height}",
        f"--screenshot={shot}" if shot else "--dump-dom",
        url,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    console = re.findall(r"CONSOLE[^\"]*\"(.*)\", source", done.stderr)
    return done.stdout, console
