"""`joblib_backend`, which turns the calls that joblib makes, for example for a search
of scikit-learn, into recorded calls of a run.

::

    Parallel(...)(...)                     the run that is kept under the id
    ------------------                     ---------------------------------
    submit(batch)   ---- a call ---->      a worker, or the record
    callback        <--- its future ---    its body only waits for the block to end
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, TypeAlias

from joblib import cpu_count, parallel_config
from joblib.parallel import BatchedCalls, ParallelBackendBase, SequentialBackend

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import TaskCancelled
from flowpregel.func import TaskFuture, digest_of, entrypoint, task

__all__ = ["joblib_backend"]

Callback: TypeAlias = Callable[[Future[Any]], Any]
JoblibCall: TypeAlias = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A function and its arguments, as ``joblib.delayed`` gives them."""

_BOOKKEEPING: Final = ("callback_ctx", "caller")


class JoblibBatch:
    """A batch of joblib's calls, which is recorded as one call. A replay finds it by
    its functions and their arguments.

    Args:
        calls: The calls.
    """

    def __init__(self, calls: Sequence[JoblibCall]) -> None:
        self.calls = calls

    @property
    def name(self) -> str:
        """The name of the function that the batch calls first."""
        function: Any = _without_noise(self.calls[0])[0]
        while isinstance(function, partial) and not hasattr(function, "__name__"):
            function = function.func
        return getattr(function, "__name__", type(function).__name__)

    def __flowpregel_digest__(self) -> str:
        """Return a digest of the functions, with their code, and of the arguments."""
        calls = [_without_noise(call) for call in self.calls]
        return digest_of(calls)


def _without_noise(call: JoblibCall) -> JoblibCall:
    """Return *call* without parts that are different each time that scikit-learn makes
    the same call.

    scikit-learn wraps the function together with the current warning filters, and
    passes callbacks that contain the time and random numbers.
    """
    function, args, kwargs = call
    if not type(function).__module__.startswith("sklearn."):
        return call
    kwargs = {name: value for name, value in kwargs.items() if name not in _BOOKKEEPING}
    return function.function, args, kwargs


@task
def run_batch(batch: JoblibBatch) -> list[Any]:
    """Make the calls of *batch* one after the other, in a worker."""
    results: list[Any] = BatchedCalls(
        batch.calls, (SequentialBackend(nesting_level=1), None)
    )()
    return results


# joblib has no type hints, so mypy takes its class for Any.
class _RecordingBackend(ParallelBackendBase):  # type: ignore[misc]
    """A backend of joblib that makes each batch a call of a run.

    Args:
        store: The saver of the run, or the path or URL of a store.
        id: The id of the run.
    """

    supports_retrieve_callback = True

    def __init__(
        self, store: BaseCheckpointSaver | str | os.PathLike[str], id: str
    ) -> None:
        super().__init__(nesting_level=0)
        self._store = store
        self._id = id
        self._is_ready = threading.Event()
        self._ended: Future[None] = Future()
        """A future that is done when the run has ended. If the run failed, it has the
        error.
        """
        self._closed: Future[None] | None = None
        """A future that is done when the ``with`` block has ended, so that the body of
        the run must end. None before the body has started.
        """
        self._context: Context | None = None
        """The `contextvars` context of the body, in which calls are made."""
        # joblib's callbacks are called on a separate OS thread, not on that of the run:
        # a callback makes the next call, and may have to wait, which would block the
        # run.
        self._callbacks = ThreadPoolExecutor(1, thread_name_prefix="flowpregel-joblib")

    def open(self) -> None:
        """Start or resume the run.

        Raises:
            Exception: The run cannot be started.
        """
        self._ended.add_done_callback(lambda _: self._is_ready.set())
        threading.Thread(
            target=self._run, name="flowpregel-joblib-run", daemon=True
        ).start()
        self._is_ready.wait()
        if self._ended.done():
            self._ended.result()

    def close(self, error: BaseException | None) -> None:
        """End the run. With an *error*, the run fails, and can be resumed later."""
        assert self._closed is not None
        # `_closed` is the future for which the body of the workflow waits. If the run
        # has failed, it has a result or an error already.
        with suppress(InvalidStateError):
            if error is None:
                self._closed.set_result(None)
            elif isinstance(error, Exception):
                self._closed.set_exception(error)
            else:
                # A KeyboardInterrupt or a SystemExit must not reach the event loop of
                # the body, so the body gets another error.
                self._closed.set_exception(
                    TaskCancelled(f"the block ended with {error!r}")
                )
        failure = self._ended.exception()
        self._callbacks.shutdown()
        if failure is not None and error is None:
            raise failure

    def _run(self) -> None:
        # joblib makes the calls of the body from several OS threads, in no fixed order.
        # So the body is async: an async body may make its calls in another order when
        # it runs again, whereas in a sync body this may be an error.
        @entrypoint(checkpointer=self._store)
        async def joblib(_: str) -> None:
            self._context = copy_context()
            self._closed = Future()
            self._is_ready.set()
            await asyncio.wrap_future(self._closed)

        try:
            # If an earlier program has finished the run with the argument "first",
            # `run` returns its stored result at once, and does not call the body. With
            # the argument "again" the body runs, so that this program can make more
            # calls.
            for argument in ("first", "again"):
                if self._closed is None:
                    joblib.run(argument, id=self._id, adopt=True, on_conflict="raise")
            self._ended.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            self._ended.set_exception(error)

    # ------------------------------------------------------------ called by joblib

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of calls that joblib submits at once.

        The number of workers decides how many of them run at the same time.
        """
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or n_jobs < 0:
            return max(int(cpu_count()) + 1 + (n_jobs or -1), 1)
        return n_jobs

    def submit(self, func: Any, callback: Callback) -> TaskFuture[list[Any]]:
        """Make a call of a batch, and return its future."""
        if self._ended.done():
            self._ended.result()
        assert self._context is not None
        batch = JoblibBatch(func.items)
        called = run_batch.with_options(name=batch.name)
        future = self._context.copy().run(called, batch)
        future.add_done_callback(lambda done: self._callbacks.submit(callback, done))
        return future

    def retrieve_result_callback(self, out: TaskFuture[list[Any]]) -> list[Any]:
        """Return the results of a batch's calls, or raise the error of the first call
        that failed.
        """
        return out.result()


@contextmanager
def joblib_backend(
    store: BaseCheckpointSaver | str | os.PathLike[str], id: str
) -> Iterator[_RecordingBackend]:
    """Run joblib's calls inside the ``with`` block in flowpregel's worker processes,
    and record them.

    These are the calls of ``Parallel`` itself and of libraries that use it, such as
    scikit-learn. A program that was killed, and is run again, makes only those calls
    that had not ended. A call is known by its function, the function's code and the
    arguments. The extra ``joblib`` is required.

    Args:
        store: The store of the results: the path of a folder, or a saver.
        id: The name of the work in the store.

    Raises:
        ThreadBusyError: Another process is at work under this id.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from joblib import Parallel, delayed
        >>> with TemporaryDirectory() as folder:
        ...     with joblib_backend(folder, id="search-1"):
        ...         Parallel()(delayed(pow)(number, 2) for number in range(3))
        [0, 1, 4]
    """
    backend = _RecordingBackend(store, id)
    backend.open()
    error: BaseException | None = None
    try:
        with parallel_config(backend=backend, n_jobs=-1):
            yield backend
    except BaseException as raised:
        error = raised
        raise
    finally:
        backend.close(error)
