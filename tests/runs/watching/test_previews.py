"""What a call was asked and what came out, recorded by field where the call ran."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel import InMemorySaver, LMDBSaver, StateGraph, entrypoint, task
from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import StoreOptions
from flowpregel.cli.app import app
from flowpregel.errors import ConfigurationError, WorkerDiedError
from flowpregel.runtime import Runtime
from flowpregel.watching import CallIndex, CallQuery, StoreReader

PNG = b"\x89PNG\r\n\x1a\n"


@dataclass
class Params:
    depth: int
    api_key: str = "sk-hidden"


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[LMDBSaver]:
    with LMDBSaver(tmp_path / "store") as saver:
        yield saver


def run_body(
    saver: Any, body: Callable[[Any], Any], executor: Any = "processes"
) -> Any:
    """Run *body* as a flow under the id ``x``."""
    return entrypoint(checkpointer=saver, executor=executor)(body).run(0, id="x")


def previews_of(saver: Any) -> dict[str, Any]:
    """Return the recorded previews of calls, by the task's name."""
    attempts = [ran for saved in saver.history(Address("x")) for *_, ran in saved.ran]
    return {ran.name: json.loads(ran.preview) for ran in attempts if ran.preview}


def details_of(saver: LMDBSaver, name: str) -> dict[str, Any]:
    """Return all that is stored of the call of the task *name*."""
    with closing(StoreReader(saver)) as reader:
        rows = [row for part in reader.changes("x") for row in part.rows]
        (row,) = [row for row in rows if row.name == name]
        details = reader.call("x", row.id)
    assert details is not None
    return details


@task
def train(params: Params, seed: int, *, runtime: Runtime) -> dict[str, float]:
    runtime.metric("epochs", 3)
    if seed == 0:
        runtime.report("so far", title="note")
        raise FloatingPointError("loss is nan")
    return {"loss": 0.5, "accuracy": float("nan")}


TRAINED = {
    "a": {"params.depth": 8, "params.api_key": ["<redacted>"], "seed": 1},
    "m": {"epochs": 3},
    "r": {"loss": 0.5, "accuracy": ["nan"]},
}


@pytest.mark.parametrize("executor", ["processes", "threads", "inline"])
def test_a_call_is_recorded_with_its_fields(saver: LMDBSaver, executor: str) -> None:
    run_body(saver, lambda _: train(Params(8), 1).result(), executor)

    assert {"train": TRAINED} == previews_of(saver)


