"""What a census found: added up file by file, and told as text or as an HTML page."""

from __future__ import annotations

import heapq
import html
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from census_measure import File

Bar = tuple[str, int]
BUCKETS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
"""Complexities are counted up to each of these, and beyond."""


@dataclass(slots=True)
class Census:
    """The sums so far."""

    files: int = 0
    lines: int = 0
    functions: int = 0
    classes: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    packages: Counter[str] = field(default_factory=Counter)
    """Lines of each."""
    names: Counter[str] = field(default_factory=Counter)
    """How many functions have each name."""
    complexity: Counter[int] = field(default_factory=Counter)
    most_complex: list[tuple[int, str, str, int]] = field(default_factory=list)
    """(complexity, name, path, line) of a few, in no order."""
    shapes: dict[bytes, list[tuple[str, str, int, int]]] = field(default_factory=dict)
    """(name, path, line, lines) of functions of one shape."""

    def add(self, file: File) -> None:
        """Count one file."""
        self.files += 1
        if file.error:
            self.unreadable.append((file.path, file.error))
            return
        self.lines += file.lines
        self.classes += file.classes
        self.functions += len(file.functions)
        self.packages[file.package] += file.lines
        for function in file.functions:
            self.names[function.name] += 1
            self.complexity[function.complexity] += 1
            entry = (function.complexity, function.name, file.path, function.line)
            heapq.heappush(self.most_complex, entry)
            if len(self.most_complex) > 15:
                heapq.heappop(self.most_complex)
            if function.shape:
                place = (function.name, file.path, function.line, function.lines)
                self.shapes.setdefault(function.shape, []).append(place)

    def copies(self) -> list[list[tuple[str, str, int, int]]]:
        """Return the functions that repeat, those with the most repeated lines
        first.
        """
        groups = [group for group in self.shapes.values() if len(group) > 1]
        groups.sort(key=lambda group: (-sum(lines for *_, lines in group[1:]), group))
        return groups

    def summary(self) -> dict[str, object]:
        """Return everything as plain values, the same for the same files."""
        copies = self.copies()
        return {
            "files": self.files,
            "lines": self.lines,
            "functions": self.functions,
            "classes": self.classes,
            "unreadable": sorted(self.unreadable),
            "packages": _most(self.packages, 25),
            "names": _most(self.names, 25),
            "complexity": self._buckets(),
            "most complex": sorted(self.most_complex, reverse=True),
            "copied functions": sum(len(group) - 1 for group in copies),
            "copied lines": sum(lines for group in copies for *_, lines in group[1:]),
            "copies": [(len(group), *group[0]) for group in copies[:15]],
        }

    def _buckets(self) -> list[Bar]:
        counts: Counter[str] = Counter()
        for complexity, count in self.complexity.items():
            upto = next((bucket for bucket in BUCKETS if complexity <= bucket), None)
            counts["more" if upto is None else str(upto)] += count
        return [(label, counts[label]) for label in (*map(str, BUCKETS), "more")]


def _most(counts: Counter[str], number: int) -> list[Bar]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:number]


# ---------------------------------------------------------------- text


def as_text(found: dict[str, object]) -> str:
    """Return the report as text for a terminal."""
    lines = [
        f"{found['files']:,} files, {found['lines']:,} lines, "
        f"{found['classes']:,} classes, "
        f"{found['functions']:,} functions, "
        f"{len(_list(found, 'unreadable'))} unreadable files",
        f"{found['copied functions']:,} functions are copies of others "
        f"({found['copied lines']:,} "
        "lines)",
    ]
    lines += [
        "",
        "largest packages (lines)",
        *_text_bars(_list(found, "packages")[:10]),
    ]
    lines += [
        "",
        "functions by complexity (up to)",
        *_text_bars(_list(found, "complexity")),
    ]
    lines += ["", "most frequent names", *_text_bars(_list(found, "names")[:10])]
    lines += ["", "most complex functions"]
    lines += [
        f"  {c:5}  {name}  {path}:{line}"
        for c, name, path, line in _list(found, "most complex")[:10]
    ]
    return "\n".join(lines)


def _list(found: dict[str, object], key: str) -> Sequence[tuple]:
    value = found[key]
    assert isinstance(value, list)
    return value


def _text_bars(bars: Iterable[Bar]) -> list[str]:
    bars = list(bars)
    most = max((value for _, value in bars), default=0) or 1
    return [
        f"  {label[:24]:24} {value:>11,}  {'#' * round(32 * value / most)}"
        for label, value in bars
    ]


