"""Tasks and entrypoints as mypy sees them; read by the type checker, never run."""

from __future__ import annotations

from collections.abc import Generator
from typing import assert_type

import flowpregel
from flowpregel.events import StreamWriter
from flowpregel.func import (
    DryRun,
    Flow,
    ResultStream,
    RunHandle,
    TaskFunction,
    TaskFuture,
    entrypoint,
    task,
)
from flowpregel.policies import RetryPolicy
from flowpregel.runtime import Runtime


@task
def double(n: int) -> float:
    """Return twice *n*."""
    return 2.0 * n


@task(timeout=5, retry_policy=RetryPolicy(), version="1")
async def fetch(url: str, *, tries: int = 3) -> bytes:
    """Return what is at *url*."""
    return url.encode() * tries


@entrypoint(checkpointer="runs.lmdb")
async def flow(n: int) -> entrypoint.final[int, str]:
    """Return one value, and save another."""
    assert_type(double(n), TaskFuture[float])
    assert_type(double(n).result(), float)
    assert_type(await fetch("a", tries=2), bytes)
    assert_type(fetch("a"), TaskFuture[bytes])
    assert_type(double.map([1, 2]), list[TaskFuture[float]])
    assert_type(fetch.map(["a"]), list[TaskFuture[bytes]])
    failing = double.map([1], errors="return")
    assert_type([each.result() for each in failing], list[float | Exception])
    assert_type([each.result() for each in double.map([1], chunksize=2)], list[float])
    assert_type(list(double.imap([1], chunksize=2, ordered=False)), list[float])
    assert_type(double.imap([1], errors="return"), ResultStream[float | Exception])
    assert_type(flowpregel.map(str, [1], store="runs.lmdb", id="a"), list[str])
    assert_type(flowpregel.map(str, [1], timeout=60, adopt=True), list[str])
    assert_type(flowpregel.map(double, [1]), list[float])
    assert_type([*flowpregel.imap(fetch, ["a"])], list[bytes])
    assert_type(
        flowpregel.imap(str, [1], window=4, store=None), Generator[str, None, None]
    )
    return entrypoint.final(value=n, save="x")


@entrypoint
def study(seeds: list[int], *, scale: float = 1.0) -> float:
    """Return a sum."""
    return sum(seeds) * scale


async def use() -> None:
    """Run workflows by their signatures."""
    assert_type(study.run([1], scale=2.0), float)
    assert_type(
        study.run([1], id="1", adopt=True, again=True, on_conflict="raise"), float
    )
    assert_type(study.run([1], id="1", progress=True), float)
    assert_type(await study.arun([1]), float)
    assert_type(await flow.arun(1, id="1"), int)
    assert_type(flow.run(1), int)
    assert_type(flow.answer("yes", id="a"), int)
    assert_type(study.start([1], id="1"), RunHandle[float])
    assert_type(study.start([1]).result(timeout=1), float)
    assert_type(study.plan([1], id="1"), DryRun)
    named = study.with_options(id="1", durability="sync")
    assert_type(named.run(seeds=[1], scale=2.0), float)
    assert_type(await named.arun([1]), float)
    assert_type(named.start([1], scale=2.0), RunHandle[float])
    named.run(seeds=[1], scale="x")  # type: ignore[call-overload]
    study.run("a")  # type: ignore[call-overload]
    study.run([1], scales=2.0)  # type: ignore[call-overload]


class Scale:
    """Has a task for a method."""

    @task
    def times(self, n: int) -> float:
        """Return a product."""
        return 2.0 * n

    def use(self) -> None:
        """Call it, the object left out."""
        assert_type(self.times(3), TaskFuture[float])
        assert_type(self.times.map([3]), list[TaskFuture[float]])
        self.times("3")  # type: ignore[arg-type]
        self.times(self, 3)  # type: ignore[arg-type, call-arg]


async def singly(scale: Scale) -> None:
    """Run single calls of tasks."""
    assert_type(double.run(3), float)
    assert_type(double.run(3, id="a"), float)
    assert_type(double.run(3, id="a", store="runs.lmdb", adopt=True), float)
    assert_type(fetch.run("a", tries=2), bytes)
    assert_type(await fetch.arun("a", id="a"), bytes)
    assert_type(await double.arun(3), float)
    assert_type(scale.times.run(3, id="a"), float)
    single: Flow[[int], float] = double.as_flow()
    assert_type(single.run(3), float)
    assert_type(double.as_flow(None).start(3, id="a"), RunHandle[float])
    double.run("3")  # type: ignore[call-overload]
    double.run("3", id="a")  # type: ignore[call-overload]
    double.run(3, stores="runs.lmdb")  # type: ignore[call-overload]


async def plainly() -> None:
    """Call the plain functions."""
    result: float = double.func(3)
    content: bytes = await fetch.func("a", tries=2)
    print(result, content)
    double.func("3")  # type: ignore[arg-type]


same: Flow[[int], int] = flow
assert_type(double.with_options(timeout=3)(1), TaskFuture[float])
double("1")  # type: ignore[arg-type]
double(1, 2)  # type: ignore[call-arg]
fetch("a", trees=2)  # type: ignore[call-arg]
task(timeou=3)  # type: ignore[call-overload]
one: TaskFunction[[int], float] = double


@task
def fit(x: float, runtime: Runtime) -> float:
    """Return *x*; the run fills in the second parameter."""
    return x


@task(timeout=3)
async def load(url: str, size: int, *, runtime: Runtime) -> bytes:
    """Return what is at *url*."""
    return url.encode()[:size]


@task
def tell(word: str, writer: StreamWriter) -> int:
    """Return a length."""
    return len(word)


@task
def scaled(x: float, factor: float = 2.0, *, runtime: Runtime) -> float:
    """Return a product; with a default beside what is filled in, arguments are not
    checked.
    """
    return x * factor


@task
def labelled(x: float, **labels: str) -> float:
    """Return *x*."""
    return x


async def fill_in() -> None:
    """Call tasks without what the run fills in, and run a workflow with options."""
    assert_type(fit(1.0), TaskFuture[float])
    assert_type(fit.map([1.0]), list[TaskFuture[float]])
    assert_type(await load("a", 1), bytes)
    assert_type(tell("a"), TaskFuture[int])
    assert_type(scaled(1.0), TaskFuture[float])
    assert_type(scaled(1.0, factor=3.0), TaskFuture[float])
    assert_type(labelled(1.0, a="b"), TaskFuture[float])
    assert_type(study.run([1], scale=2.0, id="1", durability="sync"), float)
    assert_type(study.run(seeds=[1], id="1", tags=["nightly"]), float)
    assert_type(study.run([1], context={"user": "ann"}), float)
    assert_type(await study.start([1], id="1"), float)
