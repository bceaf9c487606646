"""The tasks from whose results the arguments of a call come, recorded with the call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel import LMDBSaver, entrypoint, task
from flowpregel._core.records import Address


@task
def find(count: int) -> list[str]:
    return [f"file-{number}.txt" for number in range(count)]


@task
def parse(path: str) -> dict[str, int]:
    return {"words": 1_000 + len(path)}


@task
def total(parts: list[dict[str, int]], start: int = 0) -> int:
    return start + sum(part["words"] for part in parts)


@task
def summary(count: int) -> int:
    return total(parse.map(find(count).result())).result()


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[LMDBSaver]:
    with LMDBSaver(tmp_path / "store") as saver:
        yield saver


def sources_of(saver: LMDBSaver) -> dict[str, list[Any]]:
    """Return the sources of the arguments of each call, by the name of the task."""
    sources: dict[str, list[Any]] = {}
    for saved in saver.history(Address("x")):
        for *_, ran in saved.ran:
            preview = json.loads(ran.preview or "{}")
            if "a" in preview:
                sources.setdefault(ran.name, []).append(preview.get("f"))
    return sources


def run_body(
    saver: LMDBSaver, body: Callable[[Any], Any], executor: str = "inline"
) -> None:
    """Run *body* as a flow under the id ``x``."""
    entrypoint(checkpointer=saver, executor=executor)(body).run(3, id="x")


@pytest.mark.parametrize("executor", ["processes", "threads", "inline"])
def test_a_future_among_the_arguments_names_its_task(
    saver: LMDBSaver, executor: str
) -> None:
    def body(count: int) -> int:
        paths = find(count).result()
        return total(parse.map(paths[:1]), start=total([])).result()

    run_body(saver, body, executor)

    sources = sources_of(saver)
    assert {"parts": ["parse"], "start": ["total"]} in sources["total"]


@pytest.mark.parametrize("executor", ["processes", "threads", "inline"])
def test_a_result_among_the_arguments_names_its_task(
    saver: LMDBSaver, executor: str
) -> None:
    """The result itself, an item of it, and a list of results."""

    def body(count: int) -> int:
        paths = find(count).result()
        parts = [future.result() for future in parse.map(paths)]
        subtotal = total(parts).result()
        return total([], start=subtotal).result()

    run_body(saver, body, executor)

    assert {
        "find": [None],
        "parse": [{"path": ["find"]}] * 3,
        "total": [{"parts": ["parse"]}, {"start": ["total"]}],
    } == {name: sorted(sources, key=str) for name, sources in sources_of(saver).items()}


def test_chunks_name_their_tasks(saver: LMDBSaver) -> None:
    def body(count: int) -> int:
        parts = parse.map(find(count).result(), chunksize=2)
        return total([future.result() for future in parts]).result()

    run_body(saver, body)

    sources = sources_of(saver)
    assert [{"path": ["find"]}] * 2 == sources["parse"]
    assert [{"parts": ["parse"]}] == sources["total"]


def test_a_coroutine_names_the_results_that_it_awaited(saver: LMDBSaver) -> None:
    async def body(count: int) -> int:
        paths = await find(count)
        parts = await asyncio.gather(*map(parse, paths))
        return await total(parts)

    flow = entrypoint(checkpointer=saver, executor="inline")(body)
    asyncio.run(flow.arun(3, id="x"))

    sources = sources_of(saver)
    assert [{"path": ["find"]}] * 3 == sources["parse"]
    assert [{"parts": ["parse"]}] == sources["total"]


@pytest.mark.parametrize("executor", ["processes", "inline"])
def test_a_task_that_calls_tasks_records_their_sources(
    saver: LMDBSaver, executor: str
) -> None:
    run_body(saver, lambda count: summary(count).result(), executor)

    sources = sources_of(saver)
    assert [{"path": ["find"]}] * 3 == sources["parse"]
    assert [{"parts": ["parse"]}] == sources["total"]
    assert [None] == sources["summary"]


def test_a_resumed_run_records_the_results_of_the_earlier_run(
    saver: LMDBSaver, tmp_path: Path
) -> None:
    @task
    def publish(paths: list[str]) -> int:
        (tmp_path / "published").mkdir()
        return len(paths)

    def body(count: int) -> int:
        return publish(find(count).result()).result()

    (tmp_path / "published").mkdir()
    with pytest.raises(FileExistsError):
        run_body(saver, body)
    (tmp_path / "published").rmdir()
    run_body(saver, body)

    assert [{"paths": ["find"]}] == sources_of(saver)["publish"]


def test_an_equal_value_of_the_body_has_no_source(saver: LMDBSaver) -> None:
    def body(count: int) -> int:
        find(count).result()
        return parse("file-0.txt").result()["words"]

    run_body(saver, body)

    assert [None] == sources_of(saver)["parse"]
