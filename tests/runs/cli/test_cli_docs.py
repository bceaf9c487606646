"""The command that prints the documentation: docs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowpregel.cli.api_pages import (
    api_entry,
    markdown_of,
    signature_text,
    with_entries,
)
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.cli.pages import (
    Page,
    docs_folder,
    find_page,
    find_section,
    read_pages,
    search_pages,
)
from flowpregel.errors import ConfigurationError
from flowpregel.func import Flow
from tests.house.test_site import pages

DOCS = Path(__file__).parents[3] / "docs"
LINK = re.compile(r"\]\(([^)\s:]+\.md)(?:#([^)\s]+))?\)")


def docs(*words: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, ["docs", *words])


def docs_as_json(*words: str) -> Any:
    """Run the command with ``--json``, and return what it prints."""
    result = docs("--json", *words)
    assert Code.OK == result.exit_code, result.output
    return json.loads(result.stdout)


def test_docs_lists_each_page_with_its_title_and_group() -> None:
    """In the order of the site's navigation."""
    records = docs_as_json()
    text = docs().stdout

    assert pages() == sorted(f"{record['page']}.md" for record in records)
    assert {"page": "how-to/retry", "title": "Retries", "group": "Run"} in records
    assert text.startswith("Start\n  index ")
    assert re.search(r"^Run\n  how-to/retry +Retries$", text, re.MULTILINE)
    assert "\nStart: Examples\n" in text


def test_docs_prints_a_page_as_it_is_when_the_output_is_no_terminal() -> None:
    assert (DOCS / "how-to/retry.md").read_text("utf-8") == docs("retry").stdout


@pytest.mark.parametrize(
    "name",
    [
        "retry",
        "how-to/retry",
        "how-to/retry.md",
        "../how-to/retry.md",
        "docs/how-to/retry.md",
        "Retries",
        "RETRIES",
    ],
)
def test_docs_finds_a_page_by_its_name_its_title_or_a_link(name: str) -> None:
    assert "how-to/retry" == docs_as_json(name)["page"]


def test_the_words_of_a_title_need_no_quotation_marks() -> None:
    page = docs_as_json("time", "limits", "and", "slurm")

    assert "how-to/time-limits-and-slurm" == page["page"]


def test_docs_prints_one_section_of_a_page() -> None:
    text = docs("how-to/resume-a-run.md#once-for-each-id").stdout

    assert text.startswith("## Once for each id\n")
    assert ["## Once for each id"] == re.findall("^## .*", text, re.MULTILINE)


def page_of(folder: Path, text: str) -> Page:
    """Return a page with this text."""
    file = folder / "page.md"
    file.write_text(text, encoding="utf-8")
    return Page("page", "Page", (), file)


def test_a_section_has_its_subsections_and_no_comment_of_code_ends_it(
    tmp_path: Path,
) -> None:
    page = page_of(
        tmp_path,
        "# A\n\n## B\n```sh\n# no heading\n```\n### C `d()`\nend\n## [E](e.md)\nlast\n",
    )

    assert (
        "## B\n```sh\n# no heading\n```\n### C `d()`\nend",
        "### C `d()`\nend",
        "## [E](e.md)\nlast",
    ) == tuple(find_section(page, anchor) for anchor in ("b", "c-d", "e"))


def test_every_link_between_pages_can_be_given_to_docs() -> None:
    """A reader follows a link by its text, with its anchor."""
    pages = read_pages(docs_folder())
    names = {page.name for page in pages}
    broken: list[str] = []
    for page in pages:
        for target, anchor in LINK.findall(page.text):
            path = (page.file.parent / target).resolve().relative_to(DOCS)
            name = path.as_posix().removesuffix(".md")
            linked = find_page(pages, name)
            if name not in names or linked is None:
                broken.append(f"{page.name}: {target}")
                continue
            is_entry = "reference/api/" in name
            if anchor and not is_entry and not find_section(linked, anchor):
                broken.append(f"{page.name}: {target}#{anchor}")

    assert [] == broken


def test_a_section_that_a_page_lacks_is_an_error() -> None:
    result = docs("faq#quesions")

    assert Code.USAGE == result.exit_code
    assert "page faq has no section 'quesions'" in result.stderr
    assert "Did you mean 'questions'?" in result.stderr
    assert Code.USAGE == docs("reference/api/flowpregel.func#nothing").exit_code


