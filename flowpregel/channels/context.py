"""`Context`, which gives nodes the value of a context manager."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from inspect import isasyncgenfunction, unwrap
from typing import Any, Generic, NoReturn, Self, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from flowpregel.channels.base import MISSING, BaseChannel
from flowpregel.errors import ConfigurationError, InvalidUpdateError

Value = TypeVar("Value")
ContextManager: TypeAlias = (
    AbstractContextManager[Value] | AbstractAsyncContextManager[Value]
)


class Context(BaseChannel[Value, NoReturn]):
    """Gives nodes the value of a context manager: a connection, a client, a model.

    The context is entered at the first read, once per run in each process that reads
    the channel. `close` exits the context when the run ends, whether the run succeeds
    or fails. The value is never part of a checkpoint, and the channel cannot be
    written.

    Which channels share a context:

    * `from_checkpoint` returns a channel with a new context, which is not entered yet.
      A run calls it once, so runs do not share contexts.
    * `copy` returns a channel with the same context, entered or not, because a run's
      channels may be copied for reading.
    * A channel that is unpickled in another process has a context of that process,
      created by the same factory. All pickles of one run's channel share this context
      in a process, as long as one of the channels exists. The process that unpickles
      the channel closes it: a worker process when the run ends, another executor's
      process after each task.

    The context may be exited on a different OS thread from the one that entered it. An
    async context manager is entered and exited on the event loop of an async run, and
    only async nodes can read the value.

    Args:
        factory: A class or function that returns a context manager, such as one
            made by ``contextlib.contextmanager`` or ``asynccontextmanager``. It
            must be picklable for nodes that run in worker processes.
        typ: The type of the value.

    Raises:
        ConfigurationError: *factory* cannot be called.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> channel = Context(TemporaryDirectory)
        >>> folder = channel.get()
        >>> channel.get() == folder
        True
        >>> channel.close()
    """

    reacts_to_silence = False
    is_tracked = False

    def __init__(
        self, factory: Callable[[], ContextManager[Value]], typ: Any = None
    ) -> None:
        if not callable(factory):
            raise ConfigurationError(
                "a Context takes a function or class that makes a context manager, "
                f"not {factory!r}"
            )
        super().__init__(Any if typ is None else typ)
        self.held: _SharedContext[Value] = _shared(os.urandom(16), factory)

    @property
    def factory(self) -> Callable[[], ContextManager[Value]]:
        """The function that creates the context manager."""
        return self.held.factory

    def update(self, values: Sequence[NoReturn]) -> bool:
        """Raise an error if there is a write.

        Raises:
            InvalidUpdateError: There is a write.
        """
        if values:
            raise InvalidUpdateError(
                f"channel {self.key!r} is a Context and can only be read; "
                "write to another channel instead"
            )
        return False

    def get(self) -> Value:
        """Return the context's value, and enter the context first if necessary.

        Raises:
            EmptyChannelError: The context was closed.
            ConfigurationError: The factory did not return a context manager.
            Exception: The exception of the factory or of ``__enter__``, with a note
                that names the channel. The next `get` tries again.
        """
        held = self.held
        with held.lock:
            if held.closed:
                raise self._empty()
            if held.manager is None:
                try:
                    manager = _made_by(held.factory)
                    held.value = manager.__enter__()
                except BaseException as error:
                    error.add_note(
                        f"raised on entering the Context channel {self.key!r}"
                    )
                    raise
                held.manager = manager
            return held.value  # type: ignore[return-value]

    @property
    def is_async(self) -> bool:
        """True if the factory creates async context managers."""
        return isasyncgenfunction(unwrap(self.factory)) or _is_async(self.factory)

    async def aget(self) -> Value:
        """Return the value of an async context on the running event loop, as `get`
        does.
        """
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        held = self.held
        if held.closed:
            raise self._empty()
        if held.entering is None:
            manager: Any = held.factory()
            held.manager = manager
            held.entering = asyncio.ensure_future(manager.__aenter__())
            loop, held.entered_by = asyncio.get_running_loop(), threading.get_ident()
            held.on_loop = partial(asyncio.run_coroutine_threadsafe, loop=loop)
        try:
            # The future is shielded, because other asyncio tasks may wait for it too,
            # and must not be cancelled together with this one.
            return await asyncio.shield(held.entering)
        except Exception as error:
            held.manager = held.entering = None
            error.add_note(f"raised on entering the Context channel {self.key!r}")
            raise

    def is_available(self) -> bool:
        """Return whether the channel can be read, without entering the context."""
        return not self.held.closed

    def close(self, error: BaseException | None = None) -> None:
        """Exit the context if it was entered. Afterwards the channel cannot be read.

        The method may be called again. If the context manager suppresses the error, the
        run still fails with it.

        Args:
            error: The error that ended the run, or None without an error.

        Raises:
            Exception: The exception of ``__exit__``, with a note that names the
                channel.
        """
        held = self.held
        with held.lock:
            manager, held.manager, held.value = held.manager, None, None
            held.closed = True
            try:
                if manager is not None:
                    kind = None if error is None else type(error)
                    trace = getattr(error, "__traceback__", None)
                    if held.on_loop is None:
                        manager.__exit__(kind, error, trace)
                        return
                    leaving = held.on_loop(
                        _left(held.entering, manager, (kind, error, trace))
                    )
                    if held.entered_by != threading.get_ident():
                        leaving.result()
            except BaseException as raised:
                raised.add_note(f"raised on leaving the Context channel {self.key!r}")
                raise

    def checkpoint(self) -> Any:
        """Return `MISSING`, so that the value is not stored."""
        return MISSING

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel with a new context, which is not entered yet."""
        new = type(self)(self.factory, self.typ)
        new.key = self.key
        return new

    def copy(self) -> Self:
        """Return a channel that shares this one's context."""
        return copy(self)

    def identity(self) -> tuple[Any, ...]:
        """Return the parts in which two declarations of the channel must be equal, the
        type first.
        """
        return (self.typ, self.factory)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.typ, self.key, self.held.token, self.factory

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        typ, key, token, factory = state
        self.typ = typ
        self.key = key
        self.held = _shared(token, factory)


