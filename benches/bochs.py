"""Runs a static program on an emulated x86-64 processor with AVX-512, AVX-VNNI and AVX2.

    python benches/bochs.py PROGRAM [ARGUMENT ...]

Bochs 3.0, compiled with `--enable-evex --with-nogui` and without its debugger, is on the path, or
`BOCHS` names it. It boots the newest kernel in `/boot`, or `KERNEL`: one of Debian's
linux-image-cloud-amd64. The disc takes Debian's busybox-static, cpio, isolinux, syslinux-common and
xorriso.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_MAX_SECONDS = 1800
_BUSYBOX = Path("/bin/busybox")
_LOADER = (
    Path("/usr/lib/ISOLINUX/isolinux.bin"),
    Path("/usr/lib/syslinux/modules/bios/ldlinux.c32"),
)
# A stop of the kernel resets the processor, which ends the emulator.
_KERNEL_OPTIONS = (
    "console=ttyS0 quiet panic=-1 reboot=t mitigations=off nokaslr lsm= lpj=80000 "
    "random.trust_cpu=on rdinit=/init"
)
_SETTINGS = """\
display_library: nogui
romimage: file=$BXSHARE/BIOS-bochs-latest
vgaromimage: file=$BXSHARE/VGABIOS-lgpl-latest
cpu: model=corei7_skylake_x, add_features="avx512vnni, avx_vnni"
cpu: ips=20000000, reset_on_triple_fault=0
clock: sync=none
memory: guest=1024, host=1024
boot: cdrom
ata0-master: type=cdrom, path={folder}/disc.iso, status=inserted
com1: enabled=1, mode=file, dev={folder}/output
log: {folder}/log
panic: action=fatal
error: action=ignore
info: action=ignore
"""


def run(program: Path, commands: Sequence[str]) -> str:
    """Return what these commands of a shell print, in which the program is `/program`.

    Raises:
        SystemExit: if one fails, or the emulator or what it needs does not work.
    """
    kernel = os.environ.get("KERNEL") or max(map(str, Path("/boot").glob("vmlinuz-*")), default="")
    emulator = os.environ.get("BOCHS") or shutil.which("bochs") or ""
    needed = [
        program,
        Path(kernel or "/boot/vmlinuz-*"),
        Path(emulator or "bochs"),
        _BUSYBOX,
        *_LOADER,
    ]
    if missing := [str(path) for path in needed if not path.is_file()]:
        sys.exit(f"{', '.join(missing)} missing: see the head of {__file__}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root, disc = folder / "root", folder / "disc"
        for path in (root / "tmp", root / "proc", disc):
            path.mkdir(parents=True)
        shutil.copy(program, root / "program")
        shutil.copy(_BUSYBOX, root / "busybox")
        lines = [
            "#!/busybox sh",
            "/busybox mount -t proc proc /proc",
            "export PROPTEST_FAILURE_PERSISTENCE=off",
            "echo; echo begin",
            f"({'; '.join(commands)})",
            'echo "ended with $?"',
            "/busybox sleep 1",
            "/busybox poweroff -f",
        ]
        (root / "init").write_text("\n".join(lines) + "\n")
        (root / "init").chmod(0o755)
        for path in (*_LOADER, Path(kernel)):
            shutil.copy(path, disc / ("kernel" if path == Path(kernel) else path.name))
        files = "\n".join(str(path.relative_to(root)) for path in root.rglob("*"))
        with (disc / "files").open("wb") as archive:
            command = ["cpio", "--create", "--format=newc", "--quiet"]
            subprocess.run(command, cwd=root, input=files.encode(), stdout=archive, check=True)
        (disc / "isolinux.cfg").write_text(
            f"default linux\nlabel linux\nkernel kernel\nappend initrd=files {_KERNEL_OPTIONS}\n"
        )
        command = ["xorriso", "-as", "mkisofs", "-quiet", "-o", "disc.iso", "-b", "isolinux.bin"]
        command += ["-c", "boot.cat", "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table"]
        subprocess.run([*command, "disc"], cwd=folder, stderr=subprocess.DEVNULL, check=True)
        (folder / "settings").write_text(_SETTINGS.format(folder=folder))
        ended = subprocess.run(
            [emulator, "-q", "-f", folder / "settings"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_MAX_SECONDS,
            check=False,
        )
        output = folder / "output"
        text = output.read_text(errors="replace").replace("\r", "") if output.exists() else ""
    found = re.search(r"^begin\n(.*)^ended with (\d+)$", text, re.DOTALL | re.MULTILINE)
    if not found or found[2] != "0":
        sys.exit(f"{text}\n{ended.stderr[-1000:]}")
    return found[1]


if __name__ == "__main__":
    print(run(Path(sys.argv[1]), [shlex.join(["/program", *sys.argv[2:]])]), end="")
