"""What `import specds` costs, and what it offers."""

import subprocess
import sys

import pytest

import specds


def test_import_needs_numpy_alone():
    program = (
        "import sys, specds.stats; "
        "print([m for m in ('torch', 'transformers', 'rich', 'typer') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", specds.__all__)
def test_every_public_name_is_there_and_documented(name):
    value = getattr(specds, name)
    assert name == "__version__" or value.__doc__


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = specds.nonsense
