"""The pages of the documentation, which come with the package.

A wheel has them in its folder ``_docs``. A checkout has them in ``docs``, beside the
package. The file of the documentation site, ``zensical.toml``, comes with them; its
navigation has the titles of the pages, and the groups that the titles are in.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from flowpregel.errors import ConfigurationError

NAVIGATION: Final = "zensical.toml"
"""The file with the titles and groups of all pages."""
_PACKAGE: Final = Path(__file__).parents[1]
_HEADING: Final = re.compile(r"#{1,6} +(.+)")
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_WORD: Final = re.compile(r"[a-z0-9_]+")
_TITLE_WEIGHT: Final = 4
_HEADING_WEIGHT: Final = 2
_USUAL_LINES: Final = 30
_LEAST_STEM: Final = 5
_DOUBLED: Final = ("bb", "dd", "gg", "ll", "mm", "nn", "pp", "rr", "tt")
_LEAST_SHARE: Final = 0.4
"""The smallest score of a search result, as a share of the best score."""


@dataclass(frozen=True)
class Section:
    """A heading of a page, and the text down to the next heading."""

    heading: str
    """The text of the heading, without the ``#`` signs."""
    level: int
    """The number of ``#`` signs before the heading: 1 for the title of the page."""
    lines: tuple[str, ...]
    """The lines of the section. The first is the heading."""

    @property
    def anchor(self) -> str:
        """The anchor of the section in links, as the documentation site makes it."""
        text = re.sub(r"[^\w\s-]", "", self.heading).strip().lower()
        return re.sub(r"[-\s]+", "-", text)


@dataclass(frozen=True)
class Page:
    """A page of the documentation."""

    name: str
    """The path below the folder of all pages without its suffix: ``how-to/retry``."""
    title: str
    """The title in the navigation."""
    groups: tuple[str, ...]
    """The titles of the groups that the page is in, the outermost first."""
    file: Path
    """The file of the page."""

    @property
    def group(self) -> str:
        """The titles of the groups in one string, such as ``Start: Examples``."""
        return ": ".join(self.groups)

    @cached_property
    def text(self) -> str:
        """The page in Markdown."""
        return self.file.read_text("utf-8")

    @cached_property
    def lower_text(self) -> str:
        """The page in lower case, for a search."""
        return self.text.lower()

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The sections of the page, in order."""
        return tuple(sections_of(self.text))


@dataclass(frozen=True)
class Match:
    """A section of a page that a search has found."""

    page: Page
    section: Section
    score: float

    @property
    def name(self) -> str:
        """The name of the page, and the anchor of a section below its title."""
        if self.section.level == 1:
            return self.page.name
        return f"{self.page.name}#{self.section.anchor}"


def sections_of(text: str) -> Iterator[Section]:
    """Yield the sections of a Markdown text.

    Lines before the first heading are left out, as are headings in blocks of code.
    """
    heading = ""
    level = 0
    lines: list[str] = []
    is_code = False
    for line in text.splitlines():
        if line.startswith("```"):
            is_code = not is_code
        match = None if is_code else _HEADING.fullmatch(line)
        if match is not None:
            if level:
                yield Section(heading, level, tuple(lines))
            heading = _LINK.sub(r"\1", match[1]).replace("`", "")
            level = line.index(" ")
            lines = []
        lines.append(line)
    if level:
        yield Section(heading, level, tuple(lines))


def docs_folder(package: Path = _PACKAGE) -> Path:
    """Return the folder with the pages.

    Args:
        package: The folder of the package.

    Raises:
        ConfigurationError: This installation has no pages.
    """
    folders = (package / "_docs", package.parent / "docs")
    for folder in folders:
        if (folder / NAVIGATION).is_file():
            return folder
    raise ConfigurationError(
        f"the documentation is missing: there is no folder {folders[0]}; install "
        "flowpregel again, from its wheel"
    )


def site_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the documentation site: its name, its theme, and its
    navigation as `nav`.
    """
    text = (folder / NAVIGATION).read_text("utf-8")
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


def read_pages(folder: Path) -> list[Page]:
    """Return all pages of the documentation in *folder*, in the order of the site's
    navigation.
    """
    return list(_pages_in(site_settings(folder)["nav"], (), folder))


