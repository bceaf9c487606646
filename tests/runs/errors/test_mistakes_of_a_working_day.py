"""Mistakes of a working day: each is answered at once, with what to write instead.

Those of somebody's first day are in `test_beginners_mistakes`, futures that are used as
results in `test_futures_misused`, misspelled options in `test_flow_options`, those of
the command in `test_cli_*`.
"""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from flowpregel import (
    CachePolicy,
    Command,
    File,
    InMemorySaver,
    LMDBSaver,
    RetryPolicy,
    TimeoutPolicy,
    get_runtime,
    interrupt,
    report_progress,
    shared,
    shell,
    signal,
    sleep,
)
from flowpregel.errors import (
    EmptyInputError,
    ResourcesError,
    StoreError,
    TaskSerializationError,
    UnknownInterruptError,
)
from flowpregel.executors import ProcessExecutor
from tests.runs.graph_mistakes import GRAPHS
from tests.runs.mistakes import Mistake, double, entrypoint, inside, one, task


def kept(saver: Any = None, body: Any = one) -> Any:
    """Return a workflow whose runs are kept."""
    return entrypoint(checkpointer=saver or InMemorySaver(), executor="inline")(body)


def asking(question: Any = "?") -> Any:
    """Return a workflow of which the run "1" waits for an answer."""
    flow = kept(body=lambda n: interrupt(question))
    flow.invoke(1, thread_id="1")
    return flow


# ---------------------------------------------------------------- options


OPTIONS: dict[str, Mistake] = {
    "names a task in front of it": (
        lambda: task("name"),
        TypeError,
        "a function, not 'name'",
    ),
    "gives a timeout as text": (
        lambda: task(timeout="3s")(one),
        TypeError,
        "a timedelta",
    ),
    "gives no time": (
        lambda: task(timeout=0)(one),
        ValueError,
        "greater than 0...use None for no",
    ),
    "gives an idle timeout below zero": (
        lambda: TimeoutPolicy(idle_timeout=-1),
        ValueError,
        "idle_timeout must be greater than 0 seconds, not -1",
    ),
    "wants no attempt": (
        lambda: RetryPolicy(max_attempts=0),
        ValueError,
        "of at least 1",
    ),
    "names an error by text": (
        lambda: RetryPolicy(retry_on="OSError"),  # type: ignore[arg-type]
        ValueError,
        "retry_on is 'OSError'; use an exception class",
    ),
    "waits less than nothing": (
        lambda: RetryPolicy(initial_interval=-1),
        ValueError,
        "use seconds, 0 or more",
    ),
    "gives a short name of an option": (
        lambda: task(retry=3),
        TypeError,
        "it has...retry_policy",
    ),
    "keeps a result for a text": (
        lambda: CachePolicy(ttl="1h"),  # type: ignore[arg-type]
        ValueError,
        "ttl must be greater than 0 seconds, not '1h'",
    ),
    "gives a cache to a task": (
        lambda: task(cache="x.lmdb")(one),
        ValueError,
        "use True",
    ),
    "shares a result that nothing keeps": (
        lambda: inside(lambda: task(cache=True)(one)(1).result()),
        ValueError,
        "nowhere to store them: give the entrypoint",
    ),
    "shares what has no content": (
        lambda: inside(
            lambda: task(cache=True)(one)(threading.Lock()).result(), cache="c.lmdb"
        ),
        ValueError,
        "because of a lock...key_func",
    ),
    "takes no CPU": (
        lambda: task(cpus=-1)(one),
        ValueError,
        "use a number greater than 0",
    ),
    "takes much memory": (
        lambda: task(memory="lots")(one),
        ValueError,
        "such as '2GB'",
    ),
    "gives a number for a limit": (
        lambda: task(limit=3)(one),
        ValueError,
        "limit=3: use the name",
    ),
    "mistypes a limit": (
        lambda: inside(lambda: task(limit="api")(one)(1).result(), executor="threads"),
        ResourcesError,
        "ProcessExecutor(limits={'api': ...})",
    ),
    "gives a rate without a time": (
        lambda: task(rate=60)(one),
        ValueError,
        "such as '60/min'",
    ),
    "gives a priority in words": (
        lambda: task(priority="high")(one),
        ValueError,
        "a whole number",
    ),
    "mistypes isolation": (
        lambda: task(isolation="clean")(one),
        ValueError,
        "use 'fresh'",
    ),
    "gives a number for a version": (
        lambda: task(version=2)(one),
        ValueError,
        "use str",
    ),
    "adopts a number": (
        lambda: task(adopts=3)(one),
        ValueError,
        "task(adopts=3): use the former name",
    ),
    "adopts a number for a workflow": (
        lambda: entrypoint(adopts=3)(one),
        ValueError,
        "the former name",
    ),
    "hides a parameter that is not there": (
        lambda: task(redact=["passwort"])(lambda password: 1),
        ValueError,
        "it has password",
    ),
    "has no workers": (
        lambda: ProcessExecutor(max_workers=0),
        ValueError,
        "a whole number",
    ),
    "has less than nothing of a limit": (
        lambda: ProcessExecutor(limits={"api": -1}),
        ValueError,
        "limits['api'] is -1",
    ),
    "mistypes durability": (
        lambda: kept().invoke(1, thread_id="1", durability="disk"),
        ValueError,
        "use 'sync', 'async' or 'exit'",
    ),
    "ends in time before it begins": (
        lambda: kept().run(1, id="1", stop_after=-1),
        ValueError,
        "use seconds, or a timedelta",
    ),
    "runs no task at once": (
        lambda: kept().invoke(1, thread_id="1", max_concurrency=0),
        ValueError,
        "at least 1, not 0",
    ),
    "mistypes resume": (
        lambda: kept().invoke(1, thread_id="1", resume="yes"),
        ValueError,
        "use 'auto'",
    ),
    "gives a list for a thread": (
        lambda: kept().invoke(1, thread_id=["1"]),
        ValueError,
        "thread_id must be text",
    ),
    "gives an empty id": (
        lambda: kept().run(1, id=""),
        ValueError,
        "one.run(id=''): the id is empty; use any other text, or leave id out",
    ),
    "gives an empty id before": (
        lambda: kept().with_options(id="").run(1),
        ValueError,
        "one.run(id=''): the id is empty; use any other text",
    ),
    "calls nobody at the end": (
        lambda: entrypoint(on_end=3)(one),
        ValueError,
        "use a function",
    ),
}

