"""Drawings of runs: what ran when, for how long, and what failed."""

from textwrap import dedent

from flowpregel._inspection.run_table import RunDrawing, TaskRecord

NODES = {name: name for name in ("load", "score", "rank", "publish")}
TASKS = (
    TaskRecord(step=1, node="score", name="score", seconds=1.0),
    TaskRecord(step=0, node="load", name="load", seconds=0.5),
    TaskRecord(step=1, node="score", name="score", seconds=2.0),
    TaskRecord(
        step=1,
        node="score",
        name="score",
        seconds=12.0,
        status="failed",
        attempt=3,
        detail="KeyError: 'x'\nat",
    ),
    TaskRecord(step=2, node="rank", name="rank", status="waiting", detail="go on?"),
    TaskRecord(step=2, node="gone", name="gone", status="open"),
)


def test_a_table_of_supersteps_shows_times_and_trouble() -> None:
    assert RunDrawing(TASKS, NODES).draw_ascii() == dedent("""\
        step 0  ✓ load      █                     0.500 s
        step 1  ✓ score x2  ███                   2.000 s
                ✗ score     ████████████████████   12.0 s  attempt 3, KeyError: 'x'
        step 2  ? rank                                     go on?
                … gone
        not run: publish""")


def test_a_run_of_every_node_names_none_that_did_not_run() -> None:
    tasks = tuple(TaskRecord(step=0, node=name, name=name) for name in NODES)

    assert "not run" not in str(RunDrawing(tasks, NODES))


def test_a_run_without_tasks_says_so() -> None:
    assert str(RunDrawing((), NODES)) == "(no tasks)"


def test_tasks_of_nested_graphs_are_named_by_them() -> None:
    task = TaskRecord(step=0, node="sub:x", name="sub:x", seconds=1)

    assert str(RunDrawing((task,), {"sub:x": "sub:x"})).startswith("step 0  ✓ sub:x")


def test_a_notebook_shows_the_table() -> None:
    drawing = RunDrawing(TASKS, NODES)

    assert repr(drawing) == drawing.draw_ascii()
