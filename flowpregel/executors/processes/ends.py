"""What a task in a worker can do towards its run: emit, call, beat, use the store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from itertools import count
from typing import Any

from flowpregel._core.records import (
    Arguments,
    Escaped,
    Interrupted,
    Node,
    Outcome,
    Raised,
    Returned,
    Withdrawn,
)
from flowpregel.carried import carried_by
from flowpregel.context import RunClient
from flowpregel.errors import (
    GraphInterrupt,
    ParentCommand,
    TaskCancelled,
    TaskSerializationError,
)
from flowpregel.executors.calls import CallFuture, OpenCalls, returned_by
from flowpregel.executors.processes import frames, messages, serialization
from flowpregel.executors.processes.frames import Frame
from flowpregel.executors.processes.wire import Outlet
from flowpregel.executors.shared import sent_by_key


class Answer(CallFuture[Any]):
    """What a call that a task in a worker has made comes to."""

    def _look(self, how: str) -> None:
        # The link is read by an OS thread of its own: whoever waits here stops nobody else.
        self.looked_at = True


class WorkerRunClient:
    """The ends of all tasks of one worker.

    Args:
        outlet: Where frames go.
        listen: Called before an answer is waited for.
    """

    def __init__(self, outlet: Outlet, listen: Callable[[], None]) -> None:
        self._outlet = outlet
        self._listen = listen
        self._waiting: dict[int, Answer] = {}
        self.number = 0
        """The task that runs."""
        self.made = OpenCalls()
        """The calls of the task that runs."""
        self.is_used = False
        """Whether a task has called or asked something since `renew`."""
        self._numbers = count(1)
        self._lock = threading.Lock()
        self.store = StoreProxy(self._ask)

    def renew(self) -> None:
        """Forget what the last task has called, and waits for: it is not for the next."""
        self.made = OpenCalls()
        with self._lock:
            self.is_used = False
            self._waiting.clear()

    def emit(self, number: int, chunk: Any) -> None:
        """Give the stream of task *number* a chunk."""
        try:
            body, _ = serialization.pack(chunk)
        except Exception as error:
            path, cause = serialization.find_culprit(chunk, "chunk")
            raise TaskSerializationError("this", "a stream chunk", path, cause) from error
        self._outlet.send(frames.EMITTED, number, body)

    def beat(self, number: int) -> None:
        """Show that task *number* is alive."""
        self._outlet.send(frames.BEAT, number)

    def call(
        self, number: int, content: tuple[Node, Arguments, str | None, str], answer: Answer
    ) -> Answer:
        """Make a call for task *number*."""
        node, arguments, fingerprint, describe = content
        code = messages.pack_node(node, called=True)
        try:
            carried = carried_by(copy_context(), {})
            with sent_by_key():
                body, _ = serialization.pack((arguments, fingerprint, describe, carried))
        except Exception as error:
            path, cause = serialization.find_culprit(arguments, "arguments")
            raise TaskSerializationError(node.name, "the input", path, cause) from error
        digest = serialization.digest_of(code)
        size = len(code).to_bytes(8, "little")
        return self._request(frames.CALLED, number, digest + size + code + body, answer)

    def _ask(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.is_used = True
        body, _ = serialization.pack((method, args, kwargs))
        return self._request(frames.ASKED, self.number, body, Answer()).result()

    def _request(self, kind: int, number: int, body: bytes, answer: Answer) -> Answer:
        with self._lock:
            request = next(self._numbers) & 0xFFFFFFFF
            self._waiting[request] = answer
        self._listen()
        self._outlet.send(kind, number, request.to_bytes(4, "little") + body)
        return answer

    def answered(self, frame: Frame) -> None:
        """Give an answer to whoever waits for it."""
        with self._lock:
            future = self._waiting.pop(frame.number, None)
        if future is None:
            return
        try:
            settle(future, messages.unpack_outcome(frame.body, "in a called task", None))
        except BaseException as error:  # noqa: BLE001 - the caller is told
            future.set_exception(error)


class TaskRunClient(RunClient):
    """The ends of one task.

    Methods, since three functions made for each task would cost it more than its own start.

    Args:
        ends: Those of its worker.
        number: The task's.
    """

    __slots__ = ("_ends", "_made", "_number")

    def __init__(self, ends: WorkerRunClient, number: int) -> None:
        self._ends = ends
        # What code that has outlived its task calls is not the next one's.
        self._made = ends.made if number == ends.number else OpenCalls()
        self._number = number

    def emit(self, chunk: Any) -> None:
        """Give the run's stream a custom chunk, or a `Report`."""
        self._ends.emit(self._number, chunk)

    def call(self, node: Node, arguments: Arguments, fingerprint: str | None, describe: str) -> Any:
        """Make a call; return its future."""
        content = node, arguments, fingerprint, describe
        self._ends.is_used = True
        return self._ends.call(self._number, content, Answer(None, self._made))

    def beat(self) -> None:
        """Show that the task is alive."""
        self._ends.beat(self._number)


def settle(future: Answer, outcome: Outcome) -> None:
    """Give *future* what a call's *outcome* means to its caller."""
    match outcome:
        case Returned(writes):
            future.succeed(returned_by(writes))
        case Raised(error):
            future.set_exception(error)
        case Interrupted(interrupts):
            future.set_exception(GraphInterrupt(interrupts))
        case Escaped(command):
            future.set_exception(ParentCommand(command))
        case Withdrawn():
            future.set_exception(TaskCancelled())


class StoreProxy:
    """The run's long-term store, as a worker reaches it: over the link.

    It has the methods of the coordinator's store; each call is answered there.
    """

    def __init__(self, ask: Callable[[str, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._ask = ask

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        ask = self._ask

        def method(*args: Any, **kwargs: Any) -> Any:
            return ask(name, args, kwargs)

        return method
