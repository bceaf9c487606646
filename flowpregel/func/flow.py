"""`Flow`: a workflow that is run by the signature of its function, once for each id."""

from __future__ import annotations

import threading
import uuid
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    Never,
    NoReturn,
    ParamSpec,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from flowpregel._core.digest import definition_of
from flowpregel._entry_points import NOTEBOOKS, load_plugins
from flowpregel._inspection.dry_replay import DryRun
from flowpregel._interrupts import ending, held
from flowpregel._text import no_such_attribute, no_such_option
from flowpregel._tracebacks import UsersFrames
from flowpregel.checkpoint.base import OnConflict
from flowpregel.context import current, nothing
from flowpregel.errors import ConfigurationError, UnansweredError
from flowpregel.events import Durability
from flowpregel.func import signatures as types
from flowpregel.func.parameters import FlowParameters
from flowpregel.pregel.dry_replay import dry_replay
from flowpregel.pregel.hints import add_hint
from flowpregel.pregel.invocation import STOP_GRACE, check_choices
from flowpregel.pregel.naming import RunIdentity, folder_of, imported_as
from flowpregel.pregel.pregel import Pregel
from flowpregel.pregel.runner import GraphRun

if TYPE_CHECKING:
    import asyncio

P = ParamSpec("P")
Q = ParamSpec("Q")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
_OPTIONS: Final[Mapping[str, Any]] = {
    "id": None,
    "adopt": False,
    "again": False,
    "on_code_change": "keep",
    "on_unreadable": "error",
    "on_unmatched": "run",
    "on_conflict": "wait",
    "fail_fast": True,
    "stop_after": None,
    "stop_grace": STOP_GRACE,
    "progress": None,
    "durability": None,
    "max_concurrency": None,
    "metadata": None,
    "tags": None,
    "context": None,
}
"""The options of a run, among the arguments of its workflow, and their defaults."""
_INSTEAD: Final[Mapping[str, str]] = {
    "map": (
        "write {name}.batch(inputs), or start each: [{name}.start(x, id=...) for x in "
        "inputs]"
    ),
    "imap": (
        "write {name}.batch(inputs), or start each: [{name}.start(x, id=...) for x in "
        "inputs]"
    ),
    "submit": "write {name}.start(...): it returns a handle at once",
    "delay": "write {name}.start(...): it returns a handle at once",
    "apply_async": "write {name}.start(...): it returns a handle at once",
    "remote": "write {name}.start(...): it returns a handle at once",
    "start_workflow": "write {name}.start(...): it returns a handle at once",
    "result": "write {name}.run(...), which returns the result",
    "options": "write {name}.with_options(...).run(...), or @entrypoint(...)",
    "func": "a workflow has no plain function: write {name}.run(...)",
    "fn": "a workflow has no plain function: write {name}.run(...)",
    "serve": (
        "a run needs no server: write {name}.run(...); `flowpregel ui` shows the runs"
    ),
    "deploy": (
        "a run needs no server: write {name}.run(...); `flowpregel ui` shows the runs"
    ),
}
"""What to write for attributes that workflows of other libraries have."""
_EVENTS = ("tasks", "updates", "custom")


class RunOptions(TypedDict, total=False):
    """The options of a run but its ``id``, for type checkers: see `Flow.run`."""

    adopt: bool
    again: bool
    on_code_change: Literal["keep", "rerun", "error"] | None
    on_unreadable: Literal["error", "rerun"] | None
    on_unmatched: Literal["run", "error"] | None
    on_conflict: OnConflict
    fail_fast: bool
    stop_after: float | timedelta | None
    stop_grace: float
    progress: bool
    durability: Durability | None
    max_concurrency: int | None
    metadata: Mapping[str, Any] | None
    tags: Sequence[str] | None
    context: Any


class FlowOptions(RunOptions, total=False):
    """The options of a run, for type checkers: see `Flow.with_options`."""

    id: str | None


