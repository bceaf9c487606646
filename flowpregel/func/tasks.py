"""`TaskFunction`: a function whose calls are recorded, run somewhere else, and are
waited for.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial, update_wrapper
from itertools import islice
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from flowpregel._code.digest import CodeDigest, KeptDigest
from flowpregel._code.sources import UNSEEN, note_code
from flowpregel._code.values import cells_of
from flowpregel._core.commands import (
    CallTarget,
    call_target_of,
    is_generator_function,
    name_of,
)
from flowpregel._core.digest import arguments_digest, space_of
from flowpregel._core.files import with_files
from flowpregel._core.ids import CallKey
from flowpregel._core.program import names
from flowpregel._core.records import Arguments, Node
from flowpregel._core.spelling import Spelled, Spelling, spelling_of
from flowpregel._text import described, no_such_attribute
from flowpregel.context import Scope, current
from flowpregel.errors import ConfigurationError
from flowpregel.executors.calls import CallFuture as TaskFuture
from flowpregel.executors.calls import FutureInArgument, futures_in, with_results
from flowpregel.executors.misplaced import misplaced_future
from flowpregel.func import mapping
from flowpregel.func.closures import NodeSnapshots
from flowpregel.func.entry import entrypoint
from flowpregel.func.flow import run_identity_of
from flowpregel.func.mapping import ItemFuture, MadeCall, ResultStream
from flowpregel.func.options import (
    NO_RESOURCES,
    TaskKeywords,
    TaskOptions,
    checked_options,
    is_task,
)
from flowpregel.func.shared_nodes import SharedNodes

A = TypeVar("A")
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
MapFuture: TypeAlias = TaskFuture[R] | ItemFuture[R]


class TaskFunction(Generic[P, R]):
    """A function that `task` made a task of. Called inside a run, it returns a future.

    Args:
        func: The plain function.
        options: How its calls are made.
    """

    def __init__(self, func: Callable[P, Any], options: TaskOptions) -> None:
        if not callable(func):
            raise ConfigurationError(f"task() takes a function, not {func!r}")
        if is_task(func):
            name = name_of(func)
            raise ConfigurationError(
                f"task() takes a function, and {name!r} is a task already: write "
                f"{name}.with_options(...) to call it with other options"
            )
        if is_generator_function(func):
            raise ConfigurationError(
                f"task {name_of(func)!r} is a generator, and what it yields could not "
                "be recorded: return a list, or give the stream its parts with "
                "get_stream_writer()"
            )
        self.func = func
        """The plain function: calling it records nothing and needs no run."""
        self.options = options
        self.name = options.name or name_of(func)
        """What streams and messages call it."""
        self._redacted = mapping.redacted_places(func, names(options.redact), self.name)
        self._bound: tuple[Any, ...] = ()
        self._code = KeptDigest(func, _note_digest)
        self._digested: tuple[Any, KeptDigest] | None = None
        """What its last call ran, if it is a closure, and the digest of that one's
        code.
        """
        self._past_codes: dict[str, CodeDigest] = {}
        """The digests of the code of its latest calls, if what it closes over has
        changed.
        """
        self._shared = SharedNodes(func, options.version)
        self._chunked: tuple[Node, Node] | None = None
        """The node of its last call, and that of a chunk of such calls."""
        update_wrapper(self, func, assigned=_COPIED, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[R]:
        """Start a call and return its future at once.

        A future among the arguments, or directly in a list, tuple or dict among them,
        stands for its result: the call is made when that is there, and fails if that
        fails.

        Raises:
            RuntimeError: Called outside of a run.
        """
        scope = current.get() or self._outside()
        given: tuple[Any, ...] = (*self._bound, *args) if self._bound else args
        awaited = [
            each for one in (*given, *kwargs.values()) for each in futures_in(one)
        ]
        made: TaskFuture[R]
        if awaited:
            make = partial(self._call_late, scope, self._node_now(scope), given, kwargs)
            made = mapping.call_later(scope, awaited, make)
        else:
            node = self._node_now(scope)
            asked = self._asked(node, given, kwargs) if scope.job.compares else None
            made = scope.ends.call(node, Arguments(given, kwargs), asked)
        return made

    def _call_late(
        self, scope: Scope, node: Node, args: Any, kwargs: Mapping[str, Any], reply: Any
    ) -> None:
        """Start a call that has waited for others; *reply* is its future."""
        args = tuple(map(with_results, args))
        kwargs = {name: with_results(each) for name, each in kwargs.items()}
        asked = (
            self._asked(node, args, kwargs, is_placed=False)
            if scope.job.compares
            else None
        )
        scope.ends.call(node, Arguments(args, kwargs), asked, reply)

    def _asked(
        self, node: Node, args: Any, kwargs: Any, *, is_placed: bool = True
    ) -> CallKey:
        """Return what is compared with the record of a call."""
        text = described(self.name, args, kwargs, self.node.redacted)
        digest, files = with_files(
            lambda: self._digest(*self._spelling.of(args, kwargs))
        )
        earlier = self._earlier_digests(args, kwargs) if node.adopts else ()
        code = self._code_of(node)
        unseen = UNSEEN.get(code, "")
        return CallKey(self.name, digest, code, text, is_placed, files, earlier, unseen)

    def _earlier_digests(self, args: Any, kwargs: Any) -> tuple[str, ...]:
        """Return the digests that the arguments of a call may have had before the task
        changed.

        Before it became a method they were without its object; before it got a
        decorator without `functools.wraps` they were spelled by the function that this
        one wraps.
        """
        own = args[len(self._bound) :]
        spellings: list[Spelled] = [((*own, *kwargs.values()), {})]
        if self._bound:
            spellings.append(self._spelling.without_first().of(own, kwargs))
        if isinstance(self.func, types.FunctionType):
            wrapped = filter(inspect.isfunction, cells_of(self.func).values())
            spellings += [spelling_of(each).of(own, kwargs) for each in wrapped]
        return tuple(self._digest(*spelling) for spelling in spellings)

    def _outside(self) -> Scope:
        """Say that there is no body that could make a call."""
        raise RuntimeError(
            f"task {self.name!r} was called outside of a run: call it from an "
            "@entrypoint (or a node, or another task) that is invoked, or call the "
            f"plain function with {self.name}.func(...); an OS thread that you start "
            "inside a run needs contextvars.copy_context().run"
        )

    def _digest(self, args: Any, kwargs: Any) -> str:
        try:
            return arguments_digest(
                args, kwargs, f"the arguments of task {self.name!r}"
            )
        except FutureInArgument as error:
            raise (
                misplaced_future(self.name, self.func, args, kwargs) or error
            ) from None

    @overload
    def map(
        self: Callable[Concatenate[A, Q], TaskFuture[R]],
        items: Iterable[A],
        /,
        *more: Iterable[Any],
    ) -> list[TaskFuture[R]]: ...
    @overload
    def map(
        self: Callable[Concatenate[A, Q], TaskFuture[R]],
        items: Iterable[A],
        /,
        *more: Iterable[Any],
        chunksize: int = ...,
        errors: Literal["raise"] = ...,
    ) -> Sequence[MapFuture[R]]: ...
    @overload
    def map(
        self: Callable[Concatenate[A, Q], TaskFuture[R]],
        items: Iterable[A],
        /,
        *more: Iterable[Any],
        chunksize: int = ...,
        errors: Literal["return"],
    ) -> Sequence[MapFuture[R | Exception]]: ...
    def map(
        self, *iterables: Iterable[Any], chunksize: int = 1, errors: str = "raise"
    ) -> Sequence[MapFuture[Any]]:
        """Start a call for each item, and return the futures in the same order.

        Args:
            iterables: One: each item is the only argument of its call. Several,
                of equal length: the n-th items are the arguments of the n-th call.
            chunksize: How many items are one call: sent, recorded, tried again and
                timed out together. An item that fails fails its chunk, with a note that
                names it. For short tasks.
            errors: ``"return"``: the result of a call that failed is its exception.
                Otherwise asking for the result raises that.

        Raises:
            ConfigurationError: *chunksize* is no size, *errors* is something else, or
                chunks are asked for of a task that has a cache policy.

        Example:
            >>> futures = measure.map(["a.py", "b.py"])  # doctest: +SKIP
        """
        mapping.check_iterables("map", iterables)
        mapping.check_map("map", chunksize, errors, self.options.shares)
        futures: list[MapFuture[Any]] = []
        for future, size in self._made(
            mapping.arguments_of(iterables), chunksize, errors
        ):
            futures += (
                [future]
                if size is None
                else [ItemFuture(future, at) for at in range(size)]
            )
        return futures

    @overload
    def imap(
        self: Callable[Concatenate[A, Q], TaskFuture[R]],
        items: Iterable[A],
        /,
        *more: Iterable[Any],
        window: int | None = ...,
        chunksize: int = ...,
        ordered: bool = ...,
        errors: Literal["raise"] = ...,
    ) -> ResultStream[R]: ...
    @overload
    def imap(
        self: Callable[Concatenate[A, Q], TaskFuture[R]],
        items: Iterable[A],
        /,
        *more: Iterable[Any],
        window: int | None = ...,
        chunksize: int = ...,
        ordered: bool = ...,
        errors: Literal["return"],
    ) -> ResultStream[R | Exception]: ...
    def imap(
        self,
        *iterables: Iterable[Any],
        window: int | None = None,
        chunksize: int = 1,
        ordered: bool = True,
        errors: str = "raise",
    ) -> ResultStream[Any]:
        """Make a call for each item as there is room for it, and return a stream of the
        results.

        Items are taken when their calls are made. So neither they nor the results need
        fit into memory: of both there is a window. Iterate with ``for``, in async code
        ``async for``. A loop that is left early leaves the calls of the window, which
        are finished and kept.

        Args:
            iterables: As for `map`. They may be endless.
            window: How many calls (of *chunksize* items each) run, wait to run, or have
                results that were not asked for; None: four for each processor, at least
                16.
            chunksize: How many items are one call, as for `map`.
            ordered: Whether results come in the order of the items; otherwise in that
                in which calls end, which is recorded: a run that goes on sees them in
                the same order.
            errors: ``"return"``: in the place of the result of a call that failed comes
                its exception. Otherwise it is raised, and the stream is over.

        Raises:
            ConfigurationError: As for `map`, or *window* is no size.
            RuntimeError: Called outside of a run.

        Example:
            >>> results = measure.imap(read_lines(), chunksize=1000)  # doctest: +SKIP
            >>> total = sum(results)  # doctest: +SKIP
        """
        window = mapping.WINDOW if window is None else window
        mapping.check_iterables("imap", iterables)
        mapping.check_map("imap", chunksize, errors, self.options.shares, window)
        scope = current.get() or self._outside()
        made = self._made(zip(*iterables, strict=True), chunksize, errors)
        return ResultStream(made, window, scope, None if ordered else self.name)

    def _made(self, items: Iterable[Any], size: int, errors: str) -> Iterator[MadeCall]:
        """Make the calls of a map, each when it is asked for."""
        call: Callable[..., TaskFuture[Any]] = self
        left, first = iter(items), 0
        while chunk := [*islice(left, size)]:
            is_chunk = size > 1
            future = self._call_chunk(first, chunk) if is_chunk else call(*chunk[0])
            future.returns_errors = errors == "return"
            yield future, len(chunk) if is_chunk else None
            first += len(chunk)

    def _call_chunk(
        self, first: int, chunk: Sequence[tuple[Any, ...]]
    ) -> TaskFuture[list[R]]:
        """Make the call of a chunk; *first* is the index of its first item in the
        map.
        """
        scope = current.get() or self._outside()
        items = [(*self._bound, *each) for each in chunk] if self._bound else chunk
        asked, name, node = None, f"{self.name}.map", self._node_now(scope)
        if scope.job.compares:
            text = f"{name}({len(items)} items from {first})"
            # By parameter: the digest of many plain numbers takes hardly longer than
            # that of one.
            columns = tuple(zip(*items, strict=True))
            digest, files = with_files(lambda: self._digest(columns, {}))
            code = self._code_of(node)
            asked = CallKey(
                name, digest, code, text, files=files, unseen=UNSEEN.get(code, "")
            )
        made: TaskFuture[list[R]]
        made = scope.ends.call(
            self._chunk_node(node), Arguments((first, items), {}), asked
        )
        return made

    def with_options(self, **changes: Unpack[TaskKeywords]) -> TaskFunction[P, R]:
        """Return the same task with other options; this one stays as it is.

        Args:
            changes: What `task` takes: the fields of `TaskOptions`.
        """
        return TaskFunction(
            self.func, replace(self.options, **checked_options(changes))
        )

    def clear_cache(self, cache: Any) -> None:
        """Forget the results of this task that *cache* shares."""
        cache.clear([self.cache_namespace])

    async def aclear_cache(self, cache: Any) -> None:
        """`clear_cache`, without blocking the event loop."""
        await cache.aclear([self.cache_namespace])

    @property
    def cache_namespace(self) -> tuple[str, ...]:
        """Where its shared results are kept: named after its function and that one's
        code.
        """
        return space_of("task", (self.func,), self.options.version)

    @cached_property
    def _spelling(self) -> Spelling:
        """How its calls are spelled."""
        return spelling_of(self.func)

    @cached_property
    def node(self) -> Node:
        """What the core runs; calls of a closure have a snapshot of it.

        Where results are shared, the node of each call says.
        """
        callee = call_target_of(self.func, takes_input=False)
        if self._home is not None:
            form = "coroutine" if callee.func is None else "func"
            callee = replace(callee, **{form: _ByName(self)})  # type: ignore[arg-type]
        return self.options.node(
            name=self.name,
            steps=(callee,),
            home=run_identity_of(self.func, name_of(self.func), ()).flow,
            redacted=self._redacted,
        )

    @cached_property
    def _closure(self) -> NodeSnapshots | None:
        """Snapshots of its function, if that closes over anything that the body may
        bind anew.
        """
        (callee,) = self.node.steps
        if not getattr(callee.func or callee.coroutine, "__closure__", None):
            return None
        return NodeSnapshots(self.node)

    def _node_now(self, scope: Scope) -> Node:
        """Return what the core runs for a call that is made now."""
        node = self.node if self._closure is None else self._closure.take()
        if node.cache is None:
            return node
        return self._shared.at(
            node, scope, None if self._closure is None else _called_by(node)
        )

    def _chunk_node(self, node: Node) -> Node:
        """Return what the core runs for a chunk of calls of *node*."""
        chunked = self._chunked
        if chunked is None or chunked[0] is not node:
            self._chunked = chunked = node, self._chunk_node_of(node)
        return chunked[1]

    def _chunk_node_of(self, node: Node) -> Node:
        (callee,) = node.steps
        chunked = mapping.ChunkedCall(callee, self._redacted)
        func, coroutine = (
            (chunked, None) if callee.func else (None, chunked.in_coroutine)
        )
        step = CallTarget(func, coroutine, (), callee.name)
        # Its arguments are the index of the first item, and the items.
        redacted = frozenset({1} if self._redacted else ())
        return replace(node, steps=(step,), home=f"{node.home}.map", redacted=redacted)

    def call_here(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Make one call in this process, outside of a run, and return its result.

        It is made as in a run, but nothing is kept, shared or tried again; the tasks
        that it calls run in this process too. What ``flowpregel debug`` does.

        Raises:
            Exception: What the function raised.

        Example:
            >>> measure.call_here("a.py")  # doctest: +SKIP
        """
        plain: Any = {"executor": "inline", "retry_policy": None, "cache_policy": None}
        here = self.with_options(timeout=None, **plain, **NO_RESOURCES)

        @entrypoint(executor="inline")
        def call(_: Any) -> Any:
            return here(*args, **kwargs).result()

        return cast("R", call.run(None))

    @property
    def code(self) -> str:
        """A digest of what its function does, or the version that stands for it."""
        if (version := self.options.version) is not None:
            return f"version {version}"
        return self._code.now().digest

    def _code_of(self, node: Node) -> str:
        """Return the digest of the code that a call of *node* runs: see `code`."""
        if self._closure is None or self.options.version is not None:
            return self.code
        digested = self._digested  # another OS thread may make a call that had to wait
        called = _called_by(node)
        if digested is None or digested[0] is not called:
            self._digested = digested = called, KeptDigest(called, self._note_past)
        return digested[1].now().digest

    def _note_past(self, found: CodeDigest) -> None:
        """Note the digest of a call of a closure."""
        _note_digest(found)
        self._past_codes[found.digest] = found
        if len(self._past_codes) > _MOST_CODES:
            del self._past_codes[next(iter(self._past_codes))]

    def has_code(self, code: str) -> bool:
        """Return whether *code* is the digest of its code now, or was that of a call of
        it here.

        What a closure holds may change from call to call; that is no edit. Another
        value of a global name is one.
        """
        past = self._past_codes.get(code)
        return (past is not None and past.bindings.names_hold()) or code == self.code

    @overload
    def __get__(
        self, instance: None, owner: type[Any] | None = None
    ) -> TaskFunction[P, R]: ...
    @overload
    def __get__(
        self: TaskFunction[Concatenate[A, Q], R],
        instance: A,
        owner: type[Any] | None = None,
    ) -> TaskFunction[Q, R]: ...
    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        """Return the task as a method of *instance*, which is the first argument of its
        calls.
        """
        if instance is None or self._bound:
            return self
        bound = TaskFunction[Any, R](self.func, self.options)
        bound.node, bound._closure = self.node, self._closure
        bound._code, bound._shared = self._code, self._shared
        bound._spelling = self._spelling
        bound._bound = (instance,)
        bound.func = types.MethodType(self.func, instance)
        return bound

    if not TYPE_CHECKING:  # type checkers refuse them by themselves

        def __getattr__(self, name: str) -> NoReturn:
            """Say what to write for what tasks of other libraries have."""
            if name.startswith("_"):
                raise AttributeError(name)
            raise AttributeError(no_such_attribute(self, "task", name, _INSTEAD))

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"

    @property
    def _home(self) -> str | None:
        """The name under which another process finds this very task in its module, if
        it can.
        """
        module = sys.modules.get(self.__module__)
        name: str = getattr(self, "__qualname__", "")
        if module is None or self.__module__ == "__main__" or "<locals>" in name:
            return None
        found: Any = module
        for part in name.split("."):
            # Not getattr: what a descriptor makes of itself is not what is looked for.
            found = inspect.getattr_static(found, part, None)
        if isinstance(found, staticmethod):
            found = found.__func__
        return name if found is self else None

    def __reduce__(self) -> str | tuple[Any, ...]:
        return self._home or (TaskFunction, (self.func, self.options))


