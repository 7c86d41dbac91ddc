"""A bundle for a machine with a GPU and without a network: vLLM, specds and SmolLM2.

    make device-bundle

`target/device` then has pieces below 60 MiB, their checksums and `assemble.py`, for a machine with
Python 3.12, torch 2.11 or later, and transformers. vLLM is Python alone, without its compiled
extension: Triton computes attention, and torch all other layers.
"""

import json
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

from engines import device_assemble, device_ops
from engines.device_assemble import MANIFEST, PYTHON, sha256
from real.models import gguf_of

ROOT = Path(__file__).parents[2]
OUT = ROOT / "target" / "device"
MOST_BYTES = 56 << 20
# Those that `LLM` imports, without those of torch and transformers.
# fmt: off
NEEDED = [
    "annotated-doc", "annotated-types", "apache-tvm-ffi", "cachetools", "cbor2",
    "compressed-tensors", "email-validator", "fastapi", "googleapis-common-protos", "httpcore2",
    "httpx2", "llguidance", "loguru", "msgspec", "openai", "opentelemetry-api",
    "opentelemetry-exporter-http-transport", "opentelemetry-exporter-otlp",
    "opentelemetry-exporter-otlp-common", "opentelemetry-exporter-otlp-proto-common",
    "opentelemetry-exporter-otlp-proto-grpc", "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-proto", "opentelemetry-sdk", "opentelemetry-semantic-conventions",
    "opentelemetry-semantic-conventions-ai", "oss-harmony", "partial-json-parser", "pybase64",
    "pydantic", "pydantic-core", "pydantic-extra-types", "python-multipart", "pyzmq", "sniffio",
    "starlette", "truststore", "typing-inspection", "xgrammar",
]
# fmt: on
_STRIPPED = {"__pycache__", "tests", "test"}
_MANYLINUX = ["manylinux1", "manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, 40))]


def main() -> None:
    site = OUT / "site"
    shutil.rmtree(OUT, ignore_errors=True)
    add_requirements(site)
    add_vllm(site)
    add_own(site)
    archive = OUT / "bundle.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
        tar.add(site, "site")
    shutil.rmtree(site)
    pieces = [*split(archive), *split(gguf_of("smollm2"), OUT / "model.gguf")]
    archive.unlink()
    sums = {piece.name: sha256(piece) for piece in pieces}
    (OUT / MANIFEST).write_text(json.dumps(sums, indent=1))
    shutil.copy(device_assemble.__file__, OUT / "assemble.py")
    for piece in pieces:
        print(f"{piece.stat().st_size / 2**20:6.1f} MiB {piece}")


def add_requirements(site: Path) -> None:
    """Install the wheels for another Python, in the versions of this environment."""
    versions = [f"{name}=={version(name)}" for name in NEEDED] + ["gguf"]
    about = ["--no-deps", "--only-binary=:all:", "--no-compile"]
    about += ["--python-version", ".".join(map(str, PYTHON))]
    about += [word for name in _MANYLINUX for word in ("--platform", f"{name}_x86_64")]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--target", str(site), *about, *versions], check=True)
    for folder in [path for path in site.rglob("*") if path.name in _STRIPPED and path.is_dir()]:
        shutil.rmtree(folder, ignore_errors=True)


def add_vllm(site: Path) -> None:
    import vllm

    source = Path(vllm.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.json", "benchmarks")
    shutil.copytree(source, site / "vllm", ignore=ignored)
    shutil.copy(device_ops.__file__, site / "vllm" / "_C_stable_libtorch.py")
    about = site / f"vllm-{vllm.__version__.partition('+')[0]}.dist-info"
    add_metadata(about, "vllm")


def add_own(site: Path) -> None:
    import specds

    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(specds.__file__).parent, site / "specds", ignore=ignored)
    for name in ("engines", "real"):
        shutil.copytree(ROOT / "benches" / name, site / name, ignore=ignored)
    own = site / "specds-0.dist-info"
    add_metadata(own, "specds")
    plug_in = site / "engines" / "vllm_cpu" / own.name / "entry_points.txt"
    shutil.copy(plug_in, own)


def add_metadata(folder: Path, name: str) -> None:
    version = folder.name.removesuffix(".dist-info").partition("-")[2]
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def split(path: Path, target: Path | None = None) -> list[Path]:
    """Split a file into pieces with numbers, next to it or to a target."""
    pieces, target = [], target or path
    with path.open("rb") as file:
        while part := file.read(MOST_BYTES):
            pieces.append(target.with_name(f"{target.name}.{len(pieces)}"))
            pieces[-1].write_bytes(part)
    return pieces


if __name__ == "__main__":
    main()
