"""Figures in README and docs are what the benchmarks wrote, with marks on those that
are older than the code; and every goal has its row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import charts, order, origins, pages, report, results

GOALS = [
    "W1a",
    "W1b",
    "W1c",
    "W2a",
    "W2b",
    "W2c",
    "W2d",
    "W3a",
    "W3b",
    "W4",
    "W5a",
    "W5b",
    "W5c",
    "W6a",
    "W6b",
    "W6c",
    "W7",
    "W8",
    "W9",
    "W10",
    "W11",
    "G1a",
    "G1b",
    "G1c",
    "G2a",
    "G2b",
    "G2c",
    "G3a",
    "G3b",
    "G3c",
    "G4a",
    "G4b",
    "G4c",
    "census",
    "RT",
    "LIM",
]
"""The names of the goals that were set; a row may add a word to its name."""

COMMITTED = results.load(results.FILE)


def without_row(name: str) -> bool:
    """Say whether the committed results lack a row for a goal."""
    return not any(row.split(" ")[0] == name for row in COMMITTED["rows"])


def test_every_goal_has_a_result() -> None:
    """Nothing that was promised is left unmeasured."""
    assert [] == [name for name in GOALS if without_row(name)]


def test_every_row_that_is_measured_has_a_result() -> None:
    """The file knows each row of the workloads, and no row that is no more."""
    assert order.names() == [*COMMITTED["rows"]]


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_the_figures_of_a_page_are_those_of_the_file(page: Path) -> None:
    """Each marked block says what the committed results say."""
    text = page.read_text("utf-8")

    assert pages.BLOCK.search(text) is not None
    assert text == pages.rewritten(text, COMMITTED)


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_the_words_of_a_page_fit_its_figures(page: Path) -> None:
    """A sentence with a claim behind it is rewritten when the figure moves away."""
    assert [] == pages.broken_claims(page.read_text("utf-8"), COMMITTED)


@pytest.mark.parametrize(
    ("claim", "broken"),
    [
        ("W1a: peer, 2 to 3 times", []),
        ("W1a: peer, 3 to 4 times", ["W1a: peer is 2.5 times, not 3 to 4"]),
        ("W1a: peer, 1 to 2.4 times", ["W1a: peer is 2.5 times, not 1 to 2.4"]),
        ("W1a: flowpregel, 3 to 5 s", []),
        ("W1a: peer, 2 to 3 s", ["W1a: peer is 10 s, not 2 to 3"]),
        ("W1a: nothing, 2 to 3 s", ["W1a: there is no figure of nothing"]),
        ("W9: peer, 2 to 3 s", ["W9: there is no figure of peer"]),
        ("W1a: a, b, 2 to 3 s", ["W1a: there is no figure of a, b"]),
        (
            "W1a: peer, 1 to 2 times --> <!-- claim: W1a: peer, 1 to 2 s",
            ["W1a: peer is 2.5 times, not 1 to 2", "W1a: peer is 10 s, not 1 to 2"],
        ),
    ],
)
def test_a_claim_is_a_range_for_a_figure(claim: str, broken: list[str]) -> None:
    """Of a ratio to ours, or of seconds; a claim about nothing is broken too."""
    figures = {"flowpregel": {"median": 4.0}, "peer": {"median": 10.0}}

    assert broken == pages.broken_claims(
        f"Words. <!-- claim: {claim} -->", {"rows": {"W1a": {"figures": figures}}}
    )


def test_the_charts_show_the_figures_of_the_file() -> None:
    """Each chart carries the digest of what it was drawn from."""
    drawn = {
        chart.name: "".join(
            re.findall("figures ([0-9a-f]{16})", chart.read_text("utf-8"))
        )
        for chart in results.FIGURES.glob("*.svg")
    }

    assert {
        name: charts.digest(data) for name, data in charts.shown(COMMITTED).items()
    } == drawn


def test_another_figure_is_noticed() -> None:
    """The check itself works: a block that was changed by hand is put right."""
    page = (
        "a\n<!-- figures: verdict -->\n99 of 99 rows hold.\n<!-- figures end -->\nb\n"
    )

    text = pages.rewritten(
        page, {"rows": {"W1a": {"holds": True}, "W1b": {"holds": False}}}
    )

    assert (
        "a\n<!-- figures: verdict -->\n1 of 2 rows hold. Missed: W1b.\n<!-- figures "
        "end -->\nb\n"
    ) == text


def results_of(**entries: Mapping[str, Any]) -> results.Results:
    """Return results with rows of two origins, ``old`` and ``new``, and pages that were
    written with the code of ``new``.
    """
    machine = {
        "cores": 2,
        "memory": "1 GiB",
        "system": "Linux",
        "python": "3.11",
        "versions": {"lmdb": "3.0"},
    }
    return {
        "written": {"commit": "bbb", "package": "new", "changed": {"aaa": 7, "bbb": 0}},
        "origins": {
            "old": {"commit": "aaa", "package": "old", "machine": machine},
            "new": {"commit": "bbb", "package": "new", "machine": machine},
        },
        "rows": {
            name: {"measured": "2026-01-01 00:00", "load": None, **entry}
            for name, entry in entries.items()
        },
        "growth": {},
        "profiles": {},
    }


@pytest.mark.parametrize(
    ("entry", "marks"),
    [
        ({"origin": "new"}, ""),
        ({"origin": "old"}, " †"),
        ({"origin": "new", "load": 0.3}, " ‡"),
        ({"origin": "old", "load": 0.3}, " †‡"),
        ({"origin": "new", "load": 0.2}, ""),
    ],
)
def test_a_figure_of_older_code_or_of_a_busy_machine_has_a_mark(
    entry: Mapping[str, Any], marks: str
) -> None:
    """The mark is beside the name of the row, in each table."""
    row: dict[str, Any] = {
        "what": "work",
        "unit": "once",
        "figure": "seconds",
        "figures": {"flowpregel": {"median": 1.0, "low": 1.0, "high": 1.0, "turns": 1}},
        "goals": [],
        "holds": None,
    }
    measured = results_of(W1a={**row, **entry})

    assert f"| W1a{marks} |" in report.goals_table(measured)
    assert f"| W1a{marks} |" in report.peers_table(measured)
    assert f"saver{marks} |" in pages.block("compared", measured).replace(
        "a step, nothing kept", "saver"
    )


def test_a_page_explains_its_marks_and_since_when_they_hold() -> None:
    """The commit at which the page was written is on it, whatever changes later."""
    old, new, busy = {"origin": "old"}, {"origin": "new"}, {"load": 1.0}

    assert "All figures are of the code of commit `bbb`." == pages.block(
        "age", results_of(W1a=new)
    )
    assert (
        "† The code has changed since this was measured: 1 of 2 rows, as of commit "
        "`bbb`. ‡ Other programs used the machine: the times are too long, and the "
        "ratios are uncertain."
    ) == pages.block("age", results_of(W1a=old, W1b={**new, **busy}))


def test_a_page_lists_the_commits_of_its_figures() -> None:
    """With what was measured there, and how much has changed by the time of writing."""
    measured = results_of(W1a={"origin": "old"}, W1b={"origin": "old", "load": 1.25})
    assert "new" in measured["origins"], "no figure has this one"

    assert (
        "- Commit `aaa` (code `old`): 2 rows. Measured 2026-01-01 00:00 to 2026-01-01 "
        "00:00 UTC; 7 files changed since. Other programs kept up to 1.2 cores busy.\n"
        "\n2 cores, 1 GiB, Linux, Python 3.11; lmdb 3.0."
    ) == pages.block("origins", measured)


def test_every_committed_figure_names_its_code_on_the_page() -> None:
    """No row, curve or profile is without an origin, and none is left off the page."""
    page = (pages.EXPLANATION / "performance.md").read_text("utf-8")
    entries = [entry for kind in origins.KINDS for entry in COMMITTED[kind].values()]

    assert all({"origin", "load", "measured"} <= entry.keys() for entry in entries)
    assert {
        f"`{origin['commit']}` (code `{origin['package']}`)"
        for entry in entries
        for origin in [origins.origin_of(entry, COMMITTED)]
    } == {*re.findall(r"`\w+` \(code `\w+`\)", page)}


@pytest.mark.slow
def test_figures_older_than_the_code_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command lists every committed figure of other code than that of now, whatever
    the marks of the pages are.
    """
    now = origins.package_digest()
    older = sum(
        origins.origin_of(entry, COMMITTED)["package"] != now
        for kind in origins.KINDS
        for entry in COMMITTED[kind].values()
    )
    monkeypatch.setattr("sys.argv", ["benchmarks", "--stale"])

    status = benchmarks.main()

    lines = capsys.readouterr().out.splitlines()
    assert f"{older} of {results.count(COMMITTED)} figures are stale" == lines[-1]
    assert older == len(lines) - 1
    assert min(1, older) == status


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        (
            '"""Another docstring."""\n\nx = 1  # why\n\n\ndef f():\n    return x\n',
            True,
        ),
        ("x = 1\ndef f():\n    '''Doc.'''\n    return x\n", True),
        ("x = 2\ndef f():\n    return x\n", False),
        ("x = 1\ndef f():\n    return '# why'\n", False),
        ("def f():\n    return x\nx = 1\n", False),
    ],
)
def test_code_is_the_same_whatever_its_prose(text: str, is_same: bool) -> None:
    """A figure does not become older when a docstring or a comment is rewritten."""
    code = "x = 1\ndef f():\n    return x\n"

    assert is_same is (origins.code_digest(code) == origins.code_digest(text))


def test_the_digest_of_a_package_has_the_names_of_its_files(tmp_path: Path) -> None:
    """A module that is moved is another tree; a file that is no module is not."""
    digests = []
    for name in ("a.py", "b.py", "b.txt"):
        root = tmp_path / name
        (root / "flowpregel").mkdir(parents=True)
        (root / "flowpregel" / name).write_text("x = 1\n", "utf-8")
        digests.append(origins.package_digest(root))
    (tmp_path / "a.py/flowpregel/page.js").write_text("x", "utf-8")

    assert 3 == len({*digests})
    assert digests[0] == origins.package_digest(tmp_path / "a.py")