def _note_digest(found: CodeDigest) -> None:
    note_code(found.digest, [found])


def _called_by(node: Node) -> Any:
    """Return the function that a call of *node* runs."""
    (callee,) = node.steps
    return callee.func or callee.coroutine


class _ByName:
    """Calls a task's plain function, and is that function after a way to another
    process.

    The function itself cannot be named: its name in its module is the task's.
    """

    __slots__ = ("_task",)

    def __init__(self, task: TaskFunction[Any, Any]) -> None:
        self._task = task

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._task.func(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """The parameters of the function, for messages that name its arguments."""
        return inspect.signature(self._task.func)

    def __reduce__(self) -> tuple[Any, ...]:
        return attrgetter("func"), (self._task,)


_INSTEAD: Final[Mapping[str, str]] = {
    "submit": (
        "a call starts at once: write {name}(...), and .result() where its result is "
        "needed"
    ),
    "delay": (
        "a call starts at once: write {name}(...), and .result() where its result is "
        "needed"
    ),
    "apply_async": (
        "write {name}(...); options are those of {name}.with_options(...)(...)"
    ),
    "apply": "write {name}(...).result()",
    "remote": "write {name}(...)",
    "starmap": "write {name}.map(firsts, seconds): a list for each parameter",
    "map_async": "write {name}.map(items): it returns the futures at once",
    "imap_unordered": "write {name}.imap(items, ordered=False)",
    "run": (
        "write {name}(...).result() in a workflow, or {name}.func(...) outside of one"
    ),
    "invoke": (
        "write {name}(...).result() in a workflow, or {name}.func(...) outside of one"
    ),
    "fn": "its plain function is {name}.func",
}
"""What to write for attributes that tasks of other libraries have."""
_MOST_CODES = 1_000
_COPIED = ("__module__", "__name__", "__qualname__", "__doc__")
