"""Tasks and entrypoints as mypy sees them; read by the type checker, never run."""

from __future__ import annotations

from typing import assert_type

import flowpregel
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
    return entrypoint.final(value=n, save="x")


@entrypoint
def study(seeds: list[int], *, scale: float = 1.0) -> float:
    """Return a sum."""
    return sum(seeds) * scale


async def use() -> None:
    """Run workflows by their signatures."""
    assert_type(study.run([1], scale=2.0), float)
    assert_type(study.run([1], id="1", adopt=True, again=True, on_conflict="raise"), float)
    assert_type(study.run([1], id="1", progress=True), float)
    assert_type(await study.arun([1]), float)
    assert_type(await flow.arun(1, id="1"), int)
    assert_type(flow.run(1), int)
    assert_type(study.start([1], id="1"), RunHandle[float])
    assert_type(study.start([1]).result(timeout=1), float)
    assert_type(study.plan([1], id="1"), DryRun)
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
