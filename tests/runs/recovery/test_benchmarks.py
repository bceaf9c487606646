"""The benchmarks work: each workload does ours and the machine's limits once, with tiny
sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import (
    harness,
    order,
    origins,
    profiles,
    report,
    results,
    slow_disk,
    workloads,
)
from tests.benchmarks.__main__ import Log, arguments
from tests.benchmarks.child import Child, SideError
from tests.benchmarks.model import OURS, Goal, Row, Side, Workload
from tests.benchmarks.peers import programs
from tests.benchmarks.side import maker_of

SOME = workloads.ALL if os.environ.get("FLOWPREGEL_CRASH_ALL") else workloads.ALL[::3]
"""The workloads that are done: a process each, so the daily tests take one in three."""


def ours_once(workload: Workload) -> harness.Samples:
    """Do our side of a workload once."""
    with contextlib.ExitStack() as stack:
        side = workload.sides[OURS]
        slow = slow_disk.environment(stack) if side.slow_disk else {}
        child = stack.enter_context(Child(side, slow))
        child.ready()
        return {OURS: [child.go()]}


@pytest.mark.slow
@pytest.mark.parametrize("module", SOME)
def test_our_side_of_a_workload_gives_the_figures_of_its_rows(module: str) -> None:
    """Its smallest workload runs, and each row finds its figure in what comes out."""
    workload = workloads.of(module, quick=True)[0]
    if not harness.is_there(workload.sides[OURS]):
        pytest.skip("there is no C compiler")
    samples = ours_once(workload)

    for row in workload.rows:
        found = harness.result_of(row, workload, samples)
        assert found["figures"][OURS]["median"] >= 0
        assert json.loads(json.dumps(found)) == found
        assert row.name in report.line(row.name, found)


def test_every_side_names_a_maker_that_takes_its_options() -> None:
    """A workload cannot name work that nobody can do (those whose peer is not here
    aside).
    """
    sides = [
        side
        for quick in (True, False)
        for each in order.everything(quick=quick)
        for side in each.sides.values()
    ]

    assert all(
        callable(maker_of(side.maker)) for side in sides if harness.is_there(side)
    )


def test_a_side_whose_program_is_absent_is_left_out() -> None:
    """Temporal needs its server beside the package."""
    side = Side(maker="peers.temporal:steps", program="no-such-program")

    assert not harness.is_there(side)
    assert harness.is_there(replace(side, program="sh"))


def test_programs_of_packages_are_found_in_an_environment_that_is_not_activated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parsl starts programs that pip has put beside this Python."""
    monkeypatch.setenv("PATH", "/nowhere")
    program = Path(sys.executable).name

    assert harness.is_there(Side(maker="peers.parsl:gather", program=program))


def test_no_peer_that_waits_for_the_disk_stands_beside_our_async_mode() -> None:
    """Only LangGraph has such a mode too; the others stand beside our sync mode."""
    peers = [
        side
        for workload in order.everything(quick=False)
        if workload.sides[OURS].options.get("kept") == "async"
        for side in workload.sides.values()
        if side.needs
    ]

    assert {"langgraph"} == {side.needs[0] for side in peers}
    assert "sync" not in {side.options.get("kept") for side in peers}


@pytest.mark.slow
def test_the_imports_of_a_durable_program_include_a_store() -> None:
    """The row of imports measures more than the first of several modules."""
    code = f"{programs.DURABLE[OURS]}\nimport sys; print('lmdb' in sys.modules)"

    assert "True" == programs.run("-c", code).strip()


@pytest.mark.slow
def test_sides_in_processes_of_their_own_take_turns() -> None:
    """The first turn does not count, and CPU time is measured beside the clock."""
    limit = {"seconds": 1.0}
    workload = Workload(
        sides={
            OURS: Side(maker="peers.futures:ideal", options=limit),
            "other": Side(maker="peers.futures:ideal", options=limit, repeats=1),
            "absent": Side(maker="peers.nobody:nothing", needs=("no_such_module",)),
        },
        rows=(),
        repeats=2,
    )

    samples = harness.measure(workload)

    assert {OURS: 2, "other": 1} == {
        name: len(turns) for name, turns in samples.items()
    }
    assert {"wall", "seconds"} <= {*samples[OURS][0]}


