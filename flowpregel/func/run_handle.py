"""The handle of a run that `Flow.start` has started."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from flowpregel._entry_points import NOTEBOOKS, load_plugins
from flowpregel._interrupts import on_sigterm
from flowpregel._tracebacks import UsersFrames, users_line
from flowpregel.context import nothing
from flowpregel.errors import UnansweredError
from flowpregel.func.cell_view import CellView, cell_view_of
from flowpregel.pregel.hints import add_hint
from flowpregel.pregel.runner import GraphRun

if TYPE_CHECKING:
    import asyncio

R = TypeVar("R")


class RunHandle(Generic[R]):
    """A handle of a started run.

    Iterate over the handle to get the run's events as ``(stream mode, payload)``. Async
    code awaits the handle to get the result, and iterates with ``async for``.

    Args:
        run: The run that the handle represents.

    Example:
        >>> from flowpregel.func import entrypoint
        >>> from flowpregel.runtime import get_runtime
        >>> @entrypoint()
        ... def flow(number: int) -> int:
        ...     get_runtime().stream_writer("half done")
        ...     return 2 * number
        >>> [payload for mode, payload in flow.start(4) if mode == "custom"]
        ['half done']
    """

    def __init__(self, run: GraphRun) -> None:
        self.id: str | None = run.config.thread_id
        """The id of the run."""
        self._run = run
        run.form.started_at = users_line()
        self._cell_view: CellView | None = cell_view_of(run)
        self._future: Future[R] = Future()
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._on_event: Callable[[], object] = nothing
        """The callback that wakes the coroutine that waits for an event. It does
        nothing if none waits.
        """
        threading.Thread(
            target=self._work, name=f"flowpregel-{self.id}", daemon=True
        ).start()

    @property
    def status(self) -> Literal["running", "waiting", "done", "failed"]:
        """The status of the run. A ``waiting`` run has stopped at a question, until
        `Flow.answer` resumes it.
        """
        if not self._future.done():
            return "running"
        error = self._future.exception()
        if isinstance(error, UnansweredError):
            return "waiting"
        return "done" if error is None else "failed"

    def result(self, timeout: float | None = None) -> R:
        """Wait until the run has ended, and return its result.

        Args:
            timeout: The maximum number of seconds to wait, or None for no limit.

        Raises:
            TimeoutError: The run has not ended by then.
            Exception: The exception that `Flow.run` would raise.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint
            >>> @entrypoint(checkpointer=InMemorySaver())
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.start(4, id="1").result()
            8
        """
        with UsersFrames(), on_sigterm(self._run.end):
            return self._future.result(timeout)

    def cancel(self) -> None:
        """Ask the run to stop at once. Finished work is kept, and the run can be
        resumed later.
        """
        self._run.cancel()

    def end(self, reason: str = "it was asked to end") -> None:
        """Ask the run to stop, and give its running calls the grace period, as
        ``stop_after`` does.

        Args:
            reason: The reason, for the message of `RunStopped`.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint, signal
            >>> @entrypoint(checkpointer=InMemorySaver())
            ... def order(number: int) -> str:
            ...     return "sent" if signal("approved").result() else "refused"
            >>> handle = order.start(7, id="order-7")
            >>> handle.end("the machine shuts down")
            >>> handle.result()
            Traceback (most recent call last):
            flowpregel.errors.RunStopped: ...
        """
        self._run.end(reason)

    def add_done_callback(self, function: Callable[[RunHandle[R]], object]) -> None:
        """Call *function* with this handle when the run has ended, on the OS thread of
        the run; at once if the run has ended already.

        Args:
            function: A function of one argument. Its result is ignored.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint
            >>> @entrypoint(checkpointer=InMemorySaver())
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> handle = double.start(4, id="1")
            >>> handle.result()
            8
            >>> handle.add_done_callback(lambda handle: print(handle.status))
            done
        """
        self._future.add_done_callback(lambda _: function(self))

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield each event of the run once, as it arrives, until the run has ended."""
        event = self._events.get()
        while event is not None:
            yield event
            event = self._events.get()
        self._events.put(None)

    def __await__(self) -> Generator[Any, Any, R]:
        """Return the result as `result` does, without blocking the event loop."""
        return self._ended().__await__()

    async def _ended(self) -> R:
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        # The future is shielded, so that the cancellation of a waiting coroutine does
        # not stop the run. Only `cancel` does.
        with UsersFrames(), on_sigterm(self._run.end):
            return await asyncio.shield(asyncio.wrap_future(self._future))

    async def __aiter__(self) -> AsyncIterator[tuple[str, Any]]:
        """Yield the events as `__iter__` does, without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        loop = asyncio.get_running_loop()
        while True:
            came = asyncio.Event()
            self._on_event = partial(_call_soon, loop, came.set)
            try:
                event = self._events.get_nowait()
            except Empty:
                await came.wait()
                continue
            if event is None:
                self._events.put(None)
                return
            yield event

    def _put(self, event: Any) -> None:
        """Add an event of the run, and wake the coroutine that waits for one."""
        self._events.put(event)
        self._on_event()

    def __repr__(self) -> str:
        name = self._run.definition.name
        run = "run" if self.id is None else f"run {self.id!r}"
        return f"<{run} of {name}, {self.status}>"

    def _ipython_display_(self) -> None:
        """Show the progress of the run below the notebook cell, and update it until the
        run has ended.

        Raises:
            NotImplementedError: The run has ended, or the program does not run in a
                notebook. IPython then shows the handle's HTML or its repr.
        """
        if self._cell_view is None or self._future.done():
            raise NotImplementedError
        self._cell_view.display(self, self._future)

    def _repr_html_(self) -> str | None:
        """Return the current page of the run for a notebook, or None if the run is not
        stored.
        """
        for report_html in load_plugins(NOTEBOOKS):
            report: str | None = report_html(self._run.saver, self.id)
            if report is not None:
                return report
        return None

    def _work(self) -> None:
        try:
            for event in self._run.items():
                self._put(event)
            self._future.set_result(result_of(self._run))
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._future.set_exception(error)
        finally:
            self._put(None)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Make an event loop call *callback*, unless the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


def result_of(run: GraphRun) -> Any:
    """Return the result of a run.

    Raises:
        UnansweredError: The run waits for an answer.
    """
    result = run.engine.result
    assert result is not None
    if result.interrupts:
        flow: Any = run.graph
        error = UnansweredError(
            str(run.config.thread_id),
            result.interrupts,
            flow.expression,
            getattr(run.saver, "location", ""),
        )
        add_hint(run, error)
        raise error
    return result.values
