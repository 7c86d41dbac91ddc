"""Writes the version and the checksum of a release into the conda recipe and the Homebrew formula.

`python scripts/set_release.py target/wheels/specds-0.1.0.tar.gz`
"""

import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = ("packages/conda/recipe.yaml", "packages/homebrew/specds.rb")


def updated(text: str, version: str, checksum: str) -> str:
    """Return a recipe or a formula with another version and checksum."""
    text = re.sub(r'(?m)^(  version: ")[\d.]+', rf"\g<1>{version}", text)
    text = re.sub(r"(/v|specds-)\d+\.\d+\.\d+", rf"\g<1>{version}", text)
    return re.sub(r'(sha256:? ")[0-9a-f]{64}', rf"\g<1>{checksum}", text)


def main() -> None:
    source = Path(sys.argv[1])
    named = re.fullmatch(r"specds-(\d+\.\d+\.\d+)\.tar\.gz", source.name)
    if named is None:
        sys.exit(f"{source} is not specds-VERSION.tar.gz")
    checksum = hashlib.sha256(source.read_bytes()).hexdigest()
    for name in FILES:
        path = ROOT / name
        path.write_text(updated(path.read_text(), named[1], checksum))
        print(f"{name}: {named[1]}, {checksum[:12]}")


if __name__ == "__main__":
    main()
