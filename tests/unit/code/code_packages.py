"""What the tests of code digests share: packages that are made, and programs that are
run.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
Import = Callable[..., ModuleType]
_numbers = itertools.count()


def module_of(folder: Path, main: str, **others: str) -> ModuleType:
    """Return a new package's module `main`; *others* are further modules of the
    package.
    """
    package = f"package_{os.getpid()}_{next(_numbers)}"
    (folder / package).mkdir()
    (folder / package / "__init__.py").touch()
    for name, source in {**others, "main": main}.items():
        text = textwrap.dedent(source)
        (folder / package / f"{name}.py").write_text(text, encoding="utf-8")
    # the folder may be as old as when it was last looked through
    importlib.invalidate_caches()
    return importlib.import_module(f"{package}.main")


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    """Return what makes a package and imports its main module."""
    monkeypatch.syspath_prepend(tmp_path)
    return functools.partial(module_of, tmp_path)


def run(
    *arguments: str, cwd: Path = ROOT, python: str = sys.executable, given: str = ""
) -> str:
    """Return what a program prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "random"}
    done = subprocess.run(
        [python, *arguments],
        input=given,
        cwd=cwd,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout.strip()


def pythons() -> Iterator[Any]:
    """Yield each other Python on this machine; a reason to skip for one that is not
    there.
    """
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    for minor in (11, 12, 13, 14):
        found = [
            str(each) for root in roots for each in root.glob(f"3.{minor}.*/bin/python")
        ]
        reason = f"there is no Python 3.{minor}"
        marks = [] if found else [pytest.mark.skip(reason=reason)]
        yield pytest.param(found[-1] if found else "", id=f"3.{minor}", marks=marks)


PYTHONS = [*pythons()]