@pytest.mark.parametrize(
    ("name", "headings"),
    [
        ("flowpregel.map", ["## `flowpregel.map`"]),
        ("map", ["## `flowpregel.map`"]),
        ("RetryPolicy", ["## `flowpregel.types.RetryPolicy`"]),
        ("flowpregel.RetryPolicy", ["## `flowpregel.types.RetryPolicy`"]),
        ("flowpregel.func.Flow.run", ["### `Flow.run`"]),
        ("Flow.run", ["### `Flow.run`"]),
        (
            "reference/api/flowpregel.types.md#flowpregel.types.RetryPolicy",
            ["## `flowpregel.types.RetryPolicy`"],
        ),
    ],
)
def test_docs_prints_the_entry_of_a_public_name(name: str, headings: list[str]) -> None:
    text = docs(name).stdout

    assert headings == re.findall("^## .*|^### .*", text, re.MULTILINE)[:1]
    assert len(text) > 200


def test_an_entry_has_the_signature_the_arguments_and_an_example() -> None:
    """The keywords of a typed dict are parameters."""
    text = docs("flowpregel.map").stdout

    assert "```python\ndef map(\n    function: Callable[..., Any],\n" in text
    assert "    timeout: float | timedelta | TimeoutPolicy | None = ...,\n" in text
    assert re.search(r"^\*\*Arguments\*\*\n\n- `function`: ", text, re.MULTILINE)
    assert "**Example**\n\n```python\n>>> " in text


def test_the_entry_of_a_class_has_its_fields_and_methods() -> None:
    text = docs("RetryPolicy").stdout

    assert "    initial_interval: float = 0.5,\n" in text
    assert "    retry_on: RetryOn = default_retry_on,\n" in text
    assert "- `initial_interval`: Seconds before the second attempt.\n" in text
    assert "### `RetryPolicy.delay`\n\n```python\ndef delay(attempt: int, " in text


def test_a_name_of_several_modules_is_taken_from_the_one_that_is_named() -> None:
    """Without a module, all of them are printed."""
    headings = re.compile("^## `(.*)`$", re.MULTILINE)
    modules = ["flowpregel.graph", "flowpregel.plugins.langchain"]

    assert [f"{module}.add_messages" for module in modules] == headings.findall(
        docs("add_messages").stdout
    )
    assert ["flowpregel.graph.add_messages"] == headings.findall(
        docs("flowpregel.graph.add_messages").stdout
    )


def test_an_entry_leaves_out_what_differs_from_machine_to_machine() -> None:
    """Addresses in memory, and the tests of a contract suite."""
    stand_in = object()

    def function(value: object = stand_in) -> None:
        """Do nothing."""

    assert "(value: object = <object object>) -> None" == signature_text(function)
    assert "test_" not in docs("SaverContract").stdout
    assert "class NotProvided\n" in docs("NotProvided").stdout


