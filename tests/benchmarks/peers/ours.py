"""flowpregel."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowpregel import shared
from flowpregel.channels import LastValue
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.func import entrypoint, task
from flowpregel.plugins.sqlite import SQLiteSaver
from flowpregel.pregel import ChannelWriteEntry, NodeBuilder, Pregel
from tests.benchmarks import work
from tests.benchmarks.model import Work, Working

_threads = itertools.count()


def new_thread() -> str:
    """Return a thread id that was not used before."""
    return str(next(_threads))


def cycle(last: int, **options: Any) -> Pregel:
    """Return a program of one trivial node that triggers itself."""
    entry = ChannelWriteEntry("v", skip_none=True)
    return Pregel(
        nodes={
            "n": NodeBuilder().subscribe_only("v").do(work.UpTo(last)).write_to(entry)
        },
        channels={"v": LastValue(int)},
        input_channels="v",
        output_channels="v",
        **options,
    )


def saver(kind: str | None, folder: Path) -> Any:
    """Return a saver: None, ``memory``, or on disk."""
    if kind is None:
        return None
    return InMemorySaver() if kind == "memory" else durable_saver(folder)


def durable_saver(folder: Path, store: str = "lmdb") -> LMDBSaver | SQLiteSaver:
    """Return a saver on disk: on LMDB, or on the *store* ``sqlite``."""
    if store == "sqlite":
        return SQLiteSaver(folder / "store.db")
    return LMDBSaver(folder / "store")


@contextlib.contextmanager
def engine(kind: str, workers: int | None = None) -> Any:
    """Yield a warm executor."""
    if kind != "processes":
        yield kind
        return
    count = workers or work.CORES
    pool = ProcessExecutor(count)
    try:
        list(pool.map(work.pause, [0.2] * count))
        yield pool
    finally:
        pool.shutdown()


@contextlib.contextmanager
def steps(
    count: int,
    kept: str | None = None,
    executor: str = "inline",
    store: str = "lmdb",
) -> Working:
    """Yield a cycle of *count* supersteps; the time is that of one.

    Args:
        count: How many.
        kept: None, ``memory``, or the durability on disk.
        executor: Where the node runs.
        store: The engine on disk.
    """
    with work.folder() as folder, engine(executor) as where:
        is_on_disk = kept not in (None, "memory")
        checkpointer = (
            durable_saver(folder, store) if is_on_disk else saver(kept, folder)
        )
        app = cycle(count, checkpointer=checkpointer, executor=where)
        options: Any = {} if kept in (None, "memory") else {"durability": kept}

        def turn() -> float:
            run: Any = {
                "thread_id": new_thread(),
                "recursion_limit": count + 10,
                **options,
            }
            return work.seconds_of(lambda: app.invoke(0, **run), count)

        yield turn


@contextlib.contextmanager
def crowd(runs: int, count: int, on_loop: bool) -> Working:
    """Yield *runs* cycles at once, on one event loop or each in an OS thread of its
    own.

    The time is that of one superstep.
    """
    with work.folder() as folder:
        app = cycle(count, checkpointer=saver("sync", folder), executor="inline")
        run: Any = {"durability": "sync", "recursion_limit": count + 10}

        def one() -> None:
            app.invoke(0, thread_id=new_thread(), **run)

        async def all_of_them() -> None:
            await asyncio.gather(
                *(app.ainvoke(0, thread_id=new_thread(), **run) for _ in range(runs))
            )

        def every() -> None:
            if on_loop:
                asyncio.run(all_of_them())
            else:
                at_once(one, runs)

        yield lambda: work.seconds_of(every, runs * count)


def at_once(run: Callable[[], Any], count: int) -> None:
    """Run something in *count* OS threads."""
    threads = [threading.Thread(target=run) for _ in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


@contextlib.contextmanager
def gather(
    count: int,
    kept: str | None = None,
    executor: str = "processes",
    async_body: bool = False,
) -> Working:
    """Yield *count* trivial tasks, called at once and gathered; the time is that of
    one.
    """
    from tests.benchmarks.peers import functional

    with work.folder() as folder, engine(executor) as where:
        options: Any = {} if async_body else {"executor": where}
        run: Any = {} if kept in (None, "memory") else {"durability": kept}
        flow = functional.gatherer(
            (entrypoint, task), async_body, checkpointer=saver(kept, folder), **options
        )
        yield lambda: functional.once(flow, count, async_body, new_thread(), **run)


@contextlib.contextmanager
def limited(count: int, **resources: Any) -> Working:
    """Yield *count* trivial tasks that take *resources*, called at once.

    There is enough for one of them at a time, and a worker beside it that has nothing
    to do. The figure is the CPU time of one of them in this process: all its OS
    threads, no worker.
    """
    from tests.benchmarks.peers import functional

    with ProcessExecutor(2, limits={"api": 1, "cpus": 1, "memory": "1MB"}) as pool:
        double = task(functional.double, **resources)

        @entrypoint(executor=pool)
        def flow(n: int) -> int:
            return sum(future.result() for future in [double(i) for i in range(n)])

        def turn() -> dict[str, float]:
            before = time.process_time()
            flow.invoke(count)
            return {"coordinator": (time.process_time() - before) / count}

        yield turn


@contextlib.contextmanager
def mapped(
    function: str, given: list[Any], alone: bool = False, workers: int = 0
) -> Working:
    """Yield a flow that calls a task for each value; the time is that of all.

    Args:
        function: Of `work`.
        given: The arguments of `work.values`.
        alone: Whether the pool maps by itself, without a flow.
        workers: How many; 0 for one a core.
    """
    with engine("processes", workers) as pool:
        step = task(getattr(work, function))

        @entrypoint(executor=pool)
        def flow(items: list[Any]) -> int:
            return len([each.result() for each in [step(value) for value in items]])

        def turn() -> float:
            items = work.values(*given)
            if alone:
                return work.seconds_of(
                    lambda: list(pool.map(getattr(work, function), items))
                )
            return work.seconds_of(lambda: flow.invoke(items))

        yield turn


@contextlib.contextmanager
def in_chunks(function: str, given: list[Any], size: int) -> Working:
    """Yield a flow that maps a task over values in chunks of *size*; the time is that
    of all.
    """
    with engine("processes") as pool:
        step = task(getattr(work, function))

        @entrypoint(executor=pool)
        def flow(items: list[Any]) -> int:
            return len([each.result() for each in step.map(items, chunksize=size)])

        items = work.values(*given)
        yield lambda: work.seconds_of(lambda: flow.invoke(items))


@contextlib.contextmanager
def by_handle(
    function: str, given: list[Any], kept: str | None = None, alone: bool = False
) -> Working:
    """Yield a flow whose calls all take one value by its handle; the time is that of
    all.

    Args:
        function: Of `work`.
        given: The arguments of `work.values`.
        kept: The durability on disk, if it is kept.
        alone: Whether the pool maps by itself, without a flow.
    """
    value: Any = None
    with work.folder() as folder, engine("processes") as pool:
        called = getattr(work, function)
        step = task(called)

        @entrypoint(executor=pool, checkpointer=saver(kept, folder))
        def flow(count: int) -> int:
            with shared(value) as handle:
                return len([each.result() for each in step.map([handle] * count)])

        def by_pool(count: int) -> int:
            with shared(value) as handle:
                return len([*pool.map(called, [handle] * count)])

        def turn() -> float:
            nonlocal value
            items = work.values(*given)
            value, count = items[0], len(items)
            if alone:
                return work.seconds_of(lambda: by_pool(count))
            options: Any = (
                {"thread_id": new_thread(), "durability": kept} if kept else {}
            )
            return work.seconds_of(lambda: flow.invoke(count, **options))

        yield turn


@contextlib.contextmanager
def round_trips(count: int) -> Working:
    """Yield calls in a worker, one after the other, as a run makes them."""
    from tests.runs.pooling import Run, node_of

    node = node_of(work.same)
    with engine("processes") as pool:
        run = Run(pool)
        yield lambda: work.seconds_of(
            lambda: [run.outcome(node, n) for n in range(count)], count
        )


@contextlib.contextmanager
def submits(count: int) -> Working:
    """Yield calls in a worker by the pool's ``submit``, one after the other."""
    with engine("processes") as pool:
        yield one_by_one(pool.submit, count)


def one_by_one(submit: Callable[..., Any], count: int) -> Work:
    """Return work that waits for each call before it makes the next."""
    return lambda: work.seconds_of(
        lambda: [submit(work.same, n).result() for n in range(count)], count
    )