# ---------------------------------------------------------------- calls


async def _result_in_a_coroutine(n: int) -> Any:
    return double(n).result()


def _inside_itself(levels: int) -> Any:
    saver = InMemorySaver()

    @entrypoint(checkpointer=saver, executor="inline")
    def middle(n: int) -> Any:
        return outer.run(n, id="1")

    @entrypoint(checkpointer=saver, executor="threads")
    def outer(n: int) -> Any:
        return middle.run(n, id="1" if levels == 1 else "2")

    return outer.run(1, id="1")


async def _inside_itself_on_a_loop() -> Any:
    saver = InMemorySaver()

    @entrypoint(checkpointer=saver, executor="inline")
    async def study(n: int) -> Any:
        return await study.arun(n, id="1")

    return await study.arun(1, id="1")


CALLS: dict[str, Mistake] = {
    "gives a task too many arguments": (
        lambda: inside(lambda: double(1, 2).result()),
        TypeError,
        "takes 1 positional argument but 2 were given",
    ),
    "maps over nothing": (
        lambda: inside(lambda: double.map()),
        TypeError,
        "map() takes a list",
    ),
    "streams over nothing": (
        lambda: inside(lambda: [*double.imap()]),
        TypeError,
        "takes a list",
    ),
    "has no window": (
        lambda: inside(lambda: double.imap([1], window=0)),
        ValueError,
        "at least 1",
    ),
    "sends a generator": (
        lambda: inside(lambda: double(n for n in [1]).result(), executor="processes"),
        Exception,
        "create it inside the task",
    ),
    "sends an open file": (
        lambda: _open_file(double, executor="processes"),
        TaskSerializationError,
        "cannot be pickled at args[0]...an open file: pass its path",
    ),
    "keeps an open file": (
        lambda: _open_file(task(one)),
        StoreError,
        "cannot be kept...an open file: pass its path",
    ),
    "keeps a result that cannot be": (
        lambda: inside(lambda: task(_lock)(1).result(), checkpointer="runs.lmdb"),
        StoreError,
        "the result of _lock(1) cannot be stored: value is a _thread.lock",
    ),
    "keeps a result of a workflow that cannot be": (
        lambda: kept("runs.lmdb", _lock).run(1, id="1"),
        StoreError,
        "the result cannot be stored: value is a _thread.lock",
    ),
    "keeps an input that cannot be": (
        lambda: kept("runs.lmdb").run(threading.Lock(), id="1"),
        StoreError,
        "the input cannot be stored: value is a _thread.lock",
    ),
    "asks for a result in a coroutine": (
        lambda: asyncio.run(
            entrypoint(executor="inline")(_result_in_a_coroutine).arun(1)
        ),
        RuntimeError,
        "use await",
    ),
    "runs a workflow inside itself": (
        lambda: _inside_itself(1),
        ValueError,
        "the run '1' was called inside itself...another id",
    ),
    "runs a workflow inside itself, further out": (
        lambda: _inside_itself(2),
        ValueError,
        "the run '1' was called inside itself",
    ),
    "runs a workflow inside itself on an event loop": (
        lambda: asyncio.run(_inside_itself_on_a_loop()),
        ValueError,
        "the run '1' was called inside itself",
    ),
    "sleeps for a text": (
        lambda: inside(lambda: sleep("1h"), checkpointer=InMemorySaver()),  # type: ignore[arg-type]
        ValueError,
        "use seconds, or until=",
    ),
    "sleeps twice at once": (
        lambda: inside(lambda: sleep(1, until=2), checkpointer=InMemorySaver()),  # type: ignore[arg-type]
        ValueError,
        "not both",
    ),
    "sleeps outside of a run": (
        lambda: sleep(1),
        RuntimeError,
        "in the body of an @entrypoint",
    ),
    "waits for a number": (
        lambda: inside(lambda: signal(3).result(), checkpointer=InMemorySaver()),  # type: ignore[arg-type]
        TypeError,
        "signal(3): use a text",
    ),
    "sends a signal that nothing keeps": (
        lambda: entrypoint(one).signal("1", "x"),
        ValueError,
        "@entrypoint(checkpointer='runs.lmdb')",
    ),
    "runs a number": (
        lambda: inside(lambda: shell(3).result(), executor="threads"),  # type: ignore[arg-type]
        TypeError,
        "shell(3): use a text, or a list",
    ),
    "runs what is not there": (
        lambda: inside(lambda: shell(["no-such-program"]).result(), executor="threads"),
        FileNotFoundError,
        "no-such-program",
    ),
    "passes a file that is not there": (
        lambda: inside(
            lambda: double(File("nope.txt")).result(), checkpointer=InMemorySaver()
        ),
        FileNotFoundError,
        "nope.txt",
    ),
    "shares what cannot be": (
        lambda: inside(lambda: shared(threading.Lock())),
        ValueError,
        "cannot pickle value: _thread.lock",
    ),
    "asks for the run outside of one": (
        get_runtime,
        RuntimeError,
        "call it from a node, a task",
    ),
    "reports outside of a run": (
        lambda: report_progress(1, 2),
        RuntimeError,
        "outside of a run",
    ),
    "answers by a wrong id": (
        lambda: asking().invoke(Command(resume={"0" * 32: "x"}), thread_id="1"),
        UnknownInterruptError,
        "is not waiting for an answer...the waiting interrupts are:",
    ),
    "answers on another thread": (
        lambda: asking().invoke(Command(resume="x"), thread_id="2"),
        UnknownInterruptError,
        "the thread_id of a run that is waiting",
    ),
    "commands nothing": (
        lambda: asking().invoke(Command(), thread_id="1"),
        EmptyInputError,
        "give it update, resume or goto",
    ),
    "goes on from a checkpoint that is not there": (
        lambda: kept().invoke(None, thread_id="1", checkpoint_id="nope"),
        LookupError,
        "thread '1' has no checkpoint 'nope'",
    ),
}