def test_the_entry_of_a_name_that_cannot_be_imported_gives_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its package is not installed, which a module may notice late."""
    (tmp_path / "needs_a_package.py").write_text("import package_that_is_absent\n")
    (tmp_path / "needs_it_late.py").write_text(
        "def __getattr__(name):\n    import package_that_is_absent\n"
    )
    (tmp_path / "names_the_extra.py").write_text(
        "from flowpregel.errors import ConfigurationError\n"
        "raise ConfigurationError('install flowpregel[extra]')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    reason = "This cannot be imported here: No module named 'package_that_is_absent'\n"

    for module in ("needs_a_package", "needs_it_late"):
        assert f"## `{module}.a`\n\n{reason}" == api_entry(module, "a")
    assert api_entry("names_the_extra", "a").endswith(
        "\n\nThis cannot be imported here: install flowpregel[extra]\n"
    )
    text = "::: needs_a_package\n    options:\n      members:\n        - a\n"
    assert f"{reason}\n## `needs_a_package.a`\n\n{reason}" == with_entries(text)


@pytest.mark.slow
def test_the_page_of_a_module_describes_each_name_that_it_lists() -> None:
    """What needs a package that is not installed has at least its heading."""
    for page in read_pages(docs_folder()):
        if not page.name.startswith("reference/api/"):
            continue
        module = page.name.rpartition("/")[2]
        names = re.findall(r"^        - (\w+)$", page.text, re.MULTILINE)
        text = with_entries(page.text)

        assert ":::" not in text
        headings = re.findall(r"^## `([\w.]+)`$", text, re.MULTILINE)
        assert [f"{module}.{name}" for name in names] == headings


def test_a_signature_that_is_long_has_one_parameter_a_line() -> None:
    def function(first: dict[str, tuple[int, ...]], second: str = "a, b)", /) -> None:
        """Do nothing."""

    def longer(
        first: dict[str, tuple[int, ...]],
        /,
        second: str = "a, b)",
        *,
        callback: object = len,
        **rest: int,
    ) -> dict[str, tuple[int, ...]]:
        return {}

    def variable(
        *numbers: dict[str, tuple[int, ...]], very_first_key: int, other_key: str
    ) -> None:
        """Do nothing."""

    assert (
        "(first: dict[str, tuple[int, ...]], second: str = 'a, b)', /) -> None"
        == signature_text(function)
    )
    assert (
        "(\n"
        "    first: dict[str, tuple[int, ...]],\n"
        "    /,\n"
        "    second: str = 'a, b)',\n"
        "    *,\n"
        "    callback: object = <built-in function len>,\n"
        "    **rest: int,\n"
        ") -> dict[str, tuple[int, ...]]"
    ) == signature_text(longer)
    assert (
        "(\n"
        "    *numbers: dict[str, tuple[int, ...]],\n"
        "    very_first_key: int,\n"
        "    other_key: str,\n"
        ") -> None"
    ) == signature_text(variable)


def test_a_docstring_becomes_markdown() -> None:
    docstring = (
        "Do it with ``care``.\n\nArgs:\n    name: The name,\n        in two lines: "
        "here.\n    *args, size: More.\n\nRaises:\n    ValueError: It is wrong.\n\n"
        'Returns:\n    A value.\n\nExample:\n    >>> f("``")\n    1\n'
    )

    assert (
        "Do it with `care`.\n\n**Arguments**\n\n- `name`: The name, in two lines: here."
        "\n- `*args, size`: More.\n\n**Errors**\n\n- `ValueError`: It is wrong.\n\n"
        '**Returns**\n\nA value.\n\n**Example**\n\n```python\n>>> f("``")\n1\n```\n'
    ) == markdown_of(docstring)
    assert "\n" == markdown_of(None)
    assert signature_text(Flow.copy).startswith("(update: ")


@pytest.mark.parametrize(
    ("question", "page"),
    [
        ("stop after four hours on SLURM", "how-to/time-limits-and-slurm"),
        ("rate limit of 60 a minute", "how-to/resources-and-rate-limits"),
        ("resume after I renamed the function", "faq"),
        ("share a numpy array between workers", "how-to/pass-big-arrays"),
        ("cancelling one call", "how-to/time-out-and-cancel"),
        ("delete old runs disk space", "how-to/bound-the-history"),
        ("WorkerDied", "explanation/processes-and-pickling"),
    ],
)
def test_other_words_are_searched_for(question: str, page: str) -> None:
    """The best sections are listed, each with its page and its anchor."""
    matches = docs_as_json(*question.split())

    assert page in [match["page"].partition("#")[0] for match in matches[:4]]
    assert docs_as_json(matches[0]["page"])["text"]


def pages_of(folder: Path, **texts: str) -> list[Page]:
    """Return a page for each name and text; the title is the name."""
    pages: list[Page] = []
    for name, text in texts.items():
        file = folder / f"{name}.md"
        file.write_text(text, encoding="utf-8")
        pages.append(Page(name, name, (), file))
    return pages


def names_of(pages: list[Page], text: str) -> list[str]:
    """Return what a search finds, the best first."""
    return [match.name for match in search_pages(pages, text)]


def test_a_word_of_a_title_counts_more_than_one_of_a_heading_or_of_the_text(
    tmp_path: Path,
) -> None:
    pages = pages_of(
        tmp_path,
        one="# A\nThe text has a zebra.\n",
        two="# B\n## Zebras\nOther words.\n",
        zebra="# C\nOther words, among them zebra.\n",
        four="# D\nOther words.\n",
    )

    assert "zebra" == names_of(pages, "zebra")[0]
    assert "two#zebras" == names_of([*pages[:2], pages[3]], "zebra")[0]


def test_a_rare_word_counts_more_than_a_common_one(tmp_path: Path) -> None:
    """A word that all pages have counts nothing."""
    pages = pages_of(
        tmp_path,
        one="# A\nruns stop here\n",
        two="# B\nruns stop again\n",
        three="# C\nruns, and a zebra\n",
        four="# D\nruns\n",
    )

    assert "three" == names_of(pages, "stop the zebra runs")[0]
    assert [] == names_of(pages, "runs")


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("cancelling", "cancel"),
        ("retries", "retry"),
        ("limits", "limit"),
        ("stopped", "stops"),
    ],
)
def test_a_search_finds_other_forms_of_a_word(
    tmp_path: Path, query: str, text: str
) -> None:
    pages = pages_of(tmp_path, one=f"# A\n{text}\n", two="# B\nother words\n")

    assert ["one"] == names_of(pages, query)


def test_a_long_section_fits_less(tmp_path: Path) -> None:
    """It has many words, of which the reader needs few."""
    pages = pages_of(
        tmp_path,
        long="# A\nzebra\n" + "words\n" * 100,
        short="# B\nzebra\n" + "words\n" * 20,
        other="# C\nwords\n",
    )

    assert ["short"] == names_of(pages, "zebra")


def test_a_search_lists_eight_pages_at_most_each_once(tmp_path: Path) -> None:
    texts = {f"page{number}": "# A\nzebra\n## B\nzebra\n" for number in range(9)}
    pages = pages_of(tmp_path, **texts, other="# C\nwords\n")

    assert [f"page{number}" for number in range(8)] == names_of(pages, "zebra")


def test_docs_says_that_it_has_searched() -> None:
    result = docs("rate", "limit")

    assert Code.OK == result.exit_code
    assert "no page is named 'rate limit'; these sections fit best:\n" == result.stderr
    assert result.stdout.startswith(
        "how-to/resources-and-rate-limits\n  Resources and rate limits\n"
    )
    assert (
        "#symptoms\n  Questions and troubleshooting: Symptoms\n"
        in docs("symptom").stdout
    )
    assert "" == docs("rate", "limit", "--json").stderr


def test_a_search_that_finds_nothing_suggests_the_closest_name() -> None:
    results = [docs("entrypiont"), docs("xyzzy")]

    assert [Code.USAGE] * 2 == [result.exit_code for result in results]
    assert "Did you mean 'entrypoint'?" in results[0].stderr
    assert "no page is named or mentions 'xyzzy'" in results[1].stderr
    assert "Did you mean" not in results[1].stderr


def test_an_installation_without_pages_says_where_they_should_be(
    tmp_path: Path,
) -> None:
    package = tmp_path / "flowpregel"

    with pytest.raises(ConfigurationError, match=re.escape(str(package / "_docs"))):
        docs_folder(package)


def test_the_pages_of_a_wheel_come_before_those_beside_the_package(
    tmp_path: Path,
) -> None:
    """A folder `docs` beside an installed package may be of another project."""
    package = tmp_path / "flowpregel"
    for folder in (tmp_path / "docs", package / "_docs"):
        folder.mkdir(parents=True)
        (folder / "zensical.toml").touch()

    assert package / "_docs" == docs_folder(package)


def read_until_closed(descriptor: int) -> str:
    """Return what is written to the other end of a terminal."""
    chunks: list[bytes] = []
    while True:
        try:
            chunk = os.read(descriptor, 65_536)
        except OSError:  # on Linux, the end of a terminal is an error
            break
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks).decode()


@pytest.fixture
def on_terminal() -> Callable[..., str]:
    """A function that runs the command on a terminal, and returns what it shows."""

    def run(*words: str, columns: int = 80) -> str:
        ours, theirs = os.openpty()
        try:
            with subprocess.Popen(
                [sys.executable, "-m", "flowpregel", "docs", *words],
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                env={
                    **os.environ,
                    "TERM": "xterm",
                    "COLUMNS": str(columns),
                    "NO_COLOR": "1",
                },
            ) as process:
                os.close(theirs)
                text = read_until_closed(ours)
            assert 0 == process.returncode, text
        finally:
            os.close(ours)
        return re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r\n", "\n")

    return run


@pytest.mark.slow
def test_a_terminal_shows_a_page_formatted(on_terminal: Callable[..., str]) -> None:
    """Without the marks of Markdown and comments; a link shows its target."""
    text = on_terminal("encrypt-a-store")
    skill = on_terminal("SKILL")

    assert "Encrypt or compress a store" in text
    assert "# Encrypt" not in text
    assert "<!--" not in text
    assert "```" not in text
    assert "(use-sqlite.md)" in text
    assert "description:" not in skill


@pytest.mark.slow
def test_a_narrow_terminal_shows_the_whole_names_of_pages(
    on_terminal: Callable[..., str],
) -> None:
    """A reader copies them."""
    name = "how-to/change-code-while-a-run-is-unfinished"

    assert f"  {name} " in on_terminal(columns=60)
    assert f"{name}#move-or-rename-a-class\n" in on_terminal(
        "moved", "or", "renamed", "class", columns=60
    )
