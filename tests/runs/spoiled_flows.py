"""Flows that change whatever they are given, right after they got it: no record may
notice.
"""

from __future__ import annotations

import itertools
import operator
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypedDict

from flowpregel import END, START, StateGraph, interrupt
from flowpregel._core.ids import QuestionRecord
from flowpregel._core.records import ASKED, CALLED, Address, Batch, PendingWrite
from flowpregel.channels import DeltaChannel
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.func import entrypoint, task
from flowpregel.types import Command

_ID = re.compile(r"\b([0-9a-f]{16}\.)?[0-9a-f]{32}\b")
"""Of an interrupt; and the digests of a call, which are of the code too: that is
another.
"""
_LATE = 0.1
Change = Callable[[Any], None]


def spoil(value: Any) -> None:
    """Change each list and dict in *value*."""
    if isinstance(value, dict | list):
        for part in [*value.values()] if isinstance(value, dict) else [*value]:
            spoil(part)
    if isinstance(value, dict):
        value["spoiled"] = True
    elif isinstance(value, list):
        value.append("spoiled")


def leave(_: Any) -> None:
    """Change nothing: what the others are compared with."""


class LateSaver(LMDBSaver):
    """Commits in the background late, when what it was given has long been changed."""

    go: threading.Event
    late: threading.Event

    def commit(self, batches: Sequence[Batch]) -> None:
        """Keep *batches*, late."""
        is_late = threading.current_thread().name == "flowpregel-writer"
        if is_late:
            self.go.wait(_LATE)
        super().commit(batches)
        if is_late:
            self.late.set()


def late_saver(path: Any) -> LateSaver:
    """Return a saver whose background commits wait."""
    saver = LateSaver(path)
    saver.go, saver.late = threading.Event(), threading.Event()
    return saver


def ask_and_answer(
    invoke: Callable[..., Any], app: Any, given: Any, change: Change
) -> Any:
    """Run *app* until it asks, answer, and change all that came and went."""
    asked: dict[str, Any] = {"thread_id": "t", "run_id": "one", "durability": "async"}
    found = invoke(app, given, **asked)
    change([each.value for each in found["__interrupt__"]])
    change(given)
    answer = {"answer": [2]}
    result = invoke(app, Command(resume=answer), **asked)
    change(answer)
    return result


def functional(saver: Any, executor: Any, change: Change) -> Any:
    """Tasks whose results, and an input, an answer and a question, are changed by the
    body.
    """

    @task
    def pair(n: int, more: list[int]) -> dict[str, Any]:
        result = {"n": [n], "more": [*more]}
        change(more)
        return result

    # The task `pair` changes its argument on purpose.
    @entrypoint(checkpointer=saver, executor=executor, check_mutations=False)
    def flow(given: dict[str, list[int]], *, previous: Any = None) -> Any:
        numbers = [*given["numbers"]]
        change(given)
        total = 0
        for n in numbers:
            arguments = [n, n]
            result = pair(n, arguments).result()
            total += sum(result["n"])
            change(arguments)
            change(result)
        for result in [each.result() for each in [pair(n, [n]) for n in numbers]]:
            change(result)
        answer = interrupt({"question": [1]})
        total += sum(answer["answer"])
        change(answer)
        return entrypoint.final(value={"total": [total]}, save=[total])

    return flow


def _extend(value: list[Any], writes: list[Any]) -> list[Any]:
    return [*value, *(each for write in writes for each in write)]


class Spoiled(TypedDict, total=False):
    """What the nodes of `graph` write."""

    first: dict[str, Any]
    second: list[Any]
    added: Annotated[list[Any], operator.add]
    deltas: Annotated[list[Any], DeltaChannel(_extend)]


def graph(saver: Any, executor: Any, change: Change) -> Any:
    """Nodes that change the state they are given, and what they returned before."""
    returned: list[Any] = []

    def node(name: str) -> Callable[[Any], Any]:
        def run(state: Any) -> Any:
            change(dict(state))
            for each in returned:
                change(each)
            if name == "second":
                change(interrupt({"name": [name]}))
            update: dict[str, Any] = {
                name: {"of": [name, [1]]} if name == "first" else [name]
            }
            if name == "first":
                # Not `added`: its reducer would fold the state that was changed.
                update |= {"deltas": [{"by": [name]}]}
            returned.append(update)
            return update

        return run

    built = StateGraph(Spoiled)
    built.add_node("first", node("first")).add_node("second", node("second"))
    built.add_edge(START, "first").add_edge("first", "second").add_edge("second", END)
    return built.compile(checkpointer=saver, executor=executor)


def record(saver: BaseCheckpointSaver) -> Iterator[Any]:
    """Yield what is kept of thread ``t``, oldest first, without ids, times and digests
    of code.

    The flows that are compared differ in what they change, so their code differs too.
    """
    for saved in reversed([*saver.history(Address("t"))]):
        checkpoint = saved.checkpoint
        values = {
            name: each for name, each in checkpoint.values.items() if name != CALLED
        }
        deltas = {name: [*each.writes] for name, each in saved.deltas.items()}
        writes = [
            (each.channel, _ID.sub("id", repr(_comparable(each))))
            for each in saved.writes
        ]
        writes.sort()
        yield checkpoint.step, checkpoint.source, repr(values), repr(deltas), writes


def _comparable(write: PendingWrite) -> Any:
    """Return the value of a write; of a question without the code that asked."""
    if write.channel != ASKED:
        return write.value
    return [QuestionRecord(*each)._replace(code="") for each in write.value]


FLOWS = {"functional": functional, "graph": graph}
INPUTS: dict[str, Any] = {
    "functional": {"numbers": [1, 2]},
    "graph": {
        "first": {"given": [0]},
        "added": [["given"]],
        "deltas": [{"given": [0]}],
    },
}


def killed(path: str, name: str) -> None:
    """Change three things, let the writer commit what records them, and die."""
    saver = late_saver(path)
    changed = itertools.count(1)

    def change_and_die(value: Any) -> None:
        spoil(value)
        if next(changed) == 3:
            saver.go.set()
            assert saver.late.wait(30)
            os.kill(os.getpid(), signal.SIGKILL)

    app = FLOWS[name](saver, "inline", change_and_die)
    ask_and_answer(type(app).invoke, app, INPUTS[name], change_and_die)


if __name__ == "__main__":
    killed(*sys.argv[1:])
