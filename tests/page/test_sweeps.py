"""What the server answers about a sweep: a file, the points of a plot, a comparison."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from flowpregel import LMDBSaver
from flowpregel.plugins.page.scripts import STATIC
from tests.page.big import MANY, THREAD, big_store
from tests.page.serving import Served, served
from tests.page.sweep_flows import sweep_store

UPLOT = "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
"""The digest of ``dist/uPlot.iife.min.js`` in version 1.6.32 of the package."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of a store with two runs of a sweep."""
    with served(sweep_store(tmp_path_factory.mktemp("sweep") / "store")) as server:
        yield server


def ask(server: Served, path: str, **query: Any) -> Any:
    """Return an answer of the server as JSON."""
    return json.loads(server.ask(f"/api/{path}?{urlencode(query)}").body)


def table(server: Served, **query: Any) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    body = server.ask(f"/api/calls/file?{urlencode(query)}").body
    return [*csv.DictReader(io.StringIO(body, newline=""))]


def test_a_csv_file_has_the_rows_that_match_the_filter(server: Served) -> None:
    rows = table(
        server, thread="base", q="task:train loss:<2", state="done", sort="-loss"
    )

    losses = [float(row["loss"]) for row in rows]
    assert 2 <= len(rows) < 12
    assert losses == sorted(losses, reverse=True)
    assert max(losses) < 2
    assert {"done"} == {row["state"] for row in rows}
    assert {"task", "call", "took", "lr", "depth", "epochs"} <= {*rows[0]}


def test_a_csv_file_has_the_chosen_columns(server: Served) -> None:
    odd = quote("a,b", safe="")
    rows = table(server, thread="base", q="task:train", columns=f"call,loss,{odd}")

    assert ["call", "loss", "a,b"] == [*rows[0]]
    assert 12 == len(rows)


def test_a_csv_file_is_sent_as_a_file(server: Served) -> None:
    answer = server.ask("/api/calls/file?thread=base")

    assert answer.headers["content-type"].startswith("text/csv")
    assert 'filename="calls.csv"' in answer.headers["content-disposition"]


def test_a_csv_file_of_many_calls_is_sent_in_parts(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """All of them, whether the server has read them before or not."""
    store = big_store(tmp_path_factory.mktemp("big") / "store", 12_000)
    with served(store) as server:
        answer = server.ask(f"/api/calls/file?thread={THREAD}&columns=call,took")

    assert "chunked" == answer.headers["transfer-encoding"]
    assert 12_000 < len(answer.body.splitlines()) < 12_100


def test_a_plot_has_points_that_name_their_calls(server: Served) -> None:
    plot = ask(server, "plot", thread="base", x="lr", y="loss", colour="depth")

    assert ("lr", "loss", 11) == (plot["x"], plot["y"], plot["total"])
    xs = [x for x, *_ in plot["points"]]
    assert sorted(xs) == xs
    _, _, depth, call, label = plot["points"][0]
    details = ask(server, "call", thread="base", call=call)
    assert ("train", 4) == (details["row"]["name"], depth)
    assert label == details["row"]["text"]


def test_a_plot_shows_what_was_asked_and_what_came_out_by_default(
    server: Served,
) -> None:
    plot = ask(server, "plot", thread="base")

    assert ("lr", "loss") == (plot["x"], plot["y"])
    assert {"lr", "depth", "epochs", "loss", "order", "took"} <= {*plot["numbers"]}
    assert "kind" not in plot["numbers"]
    assert {"kind", "depth", "task"} <= {*plot["groups"]}


def test_a_plot_of_many_calls_is_small(many_calls: str) -> None:
    with served(many_calls) as server:
        while ask(server, "calls", thread=THREAD)["is_behind"]:
            pass
        answer = server.ask(f"/api/plot?thread={THREAD}&x=order&y=took")

    plot = json.loads(answer.body)
    assert MANY <= plot["total"]
    assert 1_000 < len(plot["points"]) <= 4_000
    assert len(answer.body) < 600_000


def test_two_runs_are_compared(server: Served) -> None:
    answer = ask(server, "compare", a="base", b="wide")

    assert [{"name": "width", "a": 1, "b": 2}] == answer["parameters"]
    assert {"different": 11, "same": 1} == answer["counts"]
    assert 11 == len(answer["calls"])
    assert {"loss"} == {result["name"] for result in answer["calls"][0]["results"]}
    same = ask(server, "compare", a="base", b="wide", change="same")["calls"]
    assert ["failed"] == [call["a"]["state"] for call in same]
    rest = ask(server, "compare", a="base", b="wide", offset=10)["calls"]
    assert answer["calls"][10:] == rest


def test_two_calls_are_compared(server: Served) -> None:
    call = ask(server, "compare", a="base", b="wide")["calls"][0]

    ids = {"call_a": call["a"]["id"], "call_b": call["b"]["id"]}
    answer = ask(server, "compare", a="base", b="wide", **ids)

    assert answer["is_same_input"]
    assert not answer["is_same_result"]
    assert call["results"] == answer["results"]


@pytest.mark.parametrize(
    "path",
    [
        "compare?a=base&b=lost",
        "compare?a=base",
        "compare?a=base&b=wide&call_a=x&call_b=y",
        "compare?a=base&b=wide&offset=x",
        "compare?a=base&b=wide&colour=red",
        "plot?x=lr",
        "plot?thread=base&size=x",
        "calls/file",
        "calls/file?thread=base&colour=red",
    ],
)
def test_what_is_not_there_is_an_error_with_words(server: Served, path: str) -> None:
    answer = server.ask(f"/api/{path}")

    assert 404 == answer.status
    assert json.loads(answer.body)["error"]


def test_the_plots_library_is_that_of_its_release(server: Served) -> None:
    """With one line more, which makes a module of it, and with its licence."""
    script = (STATIC / "vendor" / "uplot.js").read_bytes()
    release, end, rest = script.rpartition(b"export default uPlot;\n")

    assert (b"export default uPlot;\n", b"") == (end, rest)
    assert UPLOT == sha256(release).hexdigest()
    assert b"1.6.32" in release[:80]
    licence = server.ask("/static/vendor/uplot.LICENSE")
    assert "The MIT License" in licence.body
    style = server.ask("/static/vendor/uplot.css")
    assert (200, "no-cache") == (style.status, style.headers["cache-control"])
    assert 404 == server.ask("/static/vendor/none.js").status


def test_the_runs_are_in_the_store(server: Served) -> None:
    with LMDBSaver(server.store, readonly=True) as saver:
        assert {"base", "wide"} == {info.thread_id for info in saver.threads()}
