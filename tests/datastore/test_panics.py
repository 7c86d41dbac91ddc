"""Panics of the core: errors that `except Exception` catches, and no end of other calls."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import specds
from specds import InternalError, Memory
from specds._core import DatastoreBuilder

# pyo3 resumes a panic that a callback raised: it unwinds the core as a defect of the core would.


class Panicking:
    """An array-like whose conversion panics within the core."""

    def __array__(self, *_args, **_options):
        raise InternalError("index out of bounds")


def test_panic_is_an_exception_that_says_what_to_report():
    with pytest.raises(Exception, match="index out of bounds") as caught:
        Memory(10).insert("ann", Panicking())
    error = caught.value
    assert type(error) is specds.InternalError
    assert isinstance(error, RuntimeError)
    said = f"a defect of specds {specds.__version__}, please report it"
    assert str(error).startswith(said)
    assert str(error).count(said) == 1
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_panic_within_the_core_stops_one_call_and_locks_nothing(tmp_path):
    """Unwinds a build that runs without the interpreter, while other threads use the core."""

    def panics(*_progress):
        raise InternalError("subtract with overflow")

    memory = Memory(20)

    def build(place):
        builder = DatastoreBuilder(tmp_path / str(place), vocab_size=10, separator=9)
        builder.add_documents(np.arange(10) % 7, [10])
        try:
            builder.finish(panics if place % 2 else None)
        except Exception as error:
            return str(error)
        memory.insert("ann", [1, 2, place])
        return None

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(build, range(12)))
    for place, said in enumerate(results):
        assert (said is None) == (place % 2 == 0)
        assert (tmp_path / str(place)).exists() == (place % 2 == 0)
        assert said is None or "subtract with overflow" in said
    assert len(memory.texts("ann")) == 6


COMMAND = """
import sys
from specds import InternalError
from specds.cli import app, main

@app.command("defect")
def defect():
    raise InternalError("index out of bounds")

sys.argv = ["specds", "defect"]
main()
"""


def test_command_reports_a_panic_in_one_line():
    done = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: InternalError: a defect of specds")
    assert done.stderr.count("\n") == 1