def test_arguments_are_recorded_as_they_were_at_the_call(
    saver: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task may change them."""
    monkeypatch.setenv("FLOWPREGEL_CHECK_MUTATIONS", "0")

    @task
    def deepen(params: Params) -> None:
        params.depth += 100

    run_body(saver, lambda _: deepen(Params(8)).result())

    assert 8 == previews_of(saver)["deepen"]["a"]["params.depth"]


def test_an_executor_of_another_library_records_them_too(saver: LMDBSaver) -> None:
    with ThreadPoolExecutor(1) as pool:
        run_body(saver, lambda _: train(Params(8), 1).result(), pool)

    assert {"train": TRAINED} == previews_of(saver)


def test_a_coroutine_is_recorded_with_its_fields(saver: LMDBSaver) -> None:
    @task
    async def double(number: int) -> int:
        return 2 * number

    run_body(saver, lambda _: double(4).result())

    assert {"double": {"a": {"number": 4}, "r": 8}} == previews_of(saver)


def test_a_failed_call_keeps_its_metrics_and_reports(saver: LMDBSaver) -> None:
    with pytest.raises(FloatingPointError):
        run_body(saver, lambda _: train(Params(12), 0).result())

    assert {"epochs": 3} == previews_of(saver)["train"]["m"]
    assert 12 == previews_of(saver)["train"]["a"]["params.depth"]
    details = details_of(saver, "train")
    assert [{"title": "note", "kind": "text", "text": "so far"}] == details["media"]


def test_a_call_whose_worker_died_is_recorded_with_its_arguments(
    saver: LMDBSaver,
) -> None:
    @task
    def die(code: int) -> None:
        os._exit(code)

    with pytest.raises(WorkerDiedError):
        run_body(saver, lambda _: die(3).result())

    assert {"die": {"a": {"code": 3}}} == previews_of(saver)


def test_arguments_that_a_task_redacts_are_not_recorded(saver: LMDBSaver) -> None:
    @task(redact="user")
    def log_in(user: str, tries: int) -> None: ...

    run_body(saver, lambda _: log_in("ann", 1).result())

    (preview,) = previews_of(saver).values()
    assert {"user": ["<redacted>"], "tries": 1} == preview["a"]


def test_the_picture_of_a_result_is_recorded_beside_the_call(saver: LMDBSaver) -> None:
    class Figure:
        def _repr_png_(self) -> bytes:
            return PNG + b"data"

    @task
    def draw() -> Figure:
        return Figure()

    run_body(saver, lambda _: draw().result() and None)

    details = details_of(saver, "draw")
    (picture,) = details["media"]
    assert ("result", "picture") == (picture["title"], picture["kind"])
    assert picture["url"].startswith("data:image/png;base64,iVBORw0KGgpkYXRh")
    assert {"draw": {"r": ["<Figure>"]}} == {
        name: {"r": [preview["r"][0].replace(f"{Figure.__qualname__}", "Figure")]}
        for name, preview in previews_of(saver).items()
    }


def test_a_retried_call_has_the_media_of_its_last_attempt_only(
    tmp_path: Path, saver: LMDBSaver
) -> None:
    works = tmp_path / "works"

    @task
    def draw(*, runtime: Runtime) -> int:
        if not works.exists():
            runtime.report("a reason\nin two lines")
            raise ValueError("not yet")
        return 1

    flow = entrypoint(checkpointer=saver)(lambda _: draw().result())
    with pytest.raises(ValueError, match="not yet"):
        flow.run(0, id="x")
    before = details_of(saver, "draw")["media"]
    works.touch()

    flow.run(0, id="x")

    assert ["report"] == [medium["title"] for medium in before]
    assert [] == details_of(saver, "draw")["media"]


def test_a_report_replaces_the_one_with_its_title(saver: LMDBSaver) -> None:
    @task
    def study(*, runtime: Runtime) -> None:
        for number in range(20):
            runtime.report({"round": number}, title=f"round {number // 2}")

    run_body(saver, lambda _: study().result())

    media = details_of(saver, "study")["media"]
    assert [f"round {number}" for number in range(2, 10)] == [
        medium["title"] for medium in media
    ]
    assert "round: 19" == media[-1]["text"]


def test_a_node_records_metrics_without_arguments(saver: LMDBSaver) -> None:
    def step(state: dict[str, Any], runtime: Runtime) -> dict[str, Any]:
        runtime.metric("rows", 7)
        return {"n": 1}

    graph = StateGraph(dict)
    graph.add_node("step", step)
    graph.add_edge("__start__", "step")
    flow = graph.compile(checkpointer=saver)
    flow.invoke({}, thread_id="x")

    assert {"step": {"m": {"rows": 7}}} == previews_of(saver)


@pytest.mark.parametrize("executor", ["processes", "inline"])
def test_without_a_store_nothing_is_previewed(executor: str) -> None:
    class Figure:
        def _repr_png_(self) -> bytes:
            raise AssertionError("it is shown")

    @task
    def draw(*, runtime: Runtime) -> bool:
        runtime.metric("n", 1)
        runtime.report(Figure())
        return True

    assert entrypoint(executor=executor)(lambda _: draw().result()).invoke(0)


def test_a_memory_saver_keeps_them() -> None:
    saver = InMemorySaver()

    run_body(saver, lambda _: train(Params(8), 1).result())

    assert {"train": TRAINED} == previews_of(saver)


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (5, 0), (100, 1)])
def test_a_store_limits_what_is_kept(tmp_path: Path, limit: int, count: int) -> None:
    @task
    def write() -> str:
        return "two\nlines"

    options = StoreOptions(kept_previews=limit)
    with LMDBSaver(tmp_path / "store", options=options) as saver:
        run_body(saver, lambda _: write().result())

        assert count == len(details_of(saver, "write")["media"])
        assert (limit > 0) == bool(previews_of(saver))


def test_forgotten_checkpoints_take_their_media_along(saver: LMDBSaver) -> None:
    @task
    def write() -> str:
        return "line\n" * 100

    run_body(saver, lambda _: write().result())
    before = saver.stats().bytes_of_writes
    saver.prune(["x"])
    saver.copy_thread("x", "y")

    assert before > 60
    assert 0 == saver.stats().bytes_of_writes


@pytest.mark.parametrize(
    ("name", "value"), [("", 1), ("x" * 61, 1), ("loss", "low"), ("loss", None)]
)
def test_a_metric_is_a_number_with_a_name(name: str, value: Any) -> None:
    def body(_: int, *, runtime: Runtime) -> None:
        runtime.metric(name, value)

    with pytest.raises(ConfigurationError, match="metric"):
        entrypoint(checkpointer=InMemorySaver())(body).run(0, id="x")


@task
def descend(epochs: int, *, runtime: Runtime) -> None:
    for epoch in range(epochs):
        runtime.metric("loss", 1 / (1 + epoch), step=10 * epoch)
    runtime.metric("epochs", epochs)
    runtime.metric("rate", 0.5)
    runtime.metric("rate", float("nan"))
    if epochs == 4:
        raise FloatingPointError("loss is nan")


@pytest.mark.parametrize("executor", ["processes", "threads", "inline"])
def test_the_values_of_a_metric_are_recorded_as_a_series(
    saver: LMDBSaver, executor: str
) -> None:
    run_body(saver, lambda _: descend(3).result(), executor)

    details = details_of(saver, "descend")
    loss, rate = details["media"]
    assert ["loss", "rate"] == [loss["title"], rate["title"]]
    assert [1.0, 1 / 2, 1 / 3] == loss["series"]["values"]
    assert [0.0, 10.0, 20.0] == loss["series"]["step"]
    times = [0.0, *loss["series"]["seconds"], details["row"].seconds + 0.1]
    assert sorted(times) == times
    assert ([0.5, None], []) == (rate["series"]["values"], rate["series"]["step"])
    expected = {"loss": 1 / 3, "epochs": 3, "rate": ["nan"]}
    assert expected == previews_of(saver)["descend"]["m"]


def test_a_failed_call_keeps_its_series(saver: LMDBSaver) -> None:
    with pytest.raises(FloatingPointError):
        run_body(saver, lambda _: descend(4).result(), "inline")

    assert 4 == len(details_of(saver, "descend")["media"][0]["series"]["values"])


def test_a_series_of_many_values_takes_few_bytes(saver: LMDBSaver) -> None:
    run_body(saver, lambda _: descend(5_000).result(), "inline")

    loss, _ = details_of(saver, "descend")["media"]
    assert [1.0, 1 / 5_000] == [
        loss["series"]["values"][0],
        loss["series"]["values"][-1],
    ]
    assert 100 <= len(loss["series"]["values"]) <= 200
    assert saver.stats().bytes_of_writes < 8_000


@pytest.mark.parametrize("step", ["first", object()])
def test_the_step_of_a_metric_is_a_number(step: Any) -> None:
    def body(_: int, *, runtime: Runtime) -> None:
        runtime.metric("loss", 0.5, step=step)

    with pytest.raises(ConfigurationError, match="step="):
        entrypoint(checkpointer=InMemorySaver())(body).run(0, id="x")


def test_the_number_of_metrics_is_bounded() -> None:
    def body(_: int, *, runtime: Runtime) -> None:
        for number in range(25):
            runtime.metric(f"m{number}", number)

    with pytest.raises(ConfigurationError, match="24 metrics"):
        entrypoint(checkpointer=InMemorySaver())(body).run(0, id="x")


def test_calls_are_found_and_sorted_by_field(saver: LMDBSaver) -> None:
    @task(executor="inline")
    def square(number: int, *, runtime: Runtime) -> dict[str, int]:
        runtime.metric("half", number / 2)
        return {"area": number**2}

    run_body(saver, lambda _: [square(n).result() for n in (3, 1, 2, 5)])

    with closing(StoreReader(saver)) as reader:
        index = CallIndex()
        for changes in reader.changes("x"):
            index.update(changes)
        page = index.page(CallQuery(text="area:<20 half:>0.5", order="-area"))
    texts = [page.rows[number].text for number in page.numbers]
    assert ["square(3)", "square(2)"] == texts


def test_show_names_the_fields_and_the_metrics(
    tmp_path: Path, saver: LMDBSaver
) -> None:
    run_body(saver, lambda _: train(Params(8), 1).result() and None)
    store = ["--store", str(tmp_path / "store")]

    shown = CliRunner().invoke(app, ["show", "x", "--full", *store], terminal_width=300)
    recorded = CliRunner().invoke(app, ["show", "x", "--json", *store])

    words = " ".join(shown.output.split())
    assert "train(params.depth=8, params.api_key=<redacted>, seed=1)" in words
    assert "epochs=3" in words
    metrics = [
        each["preview"]["metrics"] for each in json.loads(recorded.output)["tasks"]
    ]
    assert {"epochs": 3} in metrics
