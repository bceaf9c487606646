"""The type checkers agree with the marks in `mistakes.py`: each mistake, and nothing
else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("mistakes.py")


def marked() -> set[int]:
    """Return the lines that are marked as mistakes."""
    lines = FILE.read_text("utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if "# mistake: " in line}


def run(*words: str, env: Mapping[str, str] | None = None) -> str:
    """Return what a checker prints; which code it ends with does not matter."""
    command = [sys.executable, "-m", *words]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, env=env
    )
    assert done.stdout, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_refuses_each_mistake_and_nothing_else() -> None:
    """With the settings of the project, which are strict."""
    name = str(FILE.relative_to(ROOT))
    shown = run("mypy", "--no-warn-unused-ignores", "--no-error-summary", name)

    errors = re.findall(rf"^{re.escape(name)}:(\d+): error", shown, re.MULTILINE)
    assert marked() == {int(number) for number in errors}, shown
    assert shown.count("error:") == len(errors), shown


PYRIGHT_RULES_OFF = (
    "reportRedeclaration",
    "reportTypedDictNotRequiredAccess",
    "reportMissingImports",
)
"""Rules on names that are defined again, and on keys that a state may lack."""


@pytest.fixture(scope="module")
def pyright_errors(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[dict[str, Any]]]:
    """The errors that basedpyright finds, by the page or the file of mistakes.

    It reads both in one process: most of its time goes into what they import.
    """
    if find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed")
    folder = tmp_path_factory.mktemp("pyright")
    for name in ("docs", "mistakes"):
        (folder / name).mkdir()
    pages = programs(folder / "docs") | {FILE.name: FILE.name}
    shutil.copy(FILE, folder / "mistakes")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    rules: dict[str, Any] = dict.fromkeys(PYRIGHT_RULES_OFF, False)
    rules["reportUnnecessaryTypeIgnoreComment"] = False
    environments = [{"root": "docs", **rules}, {"root": "mistakes"}]
    config = {
        **settings["tool"]["basedpyright"],
        "executionEnvironments": environments,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    words = ["--project", str(folder), "--pythonpath", sys.executable, "--outputjson"]

    shown = json.loads(run("basedpyright", *words))

    errors: dict[str, list[dict[str, Any]]] = {}
    for diagnostic in shown["generalDiagnostics"]:
        if diagnostic["severity"] == "error":
            page = pages[Path(diagnostic["file"]).name]
            errors.setdefault(page, []).append(diagnostic)
    return errors


@pytest.mark.slow
def test_pyright_refuses_each_mistake_and_nothing_else(
    pyright_errors: dict[str, list[dict[str, Any]]],
) -> None:
    """With the settings of the project."""
    errors = pyright_errors[FILE.name]

    lines = {error["range"]["start"]["line"] + 1 for error in errors}
    assert marked() == lines, errors


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("basedpyright") is None, reason="basedpyright is not installed"
)
def test_the_type_of_every_public_name_is_known() -> None:
    """No checker has to infer a type: each is declared, and complete."""
    # The package is looked up by the first `python` of the search path; the option
    # --pythonpath is ignored.
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    env = {**os.environ, "PATH": os.pathsep.join(folders)}
    words = ["--verifytypes", "flowpregel", "--ignoreexternal", "--outputjson"]

    shown = json.loads(run("basedpyright", *words, env=env))["typeCompleteness"]

    exported = [symbol for symbol in shown["symbols"] if symbol["isExported"]]
    assert 5_000 < len(exported)
    assert [] == [s["name"] for s in exported if not s["isTypeKnown"]]
    assert [] == [s["name"] for s in exported if s["isTypeAmbiguous"]]
    assert 1 == shown["completenessScore"]


def test_there_are_enough_mistakes() -> None:
    """A file without marks would let both pass."""
    assert 15 <= len(marked())


EXCEPTED = {
    # A task takes a future for its result, and a `Shared` for its value; types know
    # only these.
    "docs/SKILL.md",
    "docs/index.md",
    "docs/how-to/choose-an-executor.md",
    "docs/tutorial/2-parallel-tasks.md",
    "docs/how-to/move-from-prefect.md",
    "docs/how-to/pass-big-arrays.md",
    # `checkpointer` is what was given, a path for one; and what may be None is.
    "docs/how-to/cache.md",
    "docs/how-to/move-from-langgraph.md",
    "docs/how-to/see-what-a-run-did.md",
    # A node may be given a part of a state, and send another.
    "docs/tutorial/graphs.md",
}
"""Pages whose programs both checkers refuse, and why."""


def programs(folder: Path) -> dict[str, str]:
    """Write the program of each page into *folder*; return the pages by the names of
    files.
    """
    pages = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = re.findall(
            r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
        if blocks and "decisions" not in page.parts:
            name = str(page.relative_to(ROOT))
            file = re.sub(r"\W", "_", name) + ".py"
            (folder / file).write_text("\n".join(blocks))
            pages[file] = name
    return pages


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_accepts_the_programs_of_the_docs(tmp_path: Path) -> None:
    """But for those that are excepted; a name may be defined again further down on a
    page.
    """
    pages = programs(tmp_path)
    words = ["--config-file=", "--ignore-missing-imports", "--allow-redefinition"]
    words += ["--disable-error-code=no-redef", "--disable-error-code=var-annotated"]
    # With other settings, mypy throws away what it knows of the package's modules.
    words += ["--cache-dir", str(ROOT / ".mypy_cache" / "docs")]
    shown = run("mypy", *words, *(str(tmp_path / file) for file in pages))

    refused = {
        pages[Path(file).name]
        for file in re.findall(r"^(\S+):\d+: error", shown, re.MULTILINE)
    }
    assert refused - {"docs/reference/channels.md"} == EXCEPTED, shown


@pytest.mark.slow
def test_pyright_accepts_the_programs_of_the_docs(
    pyright_errors: dict[str, list[dict[str, Any]]],
) -> None:
    """Without its rules on names that are defined again, and on keys that a state may
    lack.
    """
    excepted_here = {
        "docs/reference/channels.md",
        "docs/how-to/use-langchain.md",
        # A task takes a future for its result.
        "docs/tutorial/from-a-loop-to-all-cores.md",
        # The metadata of a snapshot may be None.
        "docs/explanation/the-loop-method-by-method.md",
    }

    refused = {*pyright_errors} - {FILE.name}
    assert refused - excepted_here == EXCEPTED, pyright_errors