def _lock(n: int) -> Any:
    return threading.Lock()


def _open_file(use: Any, executor: str = "inline") -> Any:
    with Path(__file__).open(encoding="utf-8") as file:
        saver = InMemorySaver()
        return inside(lambda: use(file).result(), executor=executor, checkpointer=saver)


# ---------------------------------------------------------------- stores


def _under_a_file() -> Any:
    Path("notes").write_text("x", encoding="utf-8")
    return kept("notes/runs.lmdb").run(1, id="1")


def _among_others() -> Any:
    Path("pictures").mkdir()
    Path("pictures/cat.txt").write_text("x", encoding="utf-8")
    return kept("pictures").run(1, id="1")


def _closed() -> Any:
    saver = LMDBSaver("closed.lmdb")
    saver.close()
    return kept(saver).run(1, id="1")


STORES: dict[str, Mistake] = {
    "gives a class for a checkpointer": (
        lambda: entrypoint(checkpointer=InMemorySaver)(one),
        ValueError,
        "InMemorySaver is a class: write InMemorySaver(...)",
    ),
    "gives an empty path": (
        lambda: entrypoint(checkpointer="")(one),
        ValueError,
        "path is empty",
    ),
    "gives an empty path for a cache": (
        lambda: entrypoint(cache="")(one),
        ValueError,
        "is empty",
    ),
    "gives an unknown URL": (
        lambda: entrypoint(checkpointer="redis://x")(one),
        ValueError,
        "neither a folder nor a known URL",
    ),
    "keeps runs under a file": (_under_a_file, StoreError, "leads through a file"),
    "keeps runs among other files": (
        _among_others,
        StoreError,
        "give an empty or new folder",
    ),
    "uses a saver that is closed": (_closed, StoreError, "is closed; open it again"),
    "reads a store that is not there": (
        lambda: LMDBSaver("missing.lmdb", readonly=True),
        StoreError,
        "there is no store at",
    ),
    "gives a size below zero": (
        lambda: LMDBSaver("x.lmdb", map_size=-1),
        ValueError,
        "map_size",
    ),
}

MISTAKES = OPTIONS | CALLS | STORES | GRAPHS
assert len(MISTAKES) == sum(map(len, (OPTIONS, CALLS, STORES, GRAPHS))), (
    "two have one name"
)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_at_once_with_what_to_write(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the message of what is raised: nothing hangs, and nothing is silent."""
    monkeypatch.chdir(tmp_path)
    make, error, says = MISTAKES[name]

    with pytest.raises(error) as raised:
        make()

    pattern = ".*".join(map(re.escape, says.split("...")))
    assert re.search(pattern, str(raised.value), re.DOTALL), raised.value


def test_there_are_seventy_six() -> None:
    """The list only grows."""
    assert len(MISTAKES) >= 76
