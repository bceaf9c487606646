"""The documentation for language models: `llms.txt` and `llms-full.txt`.

`python -m tests.house.llms` writes both files from the pages. `llms.txt` lists the
pages with one line about each, in the form that llmstxt.org proposes. `llms-full.txt`
has the pages in one text, without those for people who work on flowpregel and without
the pages of the API, whose entries are made from the installed code.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from flowpregel.cli.api_pages import is_api_page
from flowpregel.cli.pages import (
    Page,
    find_page,
    find_section,
    read_pages,
    site_settings,
)

DOCS = Path(__file__).parents[2] / "docs"
OPTIONAL = "take-part"
"""The section of the front page with the pages for people who work on flowpregel."""
ENTRY = re.compile(r"^- \[[^\]]+\]\(([^)]+\.md)\): (.+)$", re.MULTILINE)
PAGE_LINK = re.compile(r"\]\(([^)\s:]+\.md)(#[^)\s]*)?\)")
PICTURE = re.compile(r"!\[([^\]]*)\]\([^)]*\)")
COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n+", re.DOTALL)
INTRODUCTION = """\
flowpregel runs Python functions in worker processes, and records each result. After a
crash or a kill, the same program resumes without repeating finished work. It is a
library, without a server. Begin with [the skill file](SKILL.md), which has the most
important calls and pitfalls.

If the package is installed with its extra `cli`, `flowpregel docs PAGE` prints the page
of the installed version, such as `flowpregel docs how-to/retry`, and `flowpregel docs
flowpregel.map` prints the signature and documentation of a public name.
"""


def front_page(pages: list[Page]) -> Page:
    """Return the page that describes the others."""
    page = find_page(pages, "index")
    assert page is not None
    return page


def optional_names(pages: list[Page]) -> set[str]:
    """Return the names of the pages for people who work on flowpregel."""
    section = find_section(front_page(pages), OPTIONAL)
    return {path.removesuffix(".md") for path, _ in PAGE_LINK.findall(section)}


def header(pages: list[Page]) -> str:
    """Return the beginning of both files."""
    project = site_settings(DOCS)
    name, description = project["site_name"], project["site_description"]
    return f"# {name}\n\n> {description}\n\n{INTRODUCTION}"


def index_text(pages: list[Page]) -> str:
    """Return the text of `llms.txt`."""
    optional = optional_names(pages)
    needed = [page for page in pages if page.name not in optional]
    parts = [header(pages)]
    for group, members in groupby(needed, key=lambda page: page.group):
        parts.append(f"## {group}\n\n{links(pages, [*members])}")
    rest = [page for page in pages if page.name in optional]
    parts.append(f"## Optional\n\n{links(pages, rest)}")
    return "\n".join(parts)


def links(pages: list[Page], members: list[Page]) -> str:
    """Return a list of links, each with the line about its page on the front page."""
    lines_about = dict(ENTRY.findall(front_page(pages).text))
    lines: list[str] = []
    for page in members:
        about = lines_about.get(f"{page.name}.md")
        suffix = f": {about}" if about else ""
        lines.append(f"- [{page.title}]({page.name}.md){suffix}")
    return "\n".join(lines) + "\n"


def full_text(pages: list[Page]) -> str:
    """Return the text of `llms-full.txt`."""
    return "\n---\n\n".join([header(pages), *page_texts(pages)])


def page_texts(pages: list[Page]) -> Iterator[str]:
    """Yield each page, below a line with its path and its title."""
    optional = optional_names(pages)
    for page in pages:
        if page.name not in optional and not is_api_page(page):
            head = f"Page: {page.name}.md ({page.group}: {page.title})"
            yield f"{head}\n\n{plain_text(page)}"


def plain_text(page: Page) -> str:
    """Return a page without comments and pictures, with links from the folder of all
    pages.
    """
    folder = posixpath.dirname(page.name)

    def from_docs(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        return f"]({path}{link[2] or ''})"

    text = COMMENT.sub("", FRONT_MATTER.sub("", page.text))
    text = PICTURE.sub(r"(Figure: \1)", text)
    return PAGE_LINK.sub(from_docs, text).strip() + "\n"


def texts() -> dict[str, str]:
    """Return the text of each file by its name."""
    pages = read_pages(DOCS)
    return {"llms.txt": index_text(pages), "llms-full.txt": full_text(pages)}


def main() -> None:
    """Write both files."""
    for name, text in texts().items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
