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

    The context is entered when it is first read, once a run in each process
    that reads it, and left by `close` when the run ends, however it ends. It is
    never part of a checkpoint, and it cannot be written.

    Who holds which context:

    * `from_checkpoint` gives a channel with a context of its own, not yet
      entered: a run calls it once, so that runs do not share.
    * `copy` gives a channel with the same context, entered or not: a run's
      channels may be copied for reading.
    * Unpickled in another process it is a context of that process, made by the
      same factory; all pickles of a run share it, as long as one of
      them lives. The process that unpickles it closes it: a worker process when the run
      ends, another executor's process after each task.

    It may be left from another OS thread than the one that entered it. An async
    context manager is entered and left on the event loop of an async run, for its
    async nodes alone.

    Args:
        factory: A class or function that returns a context manager, such as one
            made by ``contextlib.contextmanager`` or ``asynccontextmanager``. It
            needs to be picklable for nodes that run in worker processes.
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
        """The function that makes the context manager."""
        return self.held.factory

    def update(self, values: Sequence[NoReturn]) -> bool:
        """Refuse any write.

        Raises:
            InvalidUpdateError: There is one.
        """
        if values:
            raise InvalidUpdateError(
                f"channel {self.key!r} is a Context and can only be read; "
                "write to another channel instead"
            )
        return False

    def get(self) -> Value:
        """Return the context's value; enter the context if that is not done yet.

        Raises:
            EmptyChannelError: The context was closed.
            ConfigurationError: The factory gave no context manager.
            Exception: What the factory or its ``__enter__`` raised, with a note
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
        """Whether it makes async context managers."""
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
            # Others may wait for it too.
            return await asyncio.shield(held.entering)
        except Exception as error:
            held.manager = held.entering = None
            error.add_note(f"raised on entering the Context channel {self.key!r}")
            raise

    def is_available(self) -> bool:
        """Return whether it can be read; does not enter the context."""
        return not self.held.closed

    def close(self, error: BaseException | None = None) -> None:
        """Leave the context, if it was entered; afterwards it cannot be read.

        May be called again. Whether the context manager wants to swallow the
        error makes no difference to the run.

        Args:
            error: What ended the run; None if nothing went wrong.

        Raises:
            Exception: What ``__exit__`` raised, with a note that names the
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
        """Return `MISSING`, always."""
        return MISSING

    def from_checkpoint(self, saved: Any) -> Self:
        """Return a new channel with a context of its own, not yet entered."""
        new = type(self)(self.factory, self.typ)
        new.key = self.key
        return new

    def copy(self) -> Self:
        """Return a channel that shares this one's context."""
        return copy(self)

    def identity(self) -> tuple[Any, ...]:
        """Return what makes two declarations the same, the type of the value first."""
        return (self.typ, self.factory)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.typ, self.key, self.held.token, self.factory

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.typ, self.key, token, factory = state
        self.held = _shared(token, factory)


def contexts_in(node_input: Any) -> list[Context[Any]]:
    """Return the `Context` channels in a node's input: it is one, or is a dict of
    values.
    """
    if not isinstance(node_input, dict):
        return [node_input] if isinstance(node_input, Context) else []
    return [value for value in node_input.values() if isinstance(value, Context)]


@dataclass(eq=False)
class _SharedContext(Generic[Value]):
    """One context in one process, shared by the channels that stand for it."""

    token: bytes
    factory: Callable[[], ContextManager[Value]]
    lock: AbstractContextManager[Any] = field(default_factory=threading.RLock)
    """Reentrant: a factory that reads its own channel gets a RecursionError, not a
    deadlock.
    """
    manager: Any = None
    value: Value | None = None
    closed: bool = False
    entering: Any = None
    """The future of the value of an async context."""
    on_loop: Any = None
    """Has a coroutine run on the event loop that it was entered on."""
    entered_by: int = 0
    """The OS thread of that loop."""


_contexts: WeakValueDictionary[bytes, _SharedContext[Any]] = WeakValueDictionary()
"""This process's contexts by token: two pickles of one run's channel meet here."""

_contexts_lock = threading.Lock()


def _shared(token: bytes, factory: Callable[[], Any]) -> _SharedContext[Any]:
    with _contexts_lock:
        return _contexts.setdefault(token, _SharedContext(token, factory))


def _made_by(factory: Callable[[], Any]) -> Any:
    manager = factory()
    if _is_async(manager):
        raise ConfigurationError(
            f"{factory!r} makes an async context manager, and only async nodes of an "
            "async run can read that (give the Context the class, or the function "
            "that makes it); use a plain one, or enter it inside the node"
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
    """Leave an async context, once it is entered."""
    await entering
    await manager.__aexit__(*how)