class RunMethod(Protocol[P, R_co]):
    """Takes the arguments of a workflow's function, and the options of a run.

    Without options all arguments are checked, with them those by position. Arguments by
    name beside an ``id`` are not: a ParamSpec cannot be joined with further keywords
    (PEP 612). `Flow.with_options` takes the ``id`` apart from the arguments.
    """

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Stand for the workflow's function, whose parameters the overloads are chosen
        by.
        """

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(
        self: types.Takes0[R],
        *,
        id: str | None = ...,
        **options: Unpack[RunOptions],
    ) -> R: ...
    @overload
    def __call__(
        self: types.Takes1[A, R],
        a: A,
        /,
        *,
        id: str | None = ...,
        **options: Unpack[RunOptions],
    ) -> R: ...
    @overload
    def __call__(
        self: types.Takes2[A, B, R],
        a: A,
        b: B,
        /,
        *,
        id: str | None = ...,
        **options: Unpack[RunOptions],
    ) -> R: ...
    @overload
    def __call__(
        self: types.Takes3[A, B, C, R],
        a: A,
        b: B,
        c: C,
        /,
        *,
        id: str | None = ...,
        **options: Unpack[RunOptions],
    ) -> R: ...
    @overload
    def __call__(
        self: types.Takes4[A, B, C, D, R],
        a: A,
        b: B,
        c: C,
        d: D,
        /,
        *,
        id: str | None = ...,
        **options: Unpack[RunOptions],
    ) -> R: ...
    @overload
    def __call__(
        self: types.TakesFirst[A, Q, R],
        a: A,
        /,
        *,
        id: str,
        **kwargs: Any,
    ) -> R: ...
    @overload
    def __call__(self, *, id: str, **kwargs: Any) -> R_co: ...


class Flow(Pregel, Generic[P, R]):
    """A workflow: what `entrypoint` makes of a function.

    ``flow.run(...)`` takes the function's own arguments, and means *let this have been
    run once*: under an ``id`` it starts, goes on, or returns what is kept. It drops no
    finished work and repeats none. `invoke`, `stream` and their kin are LangGraph's.

    Args:
        parameters: What its function takes.
        once: Whose runs are its own.
        parts: What a `Pregel` consists of.
    """

    def __init__(
        self, parameters: FlowParameters, once: RunIdentity, **parts: Any
    ) -> None:
        super().__init__(**parts)
        # A parameter of the function is no option of its runs, whatever its name.
        options = {
            k: v
            for k, v in _OPTIONS.items()
            if k not in parameters.signature.parameters
        }
        self.parameters = replace(parameters, options=tuple(options))
        self.once: RunIdentity = replace(once, completed=self.completed)
        self.preset_options: Mapping[str, Any] = {}
        self._options = options
        self._signature = parameters.signature_with(options)

    def completed(self, given: Any) -> Any:
        """Return what `run` would make of *given*: a value, or a dict of the values of
        several.

        Raises:
            TypeError: The function does not take that.
        """
        if self.parameters.is_one:
            return given
        by_name = isinstance(given, dict)
        return self.parameters.input_of(
            () if by_name else (given,), given if by_name else {}
        )

    @property
    def run(self) -> RunMethod[P, R]:
        """Run the workflow, if that was not done yet, and return its result.

        Args:
            args, kwargs: The arguments of the function.
            id: Names the run, in the checkpointer: asked for again, it goes on where it
                stopped, or returns what it returned. None: a run that is not asked for
                again; if it does not come to its end, what is raised has the id under
                which it is kept.
            adopt: Whether a run that was started with other arguments goes on with
                these; what was asked before is not asked again. Otherwise it is an
                error.
            again: Whether to start over whatever is kept: the earlier run stays in the
                history.
            on_code_change: What to do with a recorded result that other code made, that
                of a finished run among them: ``"keep"`` it (default, with a notice),
                ``"rerun"`` the call, or ``"error"``.
            on_unreadable: What to do with a recorded result that cannot be read back,
                because a class of it is gone: raise the ``"error"`` (default), or
                ``"rerun"`` the call.
            on_unmatched: What to do before the first call of a task that none of its
                recorded calls fits, after an edit: ``"run"`` it, with a notice before
                (default), or raise the ``"error"``.
            on_conflict: If another process has the run now: ``"wait"`` for its result
                (default), ``"raise"``, or ``"takeover"``.
            fail_fast: Whether calls that wait for their turn are left out once the
                workflow's function has raised (default). What runs by then is finished
                and kept.
            stop_after: Seconds, or a timedelta, after which the run ends in time: no
                more calls are started, and running ones find ``runtime.stopping`` true.
            stop_grace: Seconds that these have then to save and to return (20); SIGTERM
                gives them as much, and so does a failure of the workflow's function,
                from the end of the last call that ended.
            progress: Whether to show a live view on stderr.
            durability: When a result is on disk: ``"sync"``, ``"async"`` (default) or
                ``"exit"``.
            max_concurrency: The most tasks at once.
            metadata, tags: Kept with the run's checkpoints.
            context: What tasks get as ``context``.

        An option that a parameter of the function is named like is the parameter.
        Options of all runs can be given to `entrypoint`.

        Raises:
            TypeError: The function does not take these arguments.
            ConfigurationError: There is an id, and no checkpointer to keep its run.
            InputMismatchError: The run was started with other arguments.
            UnmatchedCallsError: None of the recorded calls of a task fits, and
                *on_unmatched* is ``"error"``.
            CodeChangedError: What is recorded is of other code, and *on_code_change* is
                ``"error"``.
            FlowMismatchError: The id names a run of another workflow.
            ThreadBusyError: Another process has it, and *on_conflict* is ``"raise"``.
            UnansweredError: It waits for an answer.
            RunStopped: It has ended in time; asked for again, it goes on.
            Exception: What the function raised.

        Example:
            >>> study.run([1, 2, 3], id="study-1")  # doctest: +SKIP
            6
        """

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._is_step(kwargs):
                return self.invoke(
                    self._given(args, kwargs), **self._options_in(kwargs)
                )
            with UsersFrames(), held():
                run = self._planned(args, kwargs)
                for _ in run.items():
                    pass
                return _result_of(run)

        return self._signed(run)

    @property
    def arun(self) -> RunMethod[P, Coroutine[Any, Any, R]]:
        """`run`, on the running event loop."""

        async def arun(*args: Any, **kwargs: Any) -> Any:
            if self._is_step(kwargs):
                return await self.ainvoke(
                    self._given(args, kwargs), **self._options_in(kwargs)
                )
            with UsersFrames():
                run = self._planned(args, kwargs)
                async for _ in run.aitems():
                    pass
                return _result_of(run)

        return self._signed(arun)

    @property
    def start(self) -> RunMethod[P, RunHandle[R]]:
        """Do what `run` does on an OS thread of its own, and return a handle at once.

        The thread ends with the program; run again, it goes on.

        Example:
            >>> handle = study.start([1, 2, 3], id="study-1")  # doctest: +SKIP
            >>> handle.result(timeout=60)  # doctest: +SKIP
            6
        """

        def start(*args: Any, **kwargs: Any) -> Any:
            return RunHandle(self._planned(args, kwargs, stream_mode=_EVENTS))

        return self._signed(start, return_annotation=RunHandle)

    def _signed(self, method: Any, **changes: Any) -> RunMethod[P, Any]:
        """Return *method* with the docs of its property, and the signature that it
        takes.
        """
        method.__doc__ = getattr(type(self), method.__name__).__doc__
        method.__qualname__ = f"{self.name}.{method.__name__}"
        method.__signature__ = self._signature.replace(**changes)
        signed: RunMethod[P, Any] = method
        return signed

    def with_options(self, **options: Unpack[FlowOptions]) -> Self:
        """Return the same workflow with options for the runs; this one is not changed.

        Type checkers check all arguments of the function then, those by name too. An
        option is an option here also where a parameter of the function has its name.

        Args:
            options: Those of `run`, ``id`` among them. They count for `run`, `arun`,
                `start` and `plan`, unless these are given their own.

        Raises:
            TypeError: There is no such option.
            ConfigurationError: An option has a value that it cannot have.

        Example:
            >>> flow = study.with_options(id="study-1")  # doctest: +SKIP
            >>> flow.run(seeds=[1, 2, 3], scale=2.0)  # doctest: +SKIP
            12.0
        """
        presets = dict(self.preset_options)
        for name, value in options.items():
            if name not in _OPTIONS:
                message = no_such_option("a run", name, _OPTIONS)
                raise TypeError(message)
            if value is not None:
                presets[name] = value
        check_choices(presets)
        return self.copy({"preset_options": presets})

    def plan(self, *args: Any, **kwargs: Any) -> DryRun:
        """Return what `run` with these arguments would do: what is known, and what
        would run.

        The body is gone through with the recorded results; no task runs, and nothing is
        written.

        Args:
            args, kwargs: Those of `run`, ``id`` and its other options among them.

        Raises:
            FlowPregelError: `run` would refuse to start.

        Example:
            >>> print(study.plan([1, 2, 3], id="study-1"))  # doctest: +SKIP
            calls: 2 answered, 1 would run (parse 1), 0 not asked for
        """
        return dry_replay(self._planned(args, kwargs))

    def signal(self, id: str, name: str, value: Any = None) -> None:
        """Send *value* to a run, for its call of `signal` with that *name*; from any
        process.

        The run need not have come to it, nor have begun; each value is received once.

        Args:
            id: The run's.
            name: What the run calls it.
            value: Anything that can be kept.

        Raises:
            ConfigurationError: Nothing keeps the runs of this workflow.

        Example:
            >>> approval.signal("order-7", "approved", True)  # doctest: +SKIP
        """
        if self.saver is None:
            raise _no_checkpointer(f"{self.name}.signal({id!r})")
        self.saver.send_signal(id, name, value)

    def __call__(self, *_: Never, **__: Never) -> NoReturn:  # type: ignore[override]
        """Refuse to be called: a workflow is run by `run` and its kin."""
        raise TypeError(
            f"workflow {self.name!r} is not called: write {self.name}.run(...), which "
            "takes the same arguments and returns the result (async: await "
            f"{self.name}.arun(...))"
        )

    if not TYPE_CHECKING:  # type checkers refuse them by themselves

        def __getattr__(self, name: str) -> NoReturn:
            """Say what to write for what workflows of other libraries have."""
            if name.startswith("_"):
                raise AttributeError(name)
            raise AttributeError(no_such_attribute(self, "workflow", name, _INSTEAD))

    def _planned(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        **asked: Any,
    ) -> GraphRun:
        """Return the run that is asked for, its workflow's arguments and its own
        options apart.
        """
        own = {**_OPTIONS, **self.run_options, **self._options_in(kwargs)}
        run_id, adopt, again = own.pop("id"), own.pop("adopt"), own.pop("again")
        if run_id == "":
            raise ConfigurationError(
                f"{self.name}.run(id=''): name the run by any other text, or leave id "
                "out"
            )
        if self.checkpointer is not None:
            own["thread_id"] = str(uuid.uuid4()) if run_id is None else run_id
        elif run_id is not None:
            raise _no_checkpointer(f"{self.name}.run(id={run_id!r})")
        run = GraphRun(self, self._given(args, kwargs), None, {**own, **asked})
        if self.checkpointer is not None:
            run.resume = replace(self.once, adopt=adopt, again=again)
            run.is_unnamed = run_id is None
        return run

    def _options_in(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a run: those that were set before, and those among its
        keyword arguments.
        """
        options = dict(self.preset_options)
        for name in self._options:
            if kwargs.get(name) is not None:
                options[name] = kwargs[name]
        return options

    def _is_step(self, kwargs: Mapping[str, Any]) -> bool:
        """Return whether a run is one step of the run around it, and has no id of its
        own.
        """
        has_id = "id" in self._options_in(kwargs)
        return current.get() is not None and not has_id

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        given = {
            key: value for key, value in kwargs.items() if key not in self._options
        }
        return self.parameters.input_of(args, given)


