"""The docs are true: each page's code runs, its links lead somewhere, no error is left
out.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flowpregel import errors
from tests.house.measure import code_lines
from tests.house.test_public_names import PUBLIC

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

NEEDS = re.compile(r"<!-- needs: ([\w., ]+) -->")
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")


def name_of(page: Path) -> str:
    """Return the path of *page* as a reader of the repository knows it."""
    return page.relative_to(ROOT).as_posix()


def code_of(text: str) -> str:
    """Return a page's Python blocks as one program, each line where the page has it."""
    program: list[str] = []
    inside = False
    for line in text.splitlines():
        fence = line.startswith("```")
        program.append(line if inside and not fence else "")
        inside = not inside and line == "```python" if fence else inside
    return "\n".join(program) + "\n"


def missing_modules(text: str) -> list[str]:
    """Return what a page says it needs (``<!-- needs: a, b -->``) and is not built
    yet.
    """
    needed = [
        module.strip() for found in NEEDS.findall(text) for module in found.split(",")
    ]
    return [module for module in needed if importlib.util.find_spec(module) is None]


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a page's program as a reader would: a script of its own, in its own
    folder.
    """
    script = folder / "page.py"
    script.write_text(code_of(text), encoding="utf-8")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
    return subprocess.run(
        [sys.executable, "-W", "error", script.name],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
    )


WITH_CODE = [page for page in PAGES if code_of(page.read_text("utf-8")).strip()]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_code_of_a_page_runs(
    page: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its Python blocks, in order and in one program, end without an error."""
    text = page.read_text("utf-8")
    if "DATABASE_URL" in text:
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("postgres_url"))
    if missing := missing_modules(text):
        pytest.skip(
            f"{name_of(page)} needs {', '.join(missing)}, which is not built yet"
        )

    result = run(text, tmp_path)

    assert 0 == result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that is there."""
    links = [
        link for link in LINK.findall(page.read_text("utf-8")) if "://" not in link
    ]

    assert [] == [link for link in links if not (page.parent / link).exists()]


def test_every_page_can_be_reached_from_the_index() -> None:
    """Nobody has to know a page's name to find it."""
    seen: set[Path] = set()
    waiting = [ROOT / "docs" / "index.md"]
    while waiting:
        page = waiting.pop()
        seen.add(page)
        links = (page.parent / link for link in LINK.findall(page.read_text("utf-8")))
        found = {link.resolve() for link in links if link.suffix == ".md"}
        waiting += found - seen

    assert [] == [name_of(page) for page in PAGES[1:] if page not in seen]


def test_the_functions_that_the_page_on_the_loop_names_exist() -> None:
    """The page names private functions and classes, which may be renamed."""
    page = ROOT / "docs" / "explanation" / "the-loop-method-by-method.md"
    named = re.findall(r"`(\w+)` in `(_\w+/\w+\.py)`", page.read_text("utf-8"))
    missing = [
        (name, path)
        for name, path in named
        if not re.search(
            rf"^(def|class) {name}\b", (ROOT / "flowpregel" / path).read_text(), re.M
        )
    ]

    assert len(named) >= 8
    assert [] == missing


def error_names() -> list[str]:
    """Return the name of every error class in ``flowpregel.errors``."""
    return [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, BaseException)
        and name[0] != "_"
    ]


def test_every_error_is_in_the_reference() -> None:
    """The page on errors has a row for each class that can be raised."""
    page = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")

    assert [] == [name for name in error_names() if f"`{name}`" not in page]


def test_every_public_name_is_in_the_reference() -> None:
    """The page on the API has a row for each name, under its module."""
    text = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    sections = dict(
        re.findall(r"(?ms)^## \[`([\w.]+)`\]\(\S+\)$(.*?)(?=^## |\Z)", text)
    )
    missing = [
        f"{module}.{name}"
        for module in PUBLIC
        if module != "flowpregel.errors"
        for name in importlib.import_module(module).__all__
        if f"| [`{name}`](api/" not in sections.get(module, "")
    ]

    assert [] == missing


def test_every_error_is_in_the_tree_of_its_module() -> None:
    """The drawing that opens the module leaves nobody out."""
    tree = "".join(
        line for line in (errors.__doc__ or "").splitlines() if "── " in line
    )
    assert [] == [
        name for name in error_names() if name not in re.findall(r"\w+", tree)
    ]


def test_the_reading_list_is_short_and_says_how_long_it_is() -> None:
    """What a newcomer reads first is under 2,500 lines of code, and about what the page
    says.
    """
    page = (ROOT / "docs" / "contributing.md").read_text("utf-8")
    section = page.partition("## Read the code in this order")[2].partition(
        "After that"
    )[0]
    stated = re.search(r"about ([\d,]+) lines", section)

    files = [ROOT / name for name in re.findall(r"`(flowpregel/[\w/]+\.py)`", section)]
    lines = sum(code_lines(file.read_text(encoding="utf-8")) for file in files)

    assert lines < 2_500
    assert stated is not None
    assert abs(lines - int(stated[1].replace(",", ""))) < 100


def test_a_failing_block_is_found_at_its_line(tmp_path: Path) -> None:
    """The check itself works: blocks share names, and an error shows the page's
    line.
    """
    page = "# Page\n\n```python\nn = 1\n```\n\ntext\n\n```python\nassert n == 2\n```\n"

    result = run(page, tmp_path)

    assert 1 == result.returncode
    assert 'page.py", line 10' in result.stderr


def test_blocks_of_other_languages_are_not_run() -> None:
    """Shell lines and plain text between Python blocks stay out of the program."""
    page = (
        "```sh\nrm -rf x\n```\n```python\na = 1\n```\n```\nplain\n```\n```python\nb = "
        "2\n```\n"
    )

    assert ["a = 1", "b = 2"] == [line for line in code_of(page).splitlines() if line]