def show(found: dict[str, object]) -> None:
    """Print the report: with tables and colours where somebody looks and rich is
    installed.
    """
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        import census_terminal  # noqa: PLC0415 - rich need not be installed

        census_terminal.show(found)
    else:
        print(as_text(found))


# ---------------------------------------------------------------- HTML

STYLE = """body {
  font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto;
  padding: 0 1em; color: #222; } table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .2em .6em; border-bottom: 1px solid #ddd; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
code { word-break: break-all; }
.figures { display: flex; flex-wrap: wrap; gap: 1em 2.5em; }
.figures b { font-size: 1.8em;
  display: block; } svg text { font: 12px system-ui, sans-serif; fill: #222; }
rect { fill: #3b6ea5; }
@media (prefers-color-scheme: dark) { body { background: #181818;
  color: #ddd; } svg text { fill: #ddd; } td, th { border-color: #444; } }"""


FIGURES = (
    "files",
    "lines",
    "classes",
    "functions",
    "copied functions",
    "copied lines",
)
"""The numbers at the top of the page."""


def as_page(found: dict[str, object]) -> str:
    """Return the report as an HTML page that needs nothing else."""
    figures = "".join(f"<div><b>{found[key]:,}</b>{key}</div>" for key in FIGURES)
    complex_rows = [
        (f"{c:,}", name, f"{path}:{line}")
        for c, name, path, line in _list(found, "most complex")
    ]
    copy_rows = [
        (f"{count:,}", name, f"{path}:{line} ({lines} lines)")
        for count, name, path, line, lines in _list(found, "copies")
    ]
    parts = [
        "<h1>A census of Python source</h1>",
        f'<div class="figures">{figures}</div>',
        "<h2>Lines of the largest packages</h2>",
        bar_chart(_list(found, "packages")),
        "<h2>Functions by complexity</h2>",
        column_chart(_list(found, "complexity")),
        "<h2>What functions are called</h2>",
        bar_chart(_list(found, "names")),
        "<h2>The most complex functions</h2>",
        table("complexity", complex_rows),
        "<h2>What is copied most</h2>",
        table("copies", copy_rows),
        "<h2>Unreadable files</h2>",
        table("", [("", error, path) for path, error in _list(found, "unreadable")]),
    ]
    head = f'<meta charset="utf-8"><title>Census</title><style>{STYLE}</style>'
    return (
        "<!doctype html><html "
        f'lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'
    )


def bar_chart(bars: Sequence[Bar]) -> str:
    """Return horizontal bars with their labels and values, as SVG."""
    most = max((value for _, value in bars), default=0) or 1
    rows = []
    for index, (label, value) in enumerate(bars):
        y, width = 22 * index, 520 * value / most
        rows.append(
            f'<text x="190" y="{y + 15}" '
            f'text-anchor="end">{html.escape(label[:28])}</text>'
            f'<rect x="198" y="{y + 3}" width="{width:.1f}" height="16"/>'
            f'<text x="{204 + width:.1f}" y="{y + 15}">{value:,}</text>'
        )
    return _svg(820, 22 * len(bars), rows)


def column_chart(bars: Sequence[Bar]) -> str:
    """Return columns on a logarithmic scale, as SVG."""
    most = max((value.bit_length() for _, value in bars), default=0) or 1
    wide = 800 / max(len(bars), 1)
    columns = []
    for index, (label, value) in enumerate(bars):
        # Twice as many is one step higher: most functions are simple.
        height = 200 * value.bit_length() / most
        middle = wide * (index + 0.5)
        columns.append(
            f'<rect x="{wide * index + 4:.1f}" y="{225 - height:.1f}" '
            f'width="{wide - 8:.1f}" '
            f'height="{height:.1f}"/><text x="{middle:.1f}" y="{220 - height:.1f}" '
            f'text-anchor="middle">{value:,}</text>'
            f'<text x="{middle:.1f}" y="243" '
            f'text-anchor="middle">{html.escape(label)}</text>'
        )
    return _svg(800, 250, columns)


def _svg(width: int, height: int, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" '
        f'width="100%">{"".join(parts)}</svg>'
    )


def table(number: str, rows: Iterable[tuple[str, str, str]]) -> str:
    """Return rows of a number, a name and a place."""
    cells = "".join(
        f'<tr><td class="n">{html.escape(first)}</td><td>{html.escape(second)}</td>'
        f"<td><code>{html.escape(third)}</code></td></tr>"
        for first, second, third in rows
    )
    return f"<table><tr><th>{number}</th><th></th><th></th></tr>{cells}</table>"
