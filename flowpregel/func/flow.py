"""`Flow`, a workflow that is run with the arguments of a function, once for each id."""

from __future__ import annotations

import uuid
from collections.abc import (
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import replace
from datetime import timedelta
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

from flowpregel._core.commands import Command
from flowpregel._inspection.dry_replay import DryRun
from flowpregel._interrupts import defer_interrupts
from flowpregel._pickling.digest import definition_of
from flowpregel._text import no_such_attribute, no_such_option
from flowpregel._tracebacks import UsersFrames
from flowpregel.checkpoint.base import OnConflict
from flowpregel.context import current
from flowpregel.errors import ConfigurationError
from flowpregel.events import Durability
from flowpregel.func import signatures as types
from flowpregel.func.advice import WORKFLOW_ADVICE
from flowpregel.func.enqueue import POSITION_OPTIONS, position_from, store_enqueued
from flowpregel.func.parameters import FlowParameters
from flowpregel.func.run_handle import RunHandle, result_of
from flowpregel.pregel.dry_replay import dry_replay
from flowpregel.pregel.invocation import STOP_GRACE, check_choices
from flowpregel.pregel.naming import RunIdentity, folder_of, imported_as
from flowpregel.pregel.pregel import Pregel
from flowpregel.pregel.runner import GraphRun
from flowpregel.pregel.schedule import Schedule

P = ParamSpec("P")
Q = ParamSpec("Q")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
RUN_OPTIONS: Final[Mapping[str, Any]] = {
    "id": None,
    "adopt": False,
    "again": False,
    "on_code_change": "keep",
    "on_unreadable": "error",
    "on_unmatched": "run",
    "on_conflict": "wait",
    "fail_fast": True,
    "check_mutations": None,
    "stop_after": None,
    "stop_grace": STOP_GRACE,
    "progress": None,
    "durability": None,
    "max_concurrency": None,
    "metadata": None,
    "tags": None,
    "context": None,
}
"""The options of a run and their defaults. The caller passes them as keyword arguments,
among the arguments of the workflow.
"""
_INPUT_OPTIONS: Final = ("id", "adopt", "again")
"""The options of a run that concern the use of the workflow's arguments. `Flow.answer`
takes none of them, because it does not take the workflow's arguments.
"""
_EVENTS = ("tasks", "updates", "custom")


class AnswerOptions(TypedDict, total=False):
    """The options of a run that an answer resumes, for type checkers. `Flow.run`
    explains them.
    """

    on_code_change: Literal["keep", "rerun", "error"] | None
    on_unreadable: Literal["error", "rerun"] | None
    on_unmatched: Literal["run", "error"] | None
    on_conflict: OnConflict
    fail_fast: bool
    check_mutations: bool | None
    stop_after: float | timedelta | None
    stop_grace: float
    progress: bool
    durability: Durability | None
    max_concurrency: int | None
    metadata: Mapping[str, Any] | None
    tags: Sequence[str] | None
    context: Any


class RunOptions(AnswerOptions, total=False):
    """The options of a run except its ``id``, for type checkers. `Flow.run` explains
    them.
    """

    adopt: bool
    again: bool


class FlowOptions(RunOptions, total=False):
    """The options of a run, for type checkers: see `Flow.with_options`."""

    id: str | None


class RunMethod(Protocol[P, R_co]):
    """A method that takes the arguments of a workflow's function and the options of a
    run.

    In a call without options, type checkers check all arguments. In a call with
    options, they check only positional arguments, because a ParamSpec cannot be
    combined with further keywords (PEP 612). To have all arguments checked, pass the
    ``id`` to `Flow.with_options` instead.
    """

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Take the same arguments as the workflow's function. Type checkers choose the
        overload by the function's parameters.
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
    """A workflow, which `entrypoint` makes from a function.

    ``flow.run(...)`` takes the function's own arguments, and ensures that the workflow
    has run once: under an ``id`` it starts the run, resumes it, or returns the recorded
    result. It never drops or repeats finished work. `invoke`, `stream` and similar
    methods work as in LangGraph.

    Args:
        parameters: The parameters of the function.
        once: The identity of the workflow's runs.
        parts: The parts of a `Pregel`.

    Example:
        >>> from flowpregel.func import entrypoint
        >>> @entrypoint()
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> double.run(4)
        8
    """

    def __init__(
        self, parameters: FlowParameters, once: RunIdentity, **parts: Any
    ) -> None:
        super().__init__(**parts)
        # If a parameter of the function has the name of an option, the parameter takes
        # precedence.
        options = {
            name: default
            for name, default in RUN_OPTIONS.items()
            if name not in parameters.signature.parameters
        }
        self.parameters: FlowParameters = replace(parameters, options=tuple(options))
        self.once: RunIdentity = replace(once, completed=self.completed)
        self.preset_options: Mapping[str, Any] = {}
        self.schedule: Schedule | None = None
        """The times at which `flowpregel work` begins runs, or None without a
        schedule.
        """
        self.expression: str = parameters.name
        """The Python expression with which messages refer to the workflow."""
        self._options = options
        self._signature = parameters.signature_with(options)

    def __repr__(self) -> str:
        signature = self.parameters.signature
        return f"<workflow {self.name}{signature}{self.drawing.store_text()}>"

    def completed(self, run_input: Any) -> Any:
        """Return *run_input* in the form that `run` records. If the function has
        several parameters, their defaults are included.

        Args:
            run_input: A value, or a dict of the values of several parameters.

        Raises:
            TypeError: The function does not take this input.

        Example:
            >>> from flowpregel.func import entrypoint
            >>> @entrypoint()
            ... def scale(number: int, factor: int = 2) -> int:
            ...     return number * factor
            >>> scale.completed({"number": 4})
            {'number': 4, 'factor': 2}
        """
        if self.parameters.is_one:
            return run_input
        if isinstance(run_input, dict):
            return self.parameters.input_of((), run_input)
        return self.parameters.input_of((run_input,), {})

    @property
    def run(self) -> RunMethod[P, R]:
        """Run the workflow unless it has been run already, and return its result.

        Args:
            args, kwargs: The arguments of the function.
            id: The name of the run in the checkpointer. Called again with the same id,
                `run` resumes the run, or returns the recorded result. With None, the
                run gets a new id; if the run does not finish, the exception names that
                id.
            adopt: Whether a run that was started with different arguments resumes with
                the new arguments, without repeating recorded calls. By default,
                different arguments are an error.
            again: Whether to start over even if there is a recorded run, which stays in
                the history.
            on_code_change: The treatment of a recorded result that different code
                computed, including the result of a finished run: ``"keep"`` it
                (default, with a notice), ``"rerun"`` the call, or raise an ``"error"``.
            on_unreadable: The treatment of a recorded result that cannot be read back
                because its class is gone: raise the ``"error"`` (default), or
                ``"rerun"`` the call.
            on_unmatched: The treatment, after an edit, of the first call of a task that
                matches none of the task's recorded calls: ``"run"`` it, with a notice
                before (default), or raise the ``"error"``.
            on_conflict: The action if another process is executing the run: ``"wait"``
                for the result (default), ``"raise"``, or ``"takeover"``.
            fail_fast: Whether to skip calls that wait for their turn once the
                workflow's function has raised (default). Calls that are running then
                finish, and their results are kept.
            check_mutations: Whether to give a notice if a task changes an argument in
                place, a change that the caller does not see if the task runs in a
                worker process. The arguments are digested before and after each call.
                The default is False, or ``FLOWPREGEL_CHECK_MUTATIONS``.
            stop_after: Seconds, or a timedelta, after which the run stops: no more
                calls are started, and ``runtime.stopping`` becomes true in running
                ones.
            stop_grace: Seconds that running calls then have to save their work and
                return (20 by default). The same limit applies after SIGTERM. After a
                failure of the workflow's function, the time counts from the end of the
                call that ended last.
            progress: Whether to show a live view on stderr.
            durability: The time at which a result is on disk: ``"sync"``, ``"async"``
                (default) or ``"exit"``.
            max_concurrency: The maximum number of tasks that run at once.
            metadata, tags: Stored with the run's checkpoints.
            context: The ``context`` of tasks.

        If a parameter of the function has the name of an option, the argument is for
        the parameter. Pass options for all runs to `entrypoint`.

        Raises:
            TypeError: The function does not take these arguments.
            ConfigurationError: An *id* is given, but there is no checkpointer to store
                the run.
            InputMismatchError: The run was started with other arguments.
            UnmatchedCallsError: None of the recorded calls of a task matches, and
                *on_unmatched* is ``"error"``.
            CodeChangedError: Different code computed a recorded result, and
                *on_code_change* is ``"error"``.
            FlowMismatchError: The id names a run of another workflow.
            ThreadBusyError: Another process is executing the run, and *on_conflict* is
                ``"raise"``.
            UnansweredError: The run waits for an answer.
            RunStopped: The run has stopped on request; call `run` again to resume it.
            Exception: The exception that the function raised.

        Example:
            >>> from flowpregel import InMemorySaver
            >>> from flowpregel.func import entrypoint
            >>> @entrypoint(checkpointer=InMemorySaver())
            ... def study(seeds: list[int]) -> int:
            ...     print("computing")
            ...     return sum(seeds)
            >>> study.run([1, 2, 3], id="study-1")
            computing
            6
            >>> study.run([1, 2, 3], id="study-1")  # the recorded result
            6
        """

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._is_step(kwargs):
                return self.invoke(
                    self._input_of(args, kwargs), **self._options_in(kwargs)
                )
            with UsersFrames(), defer_interrupts():
                run = self._new_run(args, kwargs)
                for _ in run.items():
                    pass
                return result_of(run)

        return self._with_signature(run)

    @property
    def arun(self) -> RunMethod[P, Coroutine[Any, Any, R]]:
        """`run`, on the running event loop.

        Args:
            args, kwargs: The arguments and options of `run`.

        Raises:
            Exception: As `run` does.

        Example:
            >>> import asyncio
            >>> from flowpregel.func import entrypoint
            >>> @entrypoint()
            ... async def double(number: int) -> int:
            ...     return 2 * number
            >>> asyncio.run(double.arun(4))
            8
        """

        async def arun(*args: Any, **kwargs: Any) -> Any:
            if self._is_step(kwargs):
                return await self.ainvoke(
                    self._input_of(args, kwargs), **self._options_in(kwargs)
                )
            with UsersFrames():
                run = self._new_run(args, kwargs)
                async for _ in run.aitems():
                    pass
                return result_of(run)

        return self._with_signature(arun)

    @property
    def start(self) -> RunMethod[P, RunHandle[R]]:
        """Start `run` on a new OS thread, and return a handle at once.

        The OS thread does not outlive the program. If the program ends first, call
        `start` again to resume the run.

        Args:
            args, kwargs: The arguments and options of `run`.

        Raises:
            TypeError: The function does not take these arguments.
            ConfigurationError: As for `run`. Other errors of the run are raised by
                `RunHandle.result`.

        Example:
            >>> from flowpregel.func import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> handle = double.start(4)
            >>> handle.result(timeout=60)
            8
        """

        def start(*args: Any, **kwargs: Any) -> Any:
            return RunHandle(self._new_run(args, kwargs, stream_mode=_EVENTS))

        return self._with_signature(start, return_annotation=RunHandle)

    @property
    def enqueue(self) -> RunMethod[P, str]:
        """Record a run that begins later, and return its id.

        A ``flowpregel work`` process begins the run. If that process is killed, another
        one resumes the run. `run` with the same id begins it, too. If the store already
        has a run with this id, nothing is changed.

        Args:
            args, kwargs: The arguments of the function, and options of `run`: ``id``,
                ``metadata`` and ``tags``. The other options are those of the process
                that runs the run.
            priority: A run with a greater number begins first; 0 by default.
            not_before: The earliest time at which the run may begin: a datetime, or a
                timedelta from now.

        Raises:
            TypeError: The function does not take these arguments.
            ConfigurationError: The workflow has no checkpointer, or the value of an
                option is not allowed.
            InputMismatchError: The run with this id has other arguments.
            FlowMismatchError: The id names a run of another workflow.

        Example:
            >>> from flowpregel import InMemorySaver
            >>> from flowpregel.func import entrypoint
            >>> @entrypoint(checkpointer=InMemorySaver())
            ... def report(month: str) -> str:
            ...     return f"report of {month}"
            >>> report.enqueue("May", id="report-may", priority=5)
            'report-may'
            >>> report.run("May", id="report-may")
            'report of May'
        """

        def enqueue(*args: Any, **kwargs: Any) -> Any:
            if self.checkpointer is None:
                raise _no_checkpointer(f"{self.name}.enqueue(...)")
            options = dict(POSITION_OPTIONS)
            for name in POSITION_OPTIONS:
                is_argument = name in self.parameters.signature.parameters
                if name in kwargs and not is_argument:
                    options[name] = kwargs.pop(name)
            run = self._new_run(args, kwargs, durability="sync", on_conflict="raise")
            position = position_from(**options)
            store_enqueued(run, position)
            return run.config.thread_id

        return self._with_signature(enqueue, return_annotation=str)

    def answer(self, value: Any, *, id: str, **options: Unpack[AnswerOptions]) -> R:
        """Answer the question of a run, resume the run, and return its result.

        Args:
            value: The answer, which `interrupt` returns to the code that asks. If the
                run asks several questions, a dict of answers by the ids of the
                questions; questions without an answer in the dict stay open.
            id: The id of the run.
            options: The options of `run`, without ``adopt`` and ``again``.

        Raises:
            UnknownInterruptError: The run asks no question, or none with such an id;
                or it asks several, and *value* has no ids.
            UnansweredError: The run waits for the answer to another question.
            Exception: Any other error of `run`.

        Example:
            >>> from flowpregel import InMemorySaver, interrupt
            >>> from flowpregel.errors import UnansweredError
            >>> from flowpregel.func import entrypoint
            >>> @entrypoint(checkpointer=InMemorySaver())
            ... def publish(text: str) -> str:
            ...     return f"{text} [{interrupt('publish it?')}]"
            >>> try:
            ...     publish.run("An essay.", id="essay")
            ... except UnansweredError as waiting:
            ...     print(waiting.interrupts[0].value)
            publish it?
            >>> publish.answer("yes", id="essay")
            'An essay. [yes]'
        """
        with UsersFrames(), defer_interrupts():
            run = self._answered_run(value, id, options)
            for _ in run.items():
                pass
            result: R = result_of(run)
            return result

    async def aanswer(
        self, value: Any, *, id: str, **options: Unpack[AnswerOptions]
    ) -> R:
        """`answer`, on the running event loop.

        Args:
            value, id, options: The arguments of `answer`.

        Raises:
            Exception: As `answer` does.
        """
        with UsersFrames():
            run = self._answered_run(value, id, options)
            async for _ in run.aitems():
                pass
            result: R = result_of(run)
            return result

    def _answered_run(
        self, value: Any, run_id: str, options: Mapping[str, Any]
    ) -> GraphRun:
        """Return a run that resumes the stored run *run_id* with *value* as the answer
        to its question.
        """
        if self.checkpointer is None:
            raise _no_checkpointer(f"{self.name}.answer(..., id={run_id!r})")
        settings = {**RUN_OPTIONS, **self.run_options, **self.preset_options}
        for name in _INPUT_OPTIONS:
            del settings[name]
        for name, option in options.items():
            if name not in settings:
                raise TypeError(no_such_option("an answer", name, settings))
            settings[name] = option
        settings["thread_id"] = run_id
        return GraphRun(self, Command(resume=value), None, settings)

    def _with_signature(self, method: Any, **changes: Any) -> RunMethod[P, Any]:
        """Return *method* with the docstring of the public property that returns it,
        such as `run`, and with the signature of the workflow's function.
        """
        method.__doc__ = getattr(type(self), method.__name__).__doc__
        method.__qualname__ = f"{self.name}.{method.__name__}"
        method.__signature__ = self._signature.replace(**changes)
        signed: RunMethod[P, Any] = method
        return signed

    def with_options(self, **options: Unpack[FlowOptions]) -> Self:
        """Return the same workflow with options for the runs; this workflow object is
        not changed.

        Type checkers then check all arguments of the function, including keyword
        arguments. An option is accepted here even if the function has a parameter of
        the same name.

        Args:
            options: The options of `run`, including ``id``. They become the defaults of
                `run`, `arun`, `start` and `plan`.

        Raises:
            TypeError: There is no such option.
            ConfigurationError: The value of an option is not allowed.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint
            >>> @entrypoint(checkpointer=InMemorySaver())
            ... def scale(number: float, factor: float) -> float:
            ...     return factor * number
            >>> flow = scale.with_options(id="study-1")
            >>> flow.run(number=2.0, factor=4.0)
            8.0
        """
        presets = dict(self.preset_options)
        for name, value in options.items():
            if name not in RUN_OPTIONS:
                message = no_such_option("a run", name, RUN_OPTIONS)
                raise TypeError(message)
            if value is not None:
                presets[name] = value
        check_choices(presets)
        return self.copy({"preset_options": presets})

    def plan(self, *args: Any, **kwargs: Any) -> DryRun:
        """Return the plan of `run` with these arguments: the calls with recorded
        results, the calls that would run, and how long these would take.

        The body is replayed with the recorded results. No task runs, and nothing is
        written.

        Args:
            args, kwargs: The arguments of `run`, including ``id`` and other options.

        Raises:
            FlowPregelError: `run` would refuse to start.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint, task
            >>> @task(executor="inline")
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> @entrypoint(checkpointer=InMemorySaver())
            ... def total(numbers: list[int]) -> int:
            ...     return sum(future.result() for future in double.map(numbers))
            >>> total.run([1, 2], id="study-1")
            6
            >>> print(total.plan([1, 2, 3], id="study-1", adopt=True))
            calls: 2 answered, 1 would run (double 1), 0 not made again
            time: unknown, because too few calls have ended before
            the code or the input of the body has changed
        """
        return dry_replay(self._new_run(args, kwargs))

    def signal(self, id: str, name: str, value: Any = None) -> None:
        """Send *value* to a run's call of `signal` with this *name*, from any process.

        You can send the value before the run reaches that call, and before the run
        begins. Each value is received once.

        Args:
            id: The id of the run.
            name: The name that the run passes to `signal`.
            value: Any value that can be stored.

        Raises:
            ConfigurationError: The workflow has no checkpointer.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint, signal
            >>> @entrypoint(checkpointer=InMemorySaver())
            ... def order(number: int) -> str:
            ...     return "sent" if signal("approved").result() else "refused"
            >>> order.signal("order-7", "approved", True)
            >>> order.run(7, id="order-7")
            'sent'
        """
        if self.saver is None:
            raise _no_checkpointer(f"{self.name}.signal({id!r})")
        self.saver.send_signal(id, name, value)

    def table(self, ids: Iterable[str]) -> list[dict[str, Any]]:
        """Return a row for each call of runs, for ``pandas.DataFrame(...)`` or CSV.

        A row has the run's id, the task, the call, its state, its error, its seconds
        (``took``), its peak memory in bytes, the number of attempts (``tries``), the
        metrics, the arguments, and the fields of the result. A run without calls has a
        row for its body.

        Args:
            ids: The ids of the runs.

        Raises:
            ConfigurationError: The workflow has no store, or the store has no run of
                this id.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel import entrypoint, task
            >>> @task(executor="inline")
            ... def train(depth: int) -> dict[str, float]:
            ...     return {"loss": 1 / depth}
            >>> with TemporaryDirectory() as folder:
            ...     @entrypoint(checkpointer=folder)
            ...     def sweep(depths: list[int]) -> int:
            ...         return len([f.result() for f in train.map(depths)])
            ...     sweep.run([1, 2], id="sweep-1")
            ...     rows = sweep.table(["sweep-1"])
            2
            >>> [(row["depth"], row["loss"]) for row in rows]
            [(1, 1.0), (2, 0.5)]
        """
        # The imports are done here, so that `import flowpregel` stays fast.
        from flowpregel._inspection.sweep_table import (  # noqa: PLC0415
            sweep_rows,
        )
        from flowpregel.checkpoint.durable import DurableSaver  # noqa: PLC0415

        if not isinstance(self.saver, DurableSaver):
            raise _no_checkpointer(f"{self.name}.table(...)")
        return sweep_rows(self.saver, ids)

    def map(self, *inputs: Any) -> Any:
        """Return a Runnable that runs each item of a list, as `Pregel.map` does.

        Args:
            inputs: Must be empty.

        Raises:
            AttributeError: There are inputs, for which `batch` is the method.

        Example:
            >>> from flowpregel.func import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.map().invoke([1, 2])
            [2, 4]
        """
        if inputs:
            raise AttributeError(
                no_such_attribute(self, "workflow", "map", WORKFLOW_ADVICE)
            )
        return super().map()

    def __call__(self, *_: Never, **__: Never) -> NoReturn:  # type: ignore[override]
        """Raise an error, because a workflow is run by `run`, `arun` or `start`."""
        raise TypeError(
            f"workflow {self.name!r} cannot be called directly: write "
            f"{self.name}.run(...), which takes the same arguments and returns the "
            f"result (async: await {self.name}.arun(...))"
        )

    # The method is hidden from type checkers, so that they report unknown attributes.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an error, with advice for names that other libraries use."""
            if name.startswith("_"):
                raise AttributeError(name)
            raise AttributeError(
                no_such_attribute(self, "workflow", name, WORKFLOW_ADVICE)
            )

    def _new_run(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        **fixed_options: Any,
    ) -> GraphRun:
        """Return a new run. The keyword arguments contain arguments of the workflow's
        function, and options of the run.
        """
        options = {**RUN_OPTIONS, **self.run_options, **self._options_in(kwargs)}
        run_id = options.pop("id")
        adopt = options.pop("adopt")
        again = options.pop("again")
        if run_id == "":
            raise ConfigurationError(
                f"{self.name}.run(id=''): the id is empty; use any other text, or "
                "leave id out"
            )
        if self.checkpointer is not None:
            options["thread_id"] = str(uuid.uuid4()) if run_id is None else run_id
        elif run_id is not None:
            raise _no_checkpointer(f"{self.name}.run(id={run_id!r})")
        run_input = self._input_of(args, kwargs)
        run = GraphRun(self, run_input, None, {**options, **fixed_options})
        if self.checkpointer is not None:
            run.resume = replace(self.once, adopt=adopt, again=again)
            run.is_unnamed = run_id is None
        return run

    def _options_in(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a run, both from `with_options` and from the keyword
        arguments, which take precedence.
        """
        options = dict(self.preset_options)
        for name in self._options:
            if kwargs.get(name) is not None:
                options[name] = kwargs[name]
        return options

    def _is_step(self, kwargs: Mapping[str, Any]) -> bool:
        """Return whether the call of this workflow is part of an outer run: it is made
        inside that run, and has no ``id`` of its own.
        """
        has_id = "id" in self._options_in(kwargs)
        return current.get() is not None and not has_id

    def _input_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Convert the arguments to the input of a run. Options of the run among the
        arguments are ignored.
        """
        arguments = {
            key: value for key, value in kwargs.items() if key not in self._options
        }
        return self.parameters.input_of(args, arguments)


def _no_checkpointer(call: str) -> ConfigurationError:
    return ConfigurationError(
        f"{call}: this workflow has no checkpointer; write "
        "@entrypoint(checkpointer='runs.lmdb'), with the path of a folder"
    )


def run_identity_of(
    func: Callable[..., Any], name: str, adopts: Sequence[str]
) -> RunIdentity:
    """Return the identity of a workflow's runs, which is the same whether the
    workflow's file is executed as a script or imported as a module.

    Args:
        func: The function of the workflow.
        name: The name of the workflow.
        adopts: The former names of the workflow.
    """
    module, qualified = definition_of(func)
    module, file = imported_as(module)
    # The workflow may have another name than the function, so its name replaces the
    # last part of the function's qualified name.
    scope, dot, _ = qualified.rpartition(".")
    return RunIdentity(
        flow=f"{module}:{scope}{dot}{name}",
        folder=folder_of(module, file),
        adopts=tuple(adopts),
    )
