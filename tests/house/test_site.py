"""The documentation site: each page is in the navigation, each public name has an
entry.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from flowpregel.cli.pages import read_pages, site_settings
from tests.house.reference import INDEX, PAGES, linked, page
from tests.house.test_public_names import PUBLIC

DOCS = Path(__file__).parents[2] / "docs"
GROUPS = [
    "Start",
    "Run",
    "Survive",
    "Scale",
    "Watch",
    "Integrate",
    "Operate",
    "Reference",
    "How it works",
]


def pages() -> list[str]:
    """Return the path of each page of the repository, those not yet committed
    included.
    """
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"],
        cwd=DOCS,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(
        {name for name in listing.stdout.splitlines() if (DOCS / name).exists()}
    )


def test_every_page_is_in_the_navigation_once() -> None:
    """A reader who browses finds all pages, and no entry leads nowhere."""
    assert pages() == sorted(f"{page.name}.md" for page in read_pages(DOCS))


def test_the_navigation_is_grouped_by_what_a_reader_wants_to_do() -> None:
    """The tabs are verbs of a run's life, then what to look up."""
    assert GROUPS == [title for group in site_settings(DOCS)["nav"] for title in group]


def test_no_two_pages_have_the_same_title() -> None:
    """Search results and the navigation can be told apart."""
    titles = [page.title for page in read_pages(DOCS)]

    assert sorted(set(titles)) == sorted(titles)


def test_the_site_loads_no_fonts_from_other_servers() -> None:
    """The theme's default would load them from Google."""
    assert site_settings(DOCS)["theme"]["font"] is False


def test_the_pages_of_the_api_are_those_of_the_public_modules() -> None:
    """Each public name is described on one page.

    After a change of public names, run `python -m tests.house.reference`.
    """
    assert {module: page(module) for module in PUBLIC} == {
        path.stem: path.read_text("utf-8") for path in PAGES.glob("*.md")
    }


def test_the_index_of_the_api_links_each_name_to_its_entry() -> None:
    """A name in the tables leads to its signature, arguments and example.

    After a change of public names, run `python -m tests.house.reference`.
    """
    index = INDEX.read_text("utf-8")

    assert linked(index) == index
    assert [] == re.findall(r"^\| `\w+` \|.*", index, re.MULTILINE)
