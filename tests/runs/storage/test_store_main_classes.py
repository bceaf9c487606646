"""Classes of a program's main module are the same after a restart, and found by other
programs.
"""

import os
import subprocess
import sys

import pytest

from tests.runs.stores import KEY, ROOT

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from dataclasses import dataclass
from enum import Enum
from flowpregel._core.records import Address, Batch
from flowpregel.checkpoint.lmdb import LMDBSaver
from tests.runs.stores import commit

class Color(Enum):
    RED = 1

@dataclass(frozen=True)
class Point:
    x: int
    color: Color

def double(x):
    return 2 * x

def write(path):
    with LMDBSaver(path) as saver:
        factor = 3
        commit(saver, 0, {"p": [Point(1, Color.RED)], "f": double,
                          "closure": lambda p: isinstance(p, Point) and factor})

def read(path):
    with LMDBSaver(path) as saver:
        values = saver.load(Address("t")).checkpoint.values
    (point,) = values["p"]
    assert point == Point(1, Color.RED), point
    assert isinstance(point, Point) and point.color is Color.RED
    assert values["f"](4) == 8 and values["f"] is double
    assert values["closure"](point) == 3
    print("the same")

if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](sys.argv[2])
"""

READER = """
import sys
from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver
with LMDBSaver(sys.argv[2]) as saver:
    values = saver.load(Address("t")).checkpoint.values
point = values["p"][0]
print(point.x, point.color.name, values["f"](4), values["closure"](point))
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "program.py").write_text(PROGRAM)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "reader.py").write_text(READER)

    def run(*arguments, ok=True):
        done = subprocess.run(
            [sys.executable, *arguments, str(tmp_path / "store")],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=60,
            check=False,
            env={
                **os.environ,
                "FLOWPREGEL_STORE_KEY": KEY,
                "PYTHONPATH": f"{tmp_path}:{ROOT}",
            },
        )
        assert (done.returncode == 0) is ok, done.stderr
        return done.stdout if ok else done.stderr

    return run


def test_they_are_the_same_when_the_program_is_run_again(run):
    run("program.py", "write")

    assert run("program.py", "read") == "the same\n"


def test_they_are_the_same_when_a_module_is_run_again(run):
    run("-m", "package.program", "write")

    assert run("-m", "package.program", "read") == "the same\n"


def test_they_are_the_same_when_the_program_is_imported(run):
    run("-m", "package.program", "write")

    code = "import sys, package.program as p; p.read(sys.argv[1])"
    assert run("-c", code) == "the same\n"


def test_another_program_finds_them(run):
    run("program.py", "write")

    assert run("reader.py", "look") == "1 RED 8 3\n"


def test_a_program_that_is_gone_is_named(run, tmp_path):
    run("program.py", "write")
    (tmp_path / "program.py").unlink()

    assert "program.py, which no longer exists" in run("reader.py", "look", ok=False)
