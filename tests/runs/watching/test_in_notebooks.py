"""What a notebook and an interpreter show of a workflow, a graph and a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flowpregel import entrypoint, task
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.graph import START, StateGraph
from flowpregel.pregel.progress import NotebookProgress


def keep(state: dict[str, Any]) -> dict[str, Any]:
    return state


def chain(length: int) -> StateGraph:
    graph = StateGraph(dict)
    previous = START
    for number in range(length):
        graph.add_node(f"n{number}", keep).add_edge(previous, f"n{number}")
        previous = f"n{number}"
    return graph


def test_a_workflow_names_its_parameters_and_its_store(tmp_path: Path) -> None:
    """Without a store only its parameters."""

    def study(seeds, rounds=3):  # type: ignore[no-untyped-def]
        return seeds

    with LMDBSaver(tmp_path / "store") as saver:
        stored = repr(entrypoint(checkpointer=saver)(study))

    assert f"<workflow study(seeds, rounds=3), stored in {saver.path!r}>" == stored
    assert "<workflow study(seeds, rounds=3)>" == repr(entrypoint()(study))


def test_a_graph_names_its_first_nodes() -> None:
    assert "<graph 'two' of n0, n1>" == repr(chain(2).compile(name="two"))
    assert "<graph 'many' of n0, n1, n2, n3, n4 and 3 more>" == repr(
        chain(8).compile(name="many")
    )


@pytest.mark.parametrize("kind", ["graph", "workflow"])
def test_a_notebook_shows_a_picture(kind: str) -> None:
    """And the name where no picture can be shown."""

    @entrypoint()
    def study(seeds: list[int]) -> None:
        """Do nothing."""

    shown: Any = chain(2).compile() if kind == "graph" else study

    bundle = shown._repr_mimebundle_(include=None, exclude=None)

    assert bundle["text/html"].startswith("<svg ")
    assert repr(shown) == bundle["text/plain"]
    assert bundle["text/vnd.mermaid"].startswith("flowchart")


def test_a_run_has_coloured_signs_and_no_tags_of_its_calls(tmp_path: Path) -> None:
    """In as many lines as in a terminal."""

    @task(executor="inline", name="<b>work</b>")
    def work(n: int) -> int:
        return 1 // n

    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def flow(numbers: list[int]) -> None:
            for n in numbers:
                work(n).exception()

        flow.run([1, 0], id="1")
        run = flow.get_run(thread_id="1")

    html = run._repr_html_()

    assert {"<pre style", "<span style", "</span>", "</pre>"} == {
        tag.partition("=")[0] for tag in re.findall(r"<[^>]*>", html)
    }
    assert ">✓</span> flow" in html
    assert ">✗</span> &lt;b&gt;work&lt;/b&gt;(0)" in html
    assert repr(run).count("\n") == html.count("\n")


def test_the_progress_of_a_run_has_a_bar_for_each_task() -> None:
    """With the name of the task as text."""
    picture = NotebookProgress(["flow: 1.0 s"], [("<b>work</b>", 3, 10)])

    html = picture._repr_html_()

    assert '<td>&lt;b&gt;work&lt;/b&gt;</td><td><progress value="3" max="10">' in html
    assert ">flow: 1.0 s</pre>" in html
    assert "flow: 1.0 s" == repr(picture)
