"""The house's floors: imports point down (the contract is in pyproject.toml)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECK = (
    "import sys; from importlinter.cli import lint_imports; "
    "sys.exit(lint_imports(no_cache=True))"
)


def check(house: Path) -> subprocess.CompletedProcess[str]:
    """Check the copy of the package in the folder *house* against the contract in
    it.
    """
    return subprocess.run(
        [sys.executable, "-c", CHECK],
        cwd=house,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package and its contract that a test may spoil."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "flowpregel", tmp_path / "flowpregel", ignore=ignored)
    return tmp_path


@pytest.mark.slow
def test_imports_point_down() -> None:
    """No module imports from a floor above its own, nor from a sibling package."""
    result = check(ROOT)

    assert 0 == result.returncode, result.stdout + result.stderr


@pytest.mark.slow
def test_an_upward_import_is_found_inside_a_function_too(copy: Path) -> None:
    """The check itself works: a lazy import of a higher floor breaks the contract."""
    with (copy / "flowpregel" / "policies.py").open("a") as module:
        module.write(
            "\n\ndef sneak() -> None:\n    import flowpregel.checkpoint.base\n"
        )

    result = check(copy)

    assert 1 == result.returncode
    assert "flowpregel.policies -> flowpregel.checkpoint.base" in result.stdout


@pytest.mark.slow
def test_a_module_without_a_floor_is_found(copy: Path) -> None:
    """A new top-level module must be given its place in the contract."""
    (copy / "flowpregel" / "attic.py").write_text('"""Has no place yet."""\n')

    result = check(copy)

    assert 1 == result.returncode
    assert "flowpregel.attic" in result.stdout
