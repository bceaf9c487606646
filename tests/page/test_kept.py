"""What a server has read is stored while it serves, for a server after a kill."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowpregel import LMDBSaver, entrypoint, task
from flowpregel._inspection import reader_cache
from flowpregel._inspection.cache_files import cache_root
from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.plugins.page.pages import Pages, json_text
from flowpregel.plugins.sqlite import SQLiteSaver
from tests.page.serving import served
from tests.runs.watched import counted_records, until

CALLS = 40


@task(executor="inline")
def invert(n: int) -> float:
    return 1 / n


def run_to_an_error(saver: DurableSaver, calls: int = CALLS) -> None:
    """Run or resume a flow whose last call fails."""

    @entrypoint(checkpointer=saver)
    def flow(count: int) -> float:
        return sum(invert(n).result() for n in [*range(1, calls), 0])

    with pytest.raises(ZeroDivisionError):
        flow.invoke(None if any(saver.threads()) else 1, thread_id="1")


@pytest.fixture(autouse=True)
def small_runs_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(reader_cache, "LEAST_CALLS", 1)


@pytest.fixture(params=["lmdb", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DurableSaver]:
    path = tmp_path / "store"
    saver: DurableSaver
    if request.param == "lmdb":
        saver = LMDBSaver(path)
    else:
        saver = SQLiteSaver(f"sqlite:///{path}.db")
    with saver:
        run_to_an_error(saver)
        yield saver


def files() -> list[Path]:
    return list(cache_root().glob("*/*"))


def read_to_the_end(pages: Pages) -> dict[str, int]:
    """Read a run as a page does, and return the number of calls in each state."""
    while (answer := pages.calls("1"))["is_behind"]:
        pass
    counts: dict[str, int] = answer["counts"]
    return counts


def keep_all(pages: Pages) -> None:
    while pages.call_pages.keep_some():
        pass


def test_a_run_is_stored_while_the_server_serves(
    store: DurableSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server does not end before the second begins, as if it were killed."""
    with closing(Pages(store)) as first, closing(Pages(store)) as second:
        counts = read_to_the_end(first)
        keep_all(first)
        with counted_records(monkeypatch) as decoded:
            restored = read_to_the_end(second)
            kinds = second.diagnosis.errors("1")["kinds"]

    assert {"done": CALLS - 1, "failed": 2} == counts == restored
    assert [1] == [kind["count"] for kind in kinds]
    assert [] == decoded


