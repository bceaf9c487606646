"""`TaskFunction`, a function whose calls return futures, are recorded, and may run in
other processes.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial, update_wrapper
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
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
    call_target_of,
    is_generator_function,
    name_of,
)
from flowpregel._core.files import with_files
from flowpregel._core.ids import CallKey
from flowpregel._core.program import names
from flowpregel._core.records import Arguments, Node
from flowpregel._core.spelling import Spelled, Spelling, spelling_of
from flowpregel._pickling.digest import arguments_digest, space_of
from flowpregel._pickling.sent_modules import is_sent_by_value
from flowpregel._text import described, no_such_attribute
from flowpregel.context import Scope, current
from flowpregel.errors import ConfigurationError
from flowpregel.executors.calls import CallFuture as TaskFuture
from flowpregel.executors.calls import (
    FutureInArgument,
    futures_in,
    with_results,
    with_sources_of,
)
from flowpregel.executors.misplaced import misplaced_future
from flowpregel.executors.shared import late_arguments
from flowpregel.func import mapping
from flowpregel.func.advice import TASK_ADVICE
from flowpregel.func.by_name import ByName
from flowpregel.func.closures import NodeSnapshots, called_by
from flowpregel.func.entry import entrypoint
from flowpregel.func.flow import Flow, run_identity_of
from flowpregel.func.mapping import ItemFuture, MappedCall, ResultStream
from flowpregel.func.options import (
    DEFAULT_STORE,
    SINGLE_CALL,
    TaskKeywords,
    TaskOptions,
    checked_options,
    is_task,
)
from flowpregel.func.shared_nodes import SharedNodes
from flowpregel.func.single_call import (
    Store,
    TaskRunMethod,
    call_parameters_of,
    flow_of_call,
    run_of_call,
)
from flowpregel.pregel.result_caches import cache_of_value

A = TypeVar("A")
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
MapFuture: TypeAlias = TaskFuture[R] | ItemFuture[R]


class TaskFunction(Generic[P, R]):
    """A task that `task` made from a function. A call inside a run returns a future.

    Args:
        func: The user's function, which a call runs.
        options: The options of the task.

    Example:
        >>> from flowpregel.func import entrypoint, task
        >>> @task(executor="inline")
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> @entrypoint()
        ... def flow(number: int) -> int:
        ...     return double(number).result()
        >>> flow.run(4)
        8
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
                f"task {name_of(func)!r} is a generator, whose items cannot be "
                "recorded: return a list, or send the items to the stream with "
                "get_stream_writer()"
            )
        self.func = func
        """The plain function. A call of it is not recorded and needs no run."""
        self.options = options
        self.name: str = options.name or name_of(func)
        """The name of the task in streams and messages."""
        self._redacted = mapping.redacted_positions(
            func, names(options.redact), self.name
        )
        self._bound: tuple[Any, ...] = ()
        self._unbound: TaskFunction[Any, R] = self
        self._code = KeptDigest(func, _note_digest)
        self._digested: tuple[Any, KeptDigest] | None = None
        """The function that the last call ran (a copy if the task is a closure), and
        the digest of the function's code.
        """
        self._past_codes: dict[str, CodeDigest] = {}
        """The code digests of a closure's past calls, by their hexadecimal form."""
        self._shared = SharedNodes(func, options.version)
        self._chunked: tuple[Node, Node] | None = None
        """The node of the task at the last call for a chunk, and the node that was made
        from it to run chunks.
        """
        update_wrapper(self, func, assigned=_COPIED, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[R]:
        """Start a call and return its future at once.

        If an argument is a future, or a list, tuple or dict that directly contains a
        future, the function gets the future's result. The call is made once the future
        is done, and fails if the future fails.

        Raises:
            RuntimeError: Called outside of a run.
        """
        scope = current.get() or self._refuse_outside_run()
        arguments: tuple[Any, ...] = (*self._bound, *args) if self._bound else args
        awaited: list[Any] = []
        for argument in (*arguments, *kwargs.values()):
            awaited.extend(futures_in(argument))
        node = self._node_now(scope)
        future: TaskFuture[R]
        values = Arguments(arguments, kwargs)
        if awaited:
            make = partial(self._call_late, scope, node, values)
            future = mapping.call_later(scope, awaited, make)
        else:
            key = None
            if scope.job.compares:
                key = self._call_key(node, arguments, kwargs)
                key = with_sources_of(key, node, values, scope.run_client.open_calls)
            future = scope.run_client.call(node, values, key)
        future.task_name = self.name if scope.job.compares else ""
        return future

    def _call_late(
        self, scope: Scope, node: Node, values: Arguments, reply: Any
    ) -> None:
        """Start a call now that the futures among its arguments are done. *reply* is
        the future of the call, which the caller already has.
        """
        key = None
        if scope.job.compares:
            args = tuple(map(with_results, values.args))
            kwargs = {name: with_results(item) for name, item in values.kwargs.items()}
            key = self._call_key(node, args, kwargs, is_placed=False)
            key = with_sources_of(key, node, values, scope.run_client.open_calls)
        arguments = late_arguments(node, scope.job.run.executor, values)
        scope.run_client.call(node, arguments, key, reply)

    def _call_key(
        self, node: Node, args: Any, kwargs: Any, *, is_placed: bool = True
    ) -> CallKey:
        """Return the key by which a call is compared with recorded calls."""
        text = described(self.name, args, kwargs, self.node.redacted)
        digest, files = self._spelling.digest_and_files(args, kwargs, self._digest)
        earlier = self._earlier_digests(args, kwargs) if node.adopts else ()
        code = self._code_of(node)
        unseen = UNSEEN.get(code, "")
        return CallKey(self.name, digest, code, text, is_placed, files, earlier, unseen)

    def _earlier_digests(self, args: Any, kwargs: Any) -> tuple[str, ...]:
        """Return the digests that the arguments of a call may have had under a former
        name of the task, to find calls that were recorded then.

        The recorded arguments lack the instance if the task is a method now, and was a
        plain function. They were bound to the signature of the wrapped function if a
        decorator without `functools.wraps` wraps it now.
        """
        unbound = args[len(self._bound) :]
        by_position: Spelled = (*unbound, *kwargs.values()), {}
        spellings = [by_position]
        if self._bound:
            without_instance = self._spelling.without_first()
            spellings.append(without_instance.of(unbound, kwargs))
        if isinstance(self.func, types.FunctionType):
            for value in cells_of(self.func).values():
                if inspect.isfunction(value):
                    spelling = spelling_of(value)
                    spellings.append(spelling.of(unbound, kwargs))
        return tuple(self._digest(*spelled) for spelled in spellings)

    def _refuse_outside_run(self) -> NoReturn:
        """Raise the error for a call outside of a run."""
        raise RuntimeError(
            f"task {self.name!r} was called outside of a run: write "
            f"{self.name}.run(...) to make one call, which an id= records, "
            f"flowpregel.map({self.name}, items) to make many, or "
            f"{self.name}.func(...) to call the plain function; or call it in the body "
            "of an @entrypoint, in a node or in another task; an OS thread that you "
            "start inside a run needs contextvars.copy_context().run"
        )

    def _digest(self, args: Any, kwargs: Any) -> str:
        """Return a digest of the arguments of a call."""
        try:
            return arguments_digest(
                args, kwargs, f"the arguments of task {self.name!r}"
            )
        except FutureInArgument as error:
            misplaced = misplaced_future(self.name, self.func, args, kwargs)
            raise misplaced or error from None

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
            iterables: With one iterable, each item is the only argument of a call. With
                several iterables of equal length, the n-th items are the arguments of
                the n-th call.
            chunksize: The number of items in one call, which are sent, recorded and
                timed out together. Use more than 1 for short tasks. Each item has its
                own result or exception: if an item fails, the others still run, and a
                retry or a resumed run calls the function only for items without a
                result. If a worker dies, its chunk is lost.
            errors: With ``"return"``, the result of a failed call is the exception.
                With ``"raise"``, reading the result raises the exception.

        Raises:
            ConfigurationError: *chunksize* is not a valid size, *errors* has another
                value, or the task has a cache policy and *chunksize* is not 1.

        Example:
            >>> from flowpregel.func import entrypoint, task
            >>> @task(executor="inline")
            ... def add(number: int, other: int) -> int:
            ...     return number + other
            >>> @entrypoint()
            ... def flow(numbers: list[int]) -> list[int]:
            ...     return [future.result() for future in add.map(numbers, numbers)]
            >>> flow.run([1, 2])
            [2, 4]
        """
        mapping.check_iterables("map", iterables)
        mapping.check_map("map", chunksize, errors, self.options.shares)
        items = mapping.arguments_of(iterables)
        futures: list[MapFuture[Any]] = []
        for future, size in self._calls_of_map(items, chunksize, errors):
            if size is None:
                futures.append(future)
            else:
                futures += [ItemFuture(future, position) for position in range(size)]
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
        """Make a call for each item, a window of calls at a time, and return a stream
        of the results.

        An item is taken from the iterables only when its call is made. So neither the
        items nor the results need to fit into memory: only a window of both exists at a
        time. Iterate with ``for``, or in async code with ``async for``. If you leave
        the loop early, the calls of the window still finish and are recorded.

        Args:
            iterables: As for `map`. They may be endless.
            window: The maximum number of calls (of *chunksize* items each) that run,
                wait to run, or have results that were not yet read. The default is four
                for each processor, and at least 16.
            chunksize: The number of items in one call, as for `map`.
            ordered: Whether results come in the order of the items. Otherwise they come
                in the order in which calls end. That order is recorded, so a resumed
                run gets the results in the same order.
            errors: With ``"return"``, the result of a failed call is the exception.
                With ``"raise"``, the exception is raised, and the stream ends.

        Raises:
            ConfigurationError: As for `map`, or *window* is not a valid size.
            RuntimeError: Called outside of a run.

        Example:
            >>> from flowpregel.func import entrypoint, task
            >>> @task(executor="inline")
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> @entrypoint()
            ... def total(count: int) -> int:
            ...     return sum(double.imap(range(count), chunksize=100))
            >>> total.run(1000)
            999000
        """
        window = mapping.WINDOW if window is None else window
        mapping.check_iterables("imap", iterables)
        mapping.check_map("imap", chunksize, errors, self.options.shares, window)
        scope = current.get() or self._refuse_outside_run()
        items = zip(*iterables, strict=True)
        calls = self._calls_of_map(items, chunksize, errors)
        unordered = None if ordered else self.name
        return ResultStream(calls, window, scope, unordered)

    def _calls_of_map(
        self, items: Iterable[Any], size: int, errors: str
    ) -> Iterator[MappedCall]:
        """Make and yield the calls of a map, one each time the iterator advances."""
        returns_errors = errors == "return"
        if size == 1:
            call: Callable[..., TaskFuture[Any]] = self
            for item in items:
                future = call(*item)
                future.returns_errors = returns_errors
                yield future, None
            return
        remaining = iter(items)
        first = 0
        while chunk := list(islice(remaining, size)):
            future = self._call_chunk(first, chunk)
            future.returns_errors = returns_errors
            yield future, len(chunk)
            first += len(chunk)

    def _call_chunk(
        self, first: int, chunk: Sequence[tuple[Any, ...]]
    ) -> TaskFuture[list[R]]:
        """Make one call for a chunk of items; *first* is the index, in the map, of the
        first item of the chunk.
        """
        scope = current.get() or self._refuse_outside_run()
        items: Sequence[tuple[Any, ...]] = chunk
        if self._bound:
            items = [(*self._bound, *item) for item in chunk]
        node = self._node_now(scope)
        key = None
        if scope.job.compares:
            # The values of each parameter are digested together, as one column: the
            # digest of a column of plain numbers takes hardly longer than the digest of
            # a single number.
            columns = tuple(zip(*items, strict=True))
            key = self._chunk_key(node, first, columns)
            values = Arguments(columns, {})
            key = with_sources_of(key, node, values, scope.run_client.open_calls)
        future: TaskFuture[list[R]]
        chunk_node = self._chunk_node(node)
        future = scope.run_client.call(chunk_node, Arguments((first, items), {}), key)
        future.task_name = self.name if scope.job.compares else ""
        return future

    def _chunk_key(
        self, node: Node, first: int, columns: tuple[tuple[Any, ...], ...]
    ) -> CallKey:
        """Return the key by which the call for a chunk is compared with recorded calls.

        Args:
            node: The node of the task.
            first: The index, in the map, of the first item of the chunk.
            columns: For each parameter, a tuple with the values of all items.
        """
        name = f"{self.name}.map"
        digest, files = with_files(lambda: self._digest(columns, {}))
        code = self._code_of(node)
        text = f"{name}({len(columns[0])} items from {first})"
        unseen = UNSEEN.get(code, "")
        return CallKey(name, digest, code, text, files=files, unseen=unseen)

    def with_options(self, **changes: Unpack[TaskKeywords]) -> TaskFunction[P, R]:
        """Return the same task with other options; this task object is not changed.

        Args:
            changes: The fields of `TaskOptions` that `task` takes.

        Raises:
            TypeError: There is no such option.
            ConfigurationError: The value of an option is not allowed.

        Example:
            >>> from flowpregel.func import task
            >>> @task
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.with_options(timeout=60).options.timeout.run_timeout
            60.0
        """
        return TaskFunction(
            self.func, replace(self.options, **checked_options(changes))
        )

    def clear_cache(self, cache: Any) -> None:
        """Delete the results of this task from a cache.

        Args:
            cache: The cache, its path or URL, or the checkpointer in whose store the
                results are.

        Raises:
            ConfigurationError: The value is none of these, or its store has no cache.

        Example:
            >>> from flowpregel.cache.memory import InMemoryCache
            >>> from flowpregel.func import task
            >>> @task(cache=True)
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.clear_cache(InMemoryCache())
        """
        with cache_of_value(cache) as results:
            results.clear([self.cache_namespace])

    async def aclear_cache(self, cache: Any) -> None:
        """`clear_cache`, without blocking the event loop."""
        with cache_of_value(cache) as results:
            await results.aclear([self.cache_namespace])

    @property
    def cache_namespace(self) -> tuple[str, ...]:
        """The namespace of the shared results, made of the function and its code."""
        return space_of("task", (self.func,), self.options.version)

    @cached_property
    def _spelling(self) -> Spelling:
        """The way in which arguments are bound to the task's parameters, so that
        different ways to write the same call have the same digest.
        """
        return spelling_of(self.func)

    @cached_property
    def node(self) -> Node:
        """The node of the task, which the core runs.

        If the task is a closure, each call runs a copy of this node, with the values
        that the closure's variables have then. If the task shares its results between
        runs, each call runs a copy with the cache namespace of these results.
        """
        callee = call_target_of(self.func, takes_input=False)
        if self._home is not None:
            form = "coroutine" if callee.func is None else "func"
            callee = replace(callee, **{form: ByName(self)})  # type: ignore[arg-type]
        return self.options.node(
            name=self.name,
            steps=(callee,),
            home=run_identity_of(self.func, name_of(self.func), ()).flow,
            redacted=self._redacted,
            parameters=mapping.positional_parameters(self.func),
        )

    @cached_property
    def _closure(self) -> NodeSnapshots | None:
        """The object that makes a node for each call if the function is a closure, or
        None if the function is not a closure.
        """
        (callee,) = self.node.steps
        if not getattr(callee.func or callee.coroutine, "__closure__", None):
            return None
        return NodeSnapshots(self.node)

    def _node_now(self, scope: Scope) -> Node:
        """Return the node for a call that is made now, with the present values of the
        closure's variables.
        """
        node = self.node if self._closure is None else self._closure.take()
        if node.cache is None:
            return node
        closure = None if self._closure is None else called_by(node)
        return self._shared.at(node, scope, closure)

    def _chunk_node(self, node: Node) -> Node:
        """Return the node for a chunk of calls of *node*."""
        # `_chunked` is read only once, because another OS thread may replace it.
        chunked = self._chunked
        if chunked is not None:
            known_node, chunk_node = chunked
            if known_node is node:
                return chunk_node
        chunk_node = mapping.chunk_node(node)
        self._chunked = node, chunk_node
        return chunk_node

    @property
    def run(self) -> TaskRunMethod[P, R]:
        """Make one call in a run of its own, without a workflow, and return the result.

        With an id, the call is recorded: the same line starts the call, repeats it
        after a crash, a kill or a failure, and returns the recorded result once the
        call has ended. Inside a run and without an id, the call is a part of that run.

        If a parameter of the function has the name of an option, the argument is for
        the parameter. Use `as_flow` in this case.

        Args:
            args, kwargs: The arguments of the function.
            id: The name of the call in the store. With None, `run` records nothing,
                unless a *store* is passed.
            store: The store of the result: the path of a folder, a URL, or a saver. The
                default is the folder ``.flowpregel`` in the working directory.
            options: The other options are those of `Flow.run`: ``adopt``, ``again``,
                ``on_code_change``, ``on_conflict``, ``stop_after``, ``progress``, ...

        Raises:
            TypeError: The function does not take these arguments.
            ConfigurationError: An *id* is given, but *store* is None.
            StoreError: The store cannot be created or opened.
            InputMismatchError: The id was used with other arguments, and *adopt* is not
                set.
            FlowMismatchError: The id was used for another function.
            UnansweredError: The function asks a question.
            Exception: The exception that the function raised.

        Example:
            >>> from flowpregel import task
            >>> @task
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.run(4, id="four")
            8
        """
        parameters = call_parameters_of(self._unbound, self._bound)
        method: TaskRunMethod[P, R] = run_of_call(self, parameters, "run")
        return method

    @property
    def arun(self) -> TaskRunMethod[P, Coroutine[Any, Any, R]]:
        """`run`, on the running event loop."""
        parameters = call_parameters_of(self._unbound, self._bound)
        method: TaskRunMethod[P, Coroutine[Any, Any, R]] = run_of_call(
            self, parameters, "arun"
        )
        return method

    def as_flow(self, store: Store = DEFAULT_STORE) -> Flow[P, R]:
        """Return the workflow that makes one call of the task, and that `run` runs.

        Use it to start the call without waiting, to answer a question of the function,
        or for other methods of a workflow.

        Args:
            store: The store of the results, as for `run`; None stores nothing.

        Raises:
            StoreError: The store cannot be created or opened.

        Example:
            >>> from flowpregel import task
            >>> @task
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> handle = double.as_flow().start(4, id="four")
            >>> handle.result()
            8
        """
        parameters = call_parameters_of(self._unbound, self._bound)
        flow: Any = flow_of_call(self._unbound, parameters, store)
        return cast("Flow[P, R]", flow)

    def call_here(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Make one call in this process, outside of a run, and return its result.

        The call is made as in a run, but nothing is stored, shared or retried, and the
        tasks that the function calls run in this process too. A notice names arguments
        that the function changes in place (see `Flow.run`). ``flowpregel debug`` uses
        this method.

        Args:
            args, kwargs: The arguments of the function.

        Raises:
            Exception: The exception that the function raised.

        Example:
            >>> from flowpregel.func import task
            >>> @task
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.call_here(4)
            8
        """
        here = self.with_options(**SINGLE_CALL)

        @entrypoint(executor="inline", check_mutations=True)
        def call(_: Any) -> Any:
            return here(*args, **kwargs).result()

        return cast("R", call.run(None))

    @property
    def code(self) -> str:
        """The digest of the function's code, or the task's ``version`` in its place."""
        version = self.options.version
        if version is not None:
            return f"version {version}"
        return self._code.now().digest

    def _code_of(self, node: Node) -> str:
        """Return the digest of the code that a call of *node* runs (see `code`)."""
        if self._closure is None or self.options.version is not None:
            return self.code
        # `_digested` is read only once, because another OS thread may replace it: a
        # call that waited for arguments is made on the OS thread on which the last of
        # them arrives.
        digested = self._digested
        called = called_by(node)
        if digested is not None:
            known_function, known_digest = digested
            if known_function is called:
                return known_digest.now().digest
        digest = KeptDigest(called, self._remember_code)
        self._digested = called, digest
        return digest.now().digest

    def _remember_code(self, code: CodeDigest) -> None:
        """Remember the code digest of a call of a closure, for `has_code`."""
        _note_digest(code)
        self._past_codes[code.digest] = code
        if len(self._past_codes) > _MOST_CODES:
            del self._past_codes[next(iter(self._past_codes))]

    def has_code(self, code: str) -> bool:
        """Return whether *code* is the digest of the task's present code, or of a past
        call in this process.

        The digest includes the values of closure variables, which may differ between
        calls without an edit of the code. So the digests of past calls are accepted
        too, unless a global name in the code refers to a different object now.

        Example:
            >>> from flowpregel import task
            >>> @task
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.has_code(double.code), double.has_code("of another version")
            (True, False)
        """
        past = self._past_codes.get(code)
        if past is not None and past.bindings.names_hold():
            return True
        return code == self.code

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
        """Return the task as a method whose calls pass *instance* as first argument."""
        if instance is None or self._bound:
            return self
        bound = TaskFunction[Any, R](self.func, self.options)
        bound.func = types.MethodType(self.func, instance)
        bound.node = self.node
        bound._closure = self._closure
        bound._code = self._code
        bound._shared = self._shared
        bound._spelling = self._spelling
        bound._bound = (instance,)
        bound._unbound = self
        return bound

    # The method is hidden from type checkers, so that they report unknown attributes.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an error, with advice for names that other libraries use."""
            if name.startswith("_"):
                raise AttributeError(name)
            raise AttributeError(no_such_attribute(self, "task", name, TASK_ADVICE))

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"

    @property
    def _home(self) -> str | None:
        """The name under which another process finds this task in its module, or None
        if the task cannot be found by name.
        """
        module = sys.modules.get(self.__module__)
        name: str = getattr(self, "__qualname__", "")
        if module is None or is_sent_by_value(self.__module__) or "<locals>" in name:
            return None
        attribute: Any = module
        for part in name.split("."):
            # `getattr` is not used, because it would call the task's `__get__` instead
            # of returning the task itself.
            attribute = inspect.getattr_static(attribute, part, None)
        if isinstance(attribute, staticmethod):
            attribute = attribute.__func__
        return name if attribute is self else None

    def __reduce__(self) -> str | tuple[Any, ...]:
        return self._home or (TaskFunction, (self.func, self.options))


def _note_digest(code: CodeDigest) -> None:
    note_code(code.digest, [code])


_MOST_CODES = 1_000
_COPIED = ("__module__", "__name__", "__qualname__", "__doc__")
