"""Clients that use a store at random and write down what they did.

``python -m tests.soak.histories LOCATION FILE ROUND OPERATIONS`` is one of them. Each
line of its file is a JSON text: the number of an operation, the time (ns, of the
machine's monotonic clock), and the object and action that it was called with, or what
it returned. One that has a call and no return is *unknown*: its process was killed, or
the answer was lost.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from flowpregel import _fault
from flowpregel._core.records import Address
from flowpregel.errors import CommitUnknownError, StoreError
from flowpregel.storage.options import StoreOptions
from tests.runs.stores import commit
from tests.soak.linearizability import MODELS, Action, Operation, is_linearizable

OBJECTS: Final = ("item a", "item b", "thread", "signals")
"""The objects of a round: the kind, and a name."""
_NAMESPACE = ("soak",)
_PATIENCE = (0.02, 5.0)
"""Seconds in which a client of PostgreSQL tries to learn what became of a commit: some
give up.
"""


class HistoryClient:
    """Does random operations on the objects of a round.

    Args:
        location: The path or the URL of the store.
        file: Where it writes down what it does.
        seed: Decides what that is.
    """

    def __init__(self, location: str, file: Path, seed: str) -> None:
        self._location, self._file = location, str(file)
        self._luck = random.Random(seed)
        self._count = 0
        self._name = file.stem

    def run(self, round_name: str, operations: int) -> None:
        """Do so many operations on the objects of a round."""
        with self._opened() as (store, saver):
            for _ in range(operations):
                self._do(round_name, store, saver)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        options = StoreOptions()
        with ExitStack() as closing:
            if self._location.startswith("postgresql:"):
                options = StoreOptions(lock_timeout=self._luck.choice(_PATIENCE))
                from flowpregel.plugins.postgres import PostgresSaver, PostgresStore

                store: Any = PostgresStore(self._location, options=options)
                saver: Any = PostgresSaver(self._location, options=options)
            else:
                from flowpregel.checkpoint.lmdb import LMDBSaver
                from flowpregel.store.lmdb import LMDBStore

                store = LMDBStore(self._location, options=options)
                saver = LMDBSaver(self._location, options=options)
            yield closing.enter_context(store), closing.enter_context(saver)

    def _do(self, round_name: str, store: Any, saver: Any) -> None:
        self._count += 1
        object_ = self._luck.choice(OBJECTS)
        # No two clients write the same: what is read tells whose it is.
        value = f"{self._name} {self._count}"
        if object_ == "thread":
            value = self._luck.randrange(1_000)  # type: ignore[assignment]
        action = self._luck.choice(_actions_of(object_, value))
        self._note(called=[f"{object_} {round_name}", action])
        try:
            result = _performed(store, saver, f"{object_} {round_name}", action)
        except CommitUnknownError:
            return
        except StoreError as error:
            self._note(failed=str(error))
        else:
            self._note(returned=result)

    def _note(self, **event: Any) -> None:
        line = {"number": self._count, "at": time.monotonic_ns(), **event}
        _fault.append(self._file, json.dumps(line) + "\n")


def _actions_of(object_: str, value: Any) -> list[Action]:
    match object_:
        case "thread":
            return [("commit", value), ("commit", value), ("delete",), ("load",)]
        case "signals":
            return [("send", value), ("receive",)]
    return [("put", value), ("put", value), ("delete",), ("get",)]


def _performed(store: Any, saver: Any, name: str, action: Action) -> Any:
    match action:
        case ("put", value):
            store.put(_NAMESPACE, name, {"value": value})
        case ("delete",) if name.startswith("item"):
            store.delete(_NAMESPACE, name)
        case ("get",):
            found = store.get(_NAMESPACE, name)
            return None if found is None else found.value["value"]
        case ("commit", number):
            commit(saver, number, {"n": number}, thread=name)
        case ("delete",):
            saver.delete_thread(name)
        case ("load",):
            saved = saver.load(Address(name))
            return None if saved is None else saved.checkpoint.step
        case ("send", value):
            saver.send_signal(name, "s", value)
        case ("receive",):
            received = saver.receive_signal(name, "s", str(time.monotonic_ns()))
            return None if received is None else received[0]
    return None


# ---------------------------------------------------------------- what was written down


def histories_in(files: Iterable[Path]) -> dict[str, list[Operation]]:
    """Return the operations on each object, of all clients."""
    found: dict[str, list[Operation]] = defaultdict(list)
    for file in files:
        calls: dict[int, dict[str, Any]] = {}
        ends: dict[int, dict[str, Any]] = {}
        for line in map(json.loads, file.read_text().splitlines()):
            (calls if "called" in line else ends)[line["number"]] = line
        for number, call in calls.items():
            end = ends.get(number, {})
            if "failed" in end:
                continue  # the store says that nothing of it was kept
            object_, action = call["called"]
            operation = Operation(
                tuple(action), call["at"], end.get("at"), end.get("returned")
            )
            found[object_].append(operation)
    return found


def violations_in(files: Iterable[Path]) -> list[str]:
    """Return the histories that cannot have happened, each as a text."""
    return [
        "\n".join([object_, *map(str, sorted(history, key=lambda each: each.called))])
        for object_, history in sorted(histories_in(files).items())
        if not is_linearizable(history, MODELS[object_.split()[0]])
    ]


def main(location: str, file: str, round_name: str, operations: str) -> int:
    """Do so many operations as a process of its own, and return the exit status."""
    HistoryClient(location, Path(file), file).run(round_name, int(operations))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