@pytest.mark.slow
def test_a_side_that_fails_says_why_and_the_others_go_on(capsys: Any) -> None:
    """One peer that is broken does not cost the figures of the rest."""
    sides = {
        OURS: Side(maker="peers.futures:ideal", options={"seconds": 1.0}),
        "broken": Side(
            maker="peers.futures:gather", options={"count": 1, "kind": 1, "x": 2}
        ),
    }

    samples = harness.measure(Workload(sides=sides, rows=(), repeats=1))

    assert [OURS] == [*samples]
    assert "unexpected keyword argument 'x'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_side_says_where_its_time_goes() -> None:
    """The profile names functions, without folders of this machine."""
    with Child(Side(maker="peers.ours:steps", options={"count": 5}), {}) as child:
        child.ready()
        found = child.profile()

    names = [entry["what"] for entry in found["entries"]]
    assert any(name.startswith("flowpregel/") for name in names)
    assert [] == [name for name in names if name.startswith("/")]


def test_a_side_that_ends_is_an_error_with_what_it_said() -> None:
    """Nobody waits for an answer that will not come."""
    with (
        pytest.raises(SideError, match="No module named"),
        Child(Side(maker="peers.nobody:nothing"), {}) as child,
    ):
        child.ready()


TURNS = {
    OURS: [{"seconds": 1.0}, {"seconds": 2.0}, {"seconds": 9.0}],
    "peer": [{"seconds": 4.0}],
}


@pytest.mark.parametrize(
    ("goals", "holds"),
    [
        ((Goal(most=0.5, against="peer"),), True),
        ((Goal(most=0.4, against="peer"),), False),
        ((Goal(most=2.0),), True),
        ((Goal(most=0.5, against="peer"), Goal(most=1.9)), False),
        ((Goal(most=0.5, against="peer"), Goal(most=1, against="nobody")), None),
        ((Goal(most=0.4, against="peer"), Goal(most=1, against="nobody")), False),
    ],
)
def test_a_row_holds_if_its_median_meets_every_goal(
    goals: Any, holds: bool | None
) -> None:
    """A goal without its peer is not compared, and one that is missed decides."""
    row = Row(name="r", what="work", goals=goals)
    sides = {name: Side(maker="m:f") for name in TURNS}

    found = harness.result_of(row, Workload(sides=sides, rows=(row,)), TURNS)

    assert holds is found["holds"]
    assert {"median": 2.0, "low": 1.5, "high": 5.5, "turns": 3} == found["figures"][
        OURS
    ]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("W1", ["W1a", "W1b", "W1c"]),
        ("w2", ["W2a", "W2b", "W2c", "W2d"]),
        ("W11", ["W11", "W11 100,000"]),
        ("G4", ["G4a", "G4b", "G4c"]),
        ("census", ["census", "census CPU"]),
    ],
)
def test_a_short_name_asks_for_all_rows_that_begin_with_it(
    asked: str, found: list[str]
) -> None:
    """But W1 is not W10."""
    assert found == [name for name in order.names() if order.is_asked(name, [asked])]


def test_a_name_that_fits_no_row_is_an_error() -> None:
    """It says which there are."""
    with pytest.raises(LookupError, match=r"no row is called 'W99'; there are W1a, "):
        order.chosen(["W99"], quick=True)


@pytest.fixture
def options(tmp_path: Path) -> argparse.Namespace:
    """A command line that keeps its results in a new file."""
    return argparse.Namespace(json=tmp_path / "results.json")


