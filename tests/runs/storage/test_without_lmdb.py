"""A Python for which there is no package `lmdb`: flowpregel runs on SQLite."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

Run = Callable[..., "subprocess.CompletedProcess[str]"]

HIDDEN = 'raise ModuleNotFoundError("No module named \'lmdb\'", name="lmdb")\n'


@pytest.fixture
def python(tmp_path: Path) -> Run:
    """Run Python in a folder of its own, in which `lmdb` cannot be imported. Nor can
    the workers that it starts.
    """
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "lmdb.py").write_text(HIDDEN)
    path = os.pathsep.join([str(hidden), str(ROOT)])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
        )

    return run


@pytest.mark.slow
def test_the_program_of_the_readme_runs_on_sqlite(tmp_path: Path, python: Run) -> None:
    """Its graph and its workflow, which name their store."""
    blocks = BLOCK.findall((ROOT / "README.md").read_text("utf-8"))
    program = "\n".join(block for block in blocks if '"runs.lmdb"' in block)
    assert "@entrypoint" in program
    on_sqlite = program.replace('"runs.lmdb"', '"sqlite:///runs.db"')
    (tmp_path / "program.py").write_text(on_sqlite, "utf-8")

    result = python("program.py")

    assert 0 == result.returncode, result.stderr
    assert (tmp_path / "runs.db").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "from flowpregel.func import entrypoint\n"
        "entrypoint(checkpointer='runs.lmdb')(str)",
        "import flowpregel\nflowpregel.map(abs, [-1])",
        "from flowpregel import LMDBSaver",
        "from flowpregel.store.lmdb import LMDBStore",
        "from flowpregel.cache.lmdb import LMDBCache",
    ],
)
def test_a_store_in_a_folder_is_refused_with_the_cure(python: Run, line: str) -> None:
    result = python("-c", line)

    last = result.stderr.strip().splitlines()[-1]
    assert "ConfigurationError: a store in a folder needs the package lmdb" in last
    assert "'sqlite:///runs.db'" in last


@pytest.mark.slow
def test_doctor_reports_that_lmdb_is_missing(python: Run) -> None:
    """It is a fault of the machine, unless the store is a database."""
    machine = python("-m", "flowpregel.cli", "doctor")
    database = python("-m", "flowpregel.cli", "doctor", "--store", "sqlite:///runs.db")

    assert (1, 0) == (machine.returncode, database.returncode), machine.stderr
    assert "cannot be imported (No module named 'lmdb')" in machine.stdout
    assert "musl" in " ".join(database.stdout.split())


@pytest.mark.slow
def test_commands_read_the_runs_of_a_database(python: Run) -> None:
    study = (
        "from flowpregel.func import entrypoint\n"
        "flow = entrypoint(checkpointer='sqlite:///runs.db')(abs)\n"
        "flow.run(-3, id='study-1')"
    )
    assert 0 == python("-c", study).returncode

    listed = python("-m", "flowpregel.cli", "ls", "--store", "sqlite:///runs.db")
    swept = python(
        *("-m", "flowpregel.cli", "gc", "--keep-last", "1"),
        *("--store", "sqlite:///runs.db"),
    )

    assert "study-1" in listed.stdout, listed.stderr
    assert 0 == swept.returncode, swept.stderr