class RunHandle(Generic[R]):
    """A run that was started; iterate over it for its events, ``(stream mode,
    payload)``.

    Async code awaits it for the result, and iterates with ``async for``.

    Args:
        run: The run.
    """

    def __init__(self, run: GraphRun) -> None:
        self.id = run.config.thread_id
        """The id of the run, given or made."""
        self._run = run
        self._future: Future[R] = Future()
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._on_event: Callable[[], object] = nothing
        """Wakes who waits for an event on an event loop."""
        threading.Thread(
            target=self._work, name=f"flowpregel-{self.id}", daemon=True
        ).start()

    @property
    def status(self) -> Literal["running", "done", "failed"]:
        """How the run stands."""
        if not self._future.done():
            return "running"
        return "done" if self._future.exception() is None else "failed"

    def result(self, timeout: float | None = None) -> R:
        """Return what the run returned, once it has ended.

        Args:
            timeout: The most seconds to wait.

        Raises:
            TimeoutError: It has not ended by then.
            Exception: What `Flow.run` would raise.
        """
        with UsersFrames(), ending(self._run.end):
            return self._future.result(timeout)

    def cancel(self) -> None:
        """Ask the run to stop at once; what is finished is kept, and it can go on
        later.
        """
        self._run.cancel()

    def end(self, reason: str = "it was told to end") -> None:
        """Ask the run to end in time, as ``stop_after`` does."""
        self._run.end(reason)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield the events of the run as they come, each once, until it has ended."""
        while (event := self._events.get()) is not None:
            yield event
        self._events.put(None)

    def __await__(self) -> Generator[Any, Any, R]:
        """Return what `result` does, without blocking the event loop."""
        return self._ended().__await__()

    async def _ended(self) -> R:
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        # Shielded: who no longer waits does not stop the run; `cancel` does.
        with UsersFrames(), ending(self._run.end):
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
        """Add an event, and wake who waits for one on an event loop."""
        self._events.put(event)
        self._on_event()

    def _repr_html_(self) -> str | None:
        """Return the run's page as it stands now, for a notebook; None: no store keeps
        the run.
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
            self._future.set_result(_result_of(self._run))
        except BaseException as error:  # noqa: BLE001 - who asks for the result is raised it
            self._future.set_exception(error)
        finally:
            self._put(None)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Have an event loop call *callback*, unless it is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


def _no_checkpointer(asked: str) -> ConfigurationError:
    return ConfigurationError(
        f"{asked}: nothing keeps the runs of this workflow; write "
        "@entrypoint(checkpointer='runs.lmdb'), with the path of a folder"
    )


def _result_of(run: GraphRun) -> Any:
    """Return what a run came to.

    Raises:
        UnansweredError: It waits for an answer.
    """
    result = run.engine.result
    assert result is not None
    if result.interrupts:
        error = UnansweredError(str(run.config.thread_id), result.interrupts)
        add_hint(run, error)
        raise error
    return result.values


def run_identity_of(
    func: Callable[..., Any], name: str, adopts: Sequence[str]
) -> RunIdentity:
    """Return whose runs are those of a workflow: the same as script or as module.

    Args:
        func: Its function.
        name: Its name.
        adopts: The names that it had before.
    """
    module, qualified = definition_of(func)
    module, file = imported_as(module)
    flow = f"{module}:{qualified.removesuffix(qualified.rpartition('.')[2])}{name}"
    return RunIdentity(flow=flow, folder=folder_of(module, file), adopts=tuple(adopts))