def new_log(options: argparse.Namespace, *, resumes: bool = True) -> Log:
    """Return the log of a program that starts with the results in the file."""
    return Log(options, results.load(options.json), resumes=resumes)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The code, the machine and its load, which a test can change."""
    now: dict[str, Any] = {"package": "p", "cores": 2, "load": 0.0}
    monkeypatch.setattr(origins, "package_digest", lambda: now["package"])
    monkeypatch.setattr(results, "machine", lambda: {"cores": now["cores"]})
    monkeypatch.setattr(origins, "sampled_load", lambda: now["load"])
    return now


@pytest.mark.parametrize(
    ("load", "change", "is_measured"),
    [
        (0.0, {}, True),
        (0.0, {"package": "other"}, False),
        (0.0, {"cores": 3}, False),
        (1.0, {}, False),
        (1.0, {"load": 1.0}, True),
    ],
)
def test_all_leaves_out_what_was_measured_on_this_code_and_machine(
    options: argparse.Namespace,
    machine: dict[str, Any],
    load: float,
    change: dict[str, Any],
    is_measured: bool,
) -> None:
    """A stopped program resumes; a busy row waits for a quiet machine."""
    new_log(options).add("rows", "W1a", {"figures": {"flowpregel": 1}, "load": load})
    machine.update(change)

    assert is_measured is new_log(options).has("rows", "W1a")
    assert not new_log(options).has("rows", "W1b")
    assert not new_log(options, resumes=False).has("rows", "W1a")


@pytest.mark.usefixtures("machine")
def test_a_row_without_one_of_its_sides_is_measured_again(
    options: argparse.Namespace,
) -> None:
    """A peer that was installed since then gets its figure."""
    row = Row(name="W1a", what="work", goals=())
    workload = Workload(sides={}, rows=(row,))
    new_log(options).add("rows", "W1a", {"figures": {OURS: 1, "peer": 1}, "load": 0})

    assert new_log(options).has_sides(workload, [OURS])
    assert new_log(options).has_sides(workload, [OURS, "peer"])
    assert not new_log(options).has_sides(workload, [OURS, "peer", "new"])


@pytest.mark.usefixtures("machine")
def test_origins_that_no_figure_has_are_dropped(options: argparse.Namespace) -> None:
    """The file does not grow with each measurement."""
    measured = results.load(None)
    measured["origins"] = {"old": {"commit": "a"}}

    Log(options, measured, resumes=False).add("rows", "W1a", {"load": 0})

    assert "old" not in results.load(options.json)["origins"]


def test_each_profile_has_a_name_of_its_own() -> None:
    """The first row of each workload that runs in the profiled process."""
    assert ["W3a", "W3a threads", "W3a async"] == profiles.names(["W3a"], quick=True)
    assert [] == profiles.names(["census"], quick=True)


def test_figures_of_uncommitted_code_are_not_for_the_pages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A figure on a page names a commit that everyone can look up."""
    monkeypatch.setattr(origins, "uncommitted", lambda: ["flowpregel/errors.py"])
    monkeypatch.setattr(sys, "argv", ["benchmarks", "W1", "--docs"])

    with pytest.raises(SystemExit):
        arguments()

    message = capsys.readouterr().err
    assert "commit these files first" in message
    assert "flowpregel/errors.py" in message


def test_what_git_does_not_know_is_unknown() -> None:
    """A shallow clone lacks the commits of older figures."""
    assert origins.changed_files("0" * 40) is None


@pytest.mark.parametrize(
    ("loads", "load"),
    [
        ((0.1, 0.234), 0.23),
        ((1.5, 0.0), 1.5),
        ((None, 1.0), None),
        ((None, None), None),
    ],
)
def test_the_load_of_a_row_is_the_greater_one_of_before_and_after(
    loads: tuple[float | None, ...], load: float | None
) -> None:
    """Where it cannot be sampled it is unknown, not nothing."""
    assert load == origins.greater_load(*loads)
