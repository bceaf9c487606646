"""Drawings of runs: what ran when, for how long, and what failed."""

from textwrap import dedent

from flowpregel.pregel.drawing import Edge, Graph, NodeShape
from flowpregel.pregel.run_drawing import TaskRecord, draw_run

GRAPH = Graph(
    {
        "__start__": NodeShape("__start__", "start"),
        **{name: NodeShape(name) for name in ("load", "score", "rank", "publish")},
    },
    [Edge("load", "score"), Edge("score", "rank"), Edge("rank", "publish")],
)
TASKS = [
    TaskRecord(step=1, node="score", seconds=1.0),
    TaskRecord(step=0, node="load", seconds=0.5),
    TaskRecord(step=1, node="score", seconds=2.0),
    TaskRecord(
        step=1, node="score", seconds=12.0, status="failed", attempt=3, detail="KeyError: 'x'\nat"
    ),
    TaskRecord(step=2, node="rank", status="waiting", detail="go on?"),
    TaskRecord(step=2, node="gone", status="open"),
]


def test_a_table_of_supersteps_shows_times_and_trouble() -> None:
    assert draw_run(GRAPH, TASKS).draw_ascii() == dedent("""\
        step 0  ✓ load      █                     0.500 s
        step 1  ✓ score x2  ███                   2.000 s
                ✗ score     ████████████████████   12.0 s  attempt 3, KeyError: 'x'
        step 2  ? rank                                     go on?
                … gone
        not run: publish""")


def test_a_run_of_every_node_names_none_that_did_not_run() -> None:
    tasks = [TaskRecord(step=0, node=name) for name in GRAPH.nodes if name != "__start__"]

    assert "not run" not in str(draw_run(GRAPH, tasks))


def test_a_run_without_tasks_says_so() -> None:
    assert str(draw_run(GRAPH, [])) == "(no tasks)"


def test_mermaid_shows_the_worst_of_each_node_and_its_time() -> None:
    text = draw_run(GRAPH, TASKS).draw_mermaid(direction="LR")

    assert 'score["score<br/>x3 12.0 s"]' in text
    assert 'load["load<br/>0.500 s"]' in text
    assert 'rank["rank"]' in text
    for name, members in {
        "done": "load",
        "failed": "score",
        "waiting": "rank",
        "idle": "publish",
    }.items():
        assert f"class {members} {name}\n" in text


def test_tasks_of_nested_graphs_are_shown_in_them() -> None:
    inner = Graph({"x": NodeShape("x")})
    graph = Graph({"sub": NodeShape("sub", subgraph=inner)})
    drawing = draw_run(graph, [TaskRecord(step=0, node="sub:x", seconds=1)])

    assert '["x<br/>1.000 s"]' in drawing.draw_mermaid()
    assert drawing.draw_ascii().startswith("step 0  ✓ sub:x")


def test_a_notebook_gets_text_html_and_mermaid() -> None:
    drawing = draw_run(GRAPH, [TaskRecord(step=0, node="load", status="failed", detail="<b>")])
    bundle = drawing._repr_mimebundle_()

    assert bundle["text/plain"] == drawing.draw_ascii()
    assert bundle["text/vnd.mermaid"] == drawing.draw_mermaid()
    assert "&lt;b&gt;" in bundle["text/html"]
