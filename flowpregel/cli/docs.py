"""The command that prints the documentation: docs."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import click

from flowpregel._text import did_you_mean
from flowpregel.cli import console
from flowpregel.cli.api_pages import (
    described_names,
    entries_named,
    is_api_page,
    with_entries,
)
from flowpregel.cli.pages import (
    Page,
    docs_folder,
    find_page,
    find_section,
    read_pages,
    search_pages,
    split_anchor,
)
from flowpregel.errors import ConfigurationError

_FRONT_MATTER: Final = re.compile(r"\A---\n.*?\n---\n+", re.DOTALL)
_WIDEST: Final = 100


@click.command(
    "docs", epilog="Examples: docs retry, docs flowpregel.map, docs rate limit"
)
@click.argument("words", metavar="[PAGE]", nargs=-1)
def docs_command(words: tuple[str, ...]) -> None:
    """Print a page of the documentation, or list all pages.

    PAGE is the name or the title of a page, as listed, or a link in a page. With
    #SECTION after it, only that section is printed. PAGE may also be a public name of
    the library, such as flowpregel.map. Other words are searched for.
    """
    pages = read_pages(docs_folder())
    query = " ".join(words).strip()
    if query:
        _print_page_or_matches(pages, query)
    else:
        _print_list(pages)


docs_command.params.append(console.AS_JSON)


def _print_list(pages: Sequence[Page]) -> None:
    """Print the names and titles of all pages, by group."""
    parts: list[Any] = []
    for group, members in groupby(pages, key=lambda page: page.group):
        rows = [(f"  {page.name}", page.title) for page in members]
        table = console.make_table((), rows)
        # A reader copies names, so they are not shortened on a narrow terminal.
        table.columns[0].no_wrap = True
        separator = "\n" if parts else ""
        parts += [f"{separator}{group}", table]
    console.print_result([_page_record(page) for page in pages], *parts)


def _page_record(page: Page) -> dict[str, str]:
    """Return a page for JSON, without its text."""
    return {"page": page.name, "title": page.title, "group": page.group}


def _print_page_or_matches(pages: Sequence[Page], query: str) -> None:
    """Print the page or the name that *query* names, or else list the sections that
    contain its words.
    """
    name, anchor = split_anchor(query)
    page = find_page(pages, name)
    if page is not None:
        _print_text(_page_record(page), _page_text(pages, page, anchor))
        return
    entries = entries_named(pages, name)
    if entries:
        _print_text({"page": name}, "\n".join(entries))
        return
    _print_matches(pages, query)


def _page_text(pages: Sequence[Page], page: Page, anchor: str) -> str:
    """Return a page in Markdown, or one section of it.

    Raises:
        ConfigurationError: The page has no such section.
    """
    if not anchor:
        return with_entries(page.text) if is_api_page(page) else page.text
    if is_api_page(page):
        entries = entries_named(pages, anchor)
        section = "\n".join(entries)
    else:
        section = find_section(page, anchor)
    if not section:
        anchors = [section.anchor for section in page.sections]
        raise ConfigurationError(
            f"page {page.name} has no section {anchor!r}; `flowpregel docs "
            f"{page.name}` prints all of it{did_you_mean(anchor, anchors)}"
        )
    return section


def _print_text(record: dict[str, str], text: str) -> None:
    """Print a text in Markdown: formatted on a terminal, otherwise unchanged."""
    if console.has_flag("--json"):
        console.print_json({**record, "text": text})
    elif sys.stdout.isatty():
        from rich.markdown import Markdown  # noqa: PLC0415 - keeps --help fast

        terminal = console.rich_console()
        prose = _FRONT_MATTER.sub("", text)
        # The targets of links are shown, because they are the names of other pages.
        markdown = Markdown(prose, hyperlinks=False)
        terminal.print(markdown, width=min(terminal.width, _WIDEST))
    else:
        click.echo(text.rstrip("\n"))


def _print_matches(pages: Sequence[Page], query: str) -> None:
    """Print the sections that a search for *query* finds.

    Raises:
        ConfigurationError: No page has any of the words.
    """
    matches = search_pages(pages, query)
    if not matches:
        names = [page.name.rpartition("/")[2] for page in pages]
        titles = [page.title for page in pages]
        hint = did_you_mean(query, [*names, *titles, *described_names(pages)])
        raise ConfigurationError(
            f"no page is named or mentions {query!r}; `flowpregel docs` lists all "
            f"pages{hint}"
        )
    records: list[dict[str, str]] = []
    lines: list[str] = []
    for match in matches:
        record = _page_record(match.page)
        heading = match.section.heading
        records.append({**record, "page": match.name, "section": heading})
        title = match.page.title
        is_whole_page = match.name == match.page.name
        lines += [
            match.name,
            f"  {title}" if is_whole_page else f"  {title}: {heading}",
        ]
    if not console.has_flag("--json"):
        console.print_note(f"no page is named {query!r}; these sections fit best:")
    console.print_result(records, *lines)