def test_the_first_screen_is_sent_without_the_calls(
    store: DurableSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next server read all calls of a run at the first visit."""
    with closing(Pages(store)) as first:
        read_to_the_end(first)
        expected = json.loads(json_text(first.calls("1", offset="5", count="20")))
        expected_errors = first.diagnosis.errors("1")
        keep_all(first)
    with closing(Pages(store)) as second:
        with monkeypatch.context() as without_calls:
            without_calls.delattr(reader_cache.ReaderCache, "index")
            run = second.run("1")
            screen = second.calls("1", offset="5", count="20")
            known = ",".join(map(str, screen["numbers"][:19]))
            since = f"{screen['epoch']}.{screen['version']}"
            again = second.calls("1", offset="5", count="20", since=since, known=known)
            errors = second.diagnosis.errors("1")
        ordered = second.calls("1", sort="-began", count="1")
        found = second.calls("1", q="n:3")

    assert "failed" == run["status"]
    for name in ("columns", "total", "counts", "bodies", "fields", "found"):
        assert expected[name] == screen[name], name
    assert expected["numbers"] == screen["numbers"]
    assert expected["rows"] == screen["rows"]
    assert screen["numbers"][19:] == [row[0] for row in again["rows"]]
    assert screen["numbers"] == again["numbers"]
    assert expected_errors == errors
    assert CALLS + 1 == ordered["total"]
    assert ordered["epoch"] != screen["epoch"]
    assert 1 == found["total"]


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_a_first_screen_is_not_sent_after_a_change(store: DurableSaver) -> None:
    with closing(Pages(store)) as first:
        read_to_the_end(first)
        keep_all(first)
    with closing(Pages(store)) as second:
        before = second.calls("1")["counts"]
        run_to_an_error(store, CALLS + 5)
        expected = {"done": CALLS + 4, "failed": 2}
        # The tasks of a run that no process holds are read less often.
        until(lambda: read_to_the_end(second) == expected)
        after = second.calls("1")["counts"]

    assert {"done": CALLS - 1, "failed": 2} == before
    assert expected == after


def test_a_run_is_stored_once_until_it_changes(store: DurableSaver) -> None:
    with closing(Pages(store)) as pages:
        read_to_the_end(pages)
        keep_all(pages)
        stored = {path: path.stat().st_mtime_ns for path in files()}
        read_to_the_end(pages)
        has_more = pages.call_pages.keep_some()
        stored_again = {path: path.stat().st_mtime_ns for path in files()}

    assert 3 == len(stored)
    assert not has_more
    assert stored == stored_again


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_a_run_that_changes_meanwhile_is_stored_as_it_is_then(
    store: DurableSaver,
) -> None:
    """The columns that were packed before and after the change do not fit."""
    with closing(Pages(store)) as pages:
        read_to_the_end(pages)
        for _ in range(5):
            pages.call_pages.keep_some()
        run_to_an_error(store, CALLS + 5)
        expected = {"done": CALLS + 4, "failed": 2}
        # The tasks of a run that no process holds are read less often.
        until(lambda: read_to_the_end(pages) == expected)
        keep_all(pages)
        with closing(Pages(store)) as next_pages:
            restored = read_to_the_end(next_pages)

    assert expected == restored


def test_the_news_of_an_open_page_store_what_was_read(tmp_path: Path) -> None:
    path = str(tmp_path / "runs")
    with LMDBSaver(path) as saver:
        run_to_an_error(saver)
    with served(path) as server:
        server.ask("/api/calls?thread=1")
        before = files()
        address = ("127.0.0.1", server.port)
        with closing(socket.create_connection(address)) as link:
            head = f"GET /api/news HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n"
            link.sendall(f"{head}cookie: {server.cookie}\r\n\r\n".encode())
            after = until(lambda: files() if len(files()) == 3 else None)

    assert [] == before
    assert 3 == len(after)


def test_a_comparison_is_computed_once_until_a_run_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another part of it reads no call again."""
    with LMDBSaver(tmp_path / "store") as saver, closing(Pages(saver)) as pages:

        @task(executor="inline")
        def add(n: int, m: int) -> int:
            return n + m

        @entrypoint(checkpointer=saver)
        def adds(m: int) -> int:
            return sum(add(n, m).result() for n in range(10))

        adds.run(1, id="a")
        adds.run(2, id="b")

        def compared(change: str = "only a") -> list[str]:
            sweeps = pages.sweeps
            while (runs := sweeps.compared_runs("a", "b")) is None:
                pass
            answer = sweeps.compare(runs, "a", "b", change=change)
            return [call["text"] for call in answer["calls"]]

        first = compared()
        with counted_records(monkeypatch) as decoded:
            same, other = compared(), compared("only b")
            again = len(decoded)
            saver.delete_thread("b")
            adds.run(1, id="b")
            changed = compared()

    assert [f"add(n={n}, m=1)" for n in range(10)] == first == same
    assert [f"add(n={n}, m=2)" for n in range(10)] == other
    assert 0 == again
    assert [] == changed


def test_the_list_of_runs_sends_what_changed(tmp_path: Path) -> None:
    """The order has all runs; a version that is not known gets all rows."""
    with LMDBSaver(tmp_path / "store") as saver, closing(Pages(saver)) as pages:

        @entrypoint(checkpointer=saver)
        def double(number: int) -> int:
            return 2 * number

        double.run(1, id="a")
        double.run(2, id="b")
        first = pages.runs()
        same = pages.runs(known=first["version"])
        double.run(3, id="c")
        added = pages.runs(known=same["version"])
        later = pages.runs(known=first["version"])
        unknown = pages.runs(known="1")

    def ids(answer: Any) -> list[str]:
        return [run["thread_id"] for run in answer["runs"]]

    assert ["b", "a"] == ids(first) == first["order"]["runs"] == same["order"]["runs"]
    assert [] == ids(same) == same["flows"]
    assert ["c"] == ids(added) == ids(later)
    assert 1 == len(added["flows"])
    assert ["c", "b", "a"] == added["order"]["runs"] == ids(unknown)
    assert added["order"]["flows"] == [flow["flow"] for flow in first["flows"]]
