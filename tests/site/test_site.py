"""The built site: no warning, no broken link, an entry for each public name."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from tests.house.reference import homes
from tests.site.building import Site

EXTERNAL = ("http://", "https://", "mailto:")
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src"}

pytestmark = pytest.mark.slow


@dataclass
class Page(HTMLParser):
    """The links, loaded addresses and anchors of an HTML file."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses and the anchor of an element."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(values.get("href", ""))
        if address := values.get(LOADS.get(tag, "")):
            self.loads.append(address)


def read(path: Path) -> Page:
    """Return what the HTML file at *path* links to, loads and offers as anchors."""
    page = Page()
    page.feed(path.read_text("utf-8"))
    return page


def broken(site: Site, path: Path, parsed: dict[Path, Page]) -> Iterator[str]:
    """Yield the links of a page that lead to no file, or to no anchor of their file."""
    for link in parsed[path].links:
        address, anchor = urldefrag(link)
        if address.startswith(EXTERNAL):
            continue
        base = site.folder if address.startswith("/") else path.parent
        target = (base / unquote(address).lstrip("/")).resolve() if address else path
        if target.is_dir():
            target /= "index.html"
        page = parsed.get(target)
        is_missing = not target.is_file() or (
            page is not None and anchor and unquote(anchor) not in page.anchors
        )
        if is_missing:
            yield f"{path.relative_to(site.folder)}: {link}"


def test_the_site_is_built_without_a_warning(site: Site) -> None:
    """Links, references and docstrings are all understood."""
    assert 0 == site.exit_code, site.output
    assert "No issues found" in site.output
    assert "griffe:" not in site.output


def test_every_link_leads_to_a_page_and_an_anchor_that_exist(site: Site) -> None:
    """No link of any page is broken, those of the navigation included."""
    parsed = {path: read(path) for path in site.pages()}

    assert 100 < len(parsed)
    assert [] == [link for path in parsed for link in broken(site, path, parsed)]


def test_no_page_loads_anything_from_another_server(site: Site) -> None:
    """Scripts, styles, fonts and images are files of the site."""
    assert [] == [
        f"{path}: {address}"
        for path in site.pages()
        for address in read(path).loads
        if address.startswith((*EXTERNAL, "//"))
    ]


def public_entries() -> Iterator[str]:
    """Yield the anchor of each public name, and of each method of a public class."""
    for (module, name), home in homes().items():
        if module != home:
            continue
        yield f"{home}.{name}"
        value = getattr(importlib.import_module(home), name)
        if not inspect.isclass(value):
            continue
        for member, definition in vars(value).items():
            # The name of a test of a contract suite says what it demands.
            is_hidden = member.startswith(("_", "test_"))
            if not is_hidden and inspect.isfunction(definition):
                yield f"{home}.{name}.{member}"


def test_every_public_name_and_method_has_an_entry(site: Site) -> None:
    """The reference leaves out nothing that a program may use."""
    anchors = {
        anchor
        for path in site.folder.glob("reference/api/*/index.html")
        for anchor in read(path).anchors
    }

    assert [] == sorted(set(public_entries()) - anchors)


def test_each_page_of_llms_txt_is_there_as_markdown(site: Site) -> None:
    """A program that reads the list finds the pages, and entries of public names."""
    links = re.findall(r"\]\(([^)]+)\)", (site.folder / "llms.txt").read_text("utf-8"))
    page = site.folder / "reference/api/flowpregel.func.md"

    assert 100 < len(links)
    assert [] == [link for link in links if not (site.folder / link).is_file()]
    assert (site.folder / "llms-full.txt").is_file()
    assert "def sleep(" in page.read_text("utf-8")


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """The check itself works, for files and for anchors."""
    (tmp_path / "a.html").write_text('<a href="b.html">x</a><a href="#no">y</a>')
    (tmp_path / "c.html").write_text('<h1 id="yes"><a href="#yes">z</a></h1>')
    site = Site(tmp_path, "", 0)
    parsed = {path: read(path) for path in site.pages()}

    assert ["a.html: b.html", "a.html: #no"] == [
        link for path in parsed for link in broken(site, path, parsed)
    ]