def _pages_in(
    items: Iterable[dict[str, Any]],
    groups: tuple[str, ...],
    folder: Path,
) -> Iterator[Page]:
    """Yield the pages of a part of the navigation."""
    for item in items:
        for title, value in item.items():
            if isinstance(value, str):
                name = value.removesuffix(".md")
                yield Page(name, title, groups, folder / value)
            else:
                yield from _pages_in(value, (*groups, title), folder)


def split_anchor(text: str) -> tuple[str, str]:
    """Return the name and the anchor in a link to a page, such as ``../faq.md#why``."""
    name, _, anchor = text.strip().partition("#")
    name = re.sub(r"^(\.*/)+|^docs/", "", name)
    return name.removesuffix("/").removesuffix(".md"), anchor


def find_page(pages: Sequence[Page], name: str) -> Page | None:
    """Return the page of a name, or None.

    Args:
        pages: All pages.
        name: The whole name of the page, its last part, or its title. The case of the
            letters is ignored.
    """
    query = name.lower()
    for page in pages:
        if query in (page.name.lower(), page.title.lower()):
            return page
    ends = [page for page in pages if page.name.lower().endswith(f"/{query}")]
    return ends[0] if len(ends) == 1 else None


def find_section(page: Page, anchor: str) -> str:
    """Return a section with its subsections in Markdown, or an empty string if there is
    no such section.
    """
    lines: list[str] = []
    level = 0
    for section in page.sections:
        if level and section.level <= level:
            break
        if not level and section.anchor == anchor:
            level = section.level
        if level:
            lines += section.lines
    return "\n".join(lines)


def search_pages(pages: Sequence[Page], text: str, limit: int = 8) -> list[Match]:
    """Return the sections that fit the words of *text*, at most one of each page.

    The best one is the first. A word has more weight if few pages contain it, and if it
    is in the title of a page or in a heading.
    """
    weights: dict[str, float] = {}
    for word in _WORD.findall(text.lower()):
        pattern = rf"\b{_stem(word)}"
        weights[pattern] = _weight_of(pattern, pages)
    matches = [_best_match(page, weights) for page in pages]
    matches.sort(key=lambda match: match.score, reverse=True)
    least = _LEAST_SHARE * matches[0].score if matches else 0
    return [match for match in matches[:limit] if match.score > least]


def _stem(word: str) -> str:
    """Return the beginning that the forms of an English word share."""
    if len(word) < _LEAST_STEM:
        return word
    stem = re.sub(r"(ies|es|s|ed|ing|e|y)$", "", word)
    return stem[:-1] if stem != word and stem[-2:] in _DOUBLED else stem


def _weight_of(pattern: str, pages: Sequence[Page]) -> float:
    """Return the weight of a word: 0 if all pages have it, or none has."""
    count = sum(1 for page in pages if re.search(pattern, page.lower_text))
    return math.log(len(pages) / count) if count else 0.0


def _score_of(text: str, weights: Mapping[str, float]) -> float:
    """Return the sum of the weights of the words that a text has."""
    lower_text = text.lower()
    score = 0.0
    for pattern, weight in weights.items():
        if re.search(pattern, lower_text):
            score += weight
    return score


def _section_score(section: Section, weights: Mapping[str, float]) -> float:
    """Return a score that shows how well a section matches. The score of a long section
    is lower, because it contains many words anyway.
    """
    size = min(1.0, _USUAL_LINES / len(section.lines))
    text_score = _score_of("\n".join(section.lines), weights)
    return size * text_score + _HEADING_WEIGHT * _score_of(section.heading, weights)


def _best_match(page: Page, weights: Mapping[str, float]) -> Match:
    """Return the section of a page that fits best, with a score: that of the section,
    plus that of the page's title.
    """
    best = page.sections[0]
    best_score = 0.0
    for section in page.sections:
        score = _section_score(section, weights)
        if score > best_score:
            best = section
            best_score = score
    title_score = _score_of(f"{page.title} {page.name}", weights)
    return Match(page, best, best_score + _TITLE_WEIGHT * title_score)