def contexts_in(node_input: Any) -> list[Context[Any]]:
    """Return the `Context` channels in a node's input, which is a single value or a
    dict of values.
    """
    if not isinstance(node_input, dict):
        return [node_input] if isinstance(node_input, Context) else []
    return [value for value in node_input.values() if isinstance(value, Context)]


@dataclass(eq=False)
class _SharedContext(Generic[Value]):
    """One context in one process, which several channels may share."""

    token: bytes
    factory: Callable[[], ContextManager[Value]]
    lock: AbstractContextManager[Any] = field(default_factory=threading.RLock)
    """The lock for entering and exiting. It is reentrant, so that a factory that reads
    its own channel gets a RecursionError instead of a deadlock.
    """
    manager: Any = None
    value: Value | None = None
    closed: bool = False
    entering: Any = None
    """The asyncio future of the value that an async context gives when it is entered.
    """
    on_loop: Any = None
    """A function that runs a coroutine on the event loop on which the context was
    entered.
    """
    entered_by: int = 0
    """The identifier of the OS thread of the event loop on which the context was
    entered.
    """


_contexts: WeakValueDictionary[bytes, _SharedContext[Any]] = WeakValueDictionary()
"""The contexts of this process by token. A token is an id of the context, which each
pickle of a run's channel contains. So channels that are unpickled with the same token
share one context.
"""

_contexts_lock = threading.Lock()


def _shared(token: bytes, factory: Callable[[], Any]) -> _SharedContext[Any]:
    with _contexts_lock:
        return _contexts.setdefault(token, _SharedContext(token, factory))


def _made_by(factory: Callable[[], Any]) -> Any:
    manager = factory()
    if _is_async(manager):
        raise ConfigurationError(
            f"{factory!r} makes an async context manager, which only async nodes of "
            "an async run can read (pass the Context the class, or the function that "
            "makes it); use a plain one, or enter it inside the node"
        )
    if not hasattr(manager, "__enter__"):
        raise ConfigurationError(
            f"{factory!r} returned {manager!r}, which is not a context manager; return "
            "an object with __enter__ and __exit__, or use contextlib.contextmanager"
        )
    return manager


def _is_async(manager: Any) -> bool:
    if hasattr(manager, "__enter__"):
        return False
    return hasattr(manager, "__aenter__")


async def _left(entering: Any, manager: Any, how: tuple[Any, ...]) -> None:
    """Exit an async context after waiting until it has been entered."""
    await entering
    await manager.__aexit__(*how)
