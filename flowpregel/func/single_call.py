"""The run of a single call of a task: `TaskFunction.run`, `arun` and `as_flow`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import (
    Any,
    Final,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

from flowpregel._annotations import signature_of
from flowpregel._core.program import names
from flowpregel._core.records import Arguments
from flowpregel._core.spelling import is_default
from flowpregel._pickling.digest import definition_of
from flowpregel._tracebacks import UsersFrames
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import ConfigurationError
from flowpregel.func import signatures as types
from flowpregel.func.entry import EntrypointOptions, entrypoint, flow_of_body
from flowpregel.func.flow import RUN_OPTIONS, Flow, RunOptions, run_identity_of
from flowpregel.func.options import DEFAULT_STORE
from flowpregel.func.parameters import FlowParameters

P = ParamSpec("P")
Q = ParamSpec("Q")

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Store: TypeAlias = BaseCheckpointSaver | str | os.PathLike[str] | None
_ANY: Final = inspect.signature(lambda *args, **kwargs: None)
"""The parameters of a function whose signature cannot be read."""


class TaskRunOptions(RunOptions, total=False):
    """The options of a single call except its ``id``, for type checkers."""

    store: Store


class TaskRunMethod(Protocol[P, R_co]):
    """A method that takes the arguments of a task and the options of a run.

    Type checkers check the arguments as for `RunMethod`.
    """

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Take the same arguments as the task's function. Type checkers choose the
        overload by the function's parameters.
        """

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(
        self: types.Takes0[R],
        *,
        id: str | None = ...,
        **options: Unpack[TaskRunOptions],
    ) -> R: ...
    @overload
    def __call__(
        self: types.Takes1[A, R],
        a: A,
        /,
        *,
        id: str | None = ...,
        **options: Unpack[TaskRunOptions],
    ) -> R: ...
    @overload
    def __call__(
        self: types.Takes2[A, B, R],
        a: A,
        b: B,
        /,
        *,
        id: str | None = ...,
        **options: Unpack[TaskRunOptions],
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
        **options: Unpack[TaskRunOptions],
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
        **options: Unpack[TaskRunOptions],
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


@dataclass(frozen=True, slots=True)
class CallParameters(FlowParameters):
    """The parameters of a workflow that makes a single call of a task.

    The input of the workflow is a dict of the call's arguments by the names of the
    parameters. Arguments that equal their default are left out. So if a parameter with
    a default is added to the function later, the same call still has the same input.

    Args:
        bindable: The parameters of the task's function that the caller passes,
            including the instance that a method is bound to.
        passed: The same parameters in the form in which the task takes them: those
            after a parameter that the run fills in are passed by keyword.
        instance: The instance in a tuple, which is empty if the task is unbound.
    """

    bindable: inspect.Signature = _ANY
    passed: inspect.Signature = _ANY
    instance: tuple[Any, ...] = ()

    @property
    def is_one(self) -> bool:
        """False, because the input is always a dict."""
        return False

    def input_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the input of a run with these arguments.

        Raises:
            TypeError: The arguments do not match the signature.
        """
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}{self._hint(kwargs)}") from None
        bound = self.bindable.bind(*self.instance, *args, **kwargs)
        parameters = [self.bindable.parameters[name] for name in bound.arguments]
        has_further = any(
            parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters
        )
        run_input = {}
        for parameter in parameters:
            argument = bound.arguments[parameter.name]
            # Even if it equals its default, a positional argument that is followed by
            # another one cannot be left out.
            is_placed = parameter.kind is parameter.POSITIONAL_ONLY
            if has_further and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                is_placed = True
            if is_placed or not is_default(argument, parameter.default):
                run_input[parameter.name] = argument
        return run_input

    def arguments_of(self, run_input: Any) -> Any:
        """Return the arguments of the call for an input of the workflow. The input is a
        dict as `input_of` returns it, or the value of the only parameter, if it was
        passed to `invoke`.
        """
        if not isinstance(run_input, dict):
            run_input = self.input_of((run_input,), {})
        bound = inspect.BoundArguments(self.passed, run_input)
        return Arguments(bound.args, bound.kwargs)


def call_parameters_of(task: Any, instance: tuple[Any, ...]) -> CallParameters:
    """Return the parameters of the workflow that makes a single call of *task*.

    Args:
        task: The task that the workflow calls.
        instance: The instance in a tuple, which is empty if the task is unbound.
    """
    (callee,) = task.node.steps
    filled_in = {injection.name for injection in callee.injections}
    function: Any = callee.func or callee.coroutine
    try:
        parameters = [*signature_of(function).parameters.values()]
    except (TypeError, ValueError):
        parameters = [*_ANY.parameters.values()]
    bindable: list[inspect.Parameter] = []
    passed: list[inspect.Parameter] = []
    is_by_name = False
    for parameter in parameters:
        if parameter.name in filled_in:
            is_by_name = True
            continue
        bindable.append(parameter)
        if is_by_name and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            passed.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
        else:
            passed.append(parameter)
    return CallParameters(
        task.name,
        inspect.Signature(bindable[len(instance) :]),
        bindable=inspect.Signature(bindable),
        passed=inspect.Signature(passed),
        instance=instance,
    )


def flow_of_call(task: Any, parameters: CallParameters, store: Store) -> Flow[..., Any]:
    """Return the workflow that makes a single call of *task*.

    Args:
        task: The task, which is not bound to an instance.
        parameters: The parameters of the workflow.
        store: The store of the runs, or None to store nothing.
    """

    def body(*args: Any, **kwargs: Any) -> Any:
        result = task(*args, **kwargs).result()
        return entrypoint.final(value=result, save=None)

    # The body gets the module name of the task, because it belongs to that task alone.
    # Its name contains a space, so no definition in that module can have the same name.
    module, _ = definition_of(task.func)
    body.__module__ = module
    body.__qualname__ = f"run {task.name}"
    body.__name__ = task.name
    body.__doc__ = task.__doc__
    if store == DEFAULT_STORE:
        # The import is done here, because the module imports the storage engine, which
        # other calls do not need.
        from flowpregel.func.default_store import default_store  # noqa: PLC0415

        store = default_store(f"{task.name}.run")
    flow: Flow[..., Any] = flow_of_body(
        EntrypointOptions(checkpointer=store), body, parameters
    )
    # The identity of the runs is that of the task's function. Its field `completed` (a
    # function that adds defaults to a recorded input) stays unset, because this
    # workflow leaves arguments that equal their defaults out of the input.
    flow.once = run_identity_of(task.func, task.name, names(task.options.adopts))
    flow.expression = f"{task.name}.as_flow(...)"
    return flow


def run_of_call(
    task: Any,
    parameters: CallParameters,
    name: Literal["run", "arun"],
) -> Any:
    """Return the method *name* of *task*, with the docstring of the public property
    that returns it, and with the signature of the task.
    """
    arguments = parameters.signature.parameters

    def prepared(kwargs: dict[str, Any]) -> Any:
        """Take the option ``store`` out of *kwargs*, make the workflow of the call, and
        return the method of that workflow.
        """
        run_id = None
        if "id" not in arguments:
            run_id = kwargs.get("id")
        store = None if run_id is None else DEFAULT_STORE
        if "store" not in arguments:
            store = kwargs.pop("store", store)
        if store is None and run_id is not None:
            raise ConfigurationError(
                f"{task.name}.{name}(store=None, id={run_id!r}): nothing is stored, so "
                "leave out the id, or pass the path of a folder, such as 'runs.lmdb'"
            )
        return getattr(task.as_flow(store), name)

    def run(*args: Any, **kwargs: Any) -> Any:
        with UsersFrames():
            return prepared(kwargs)(*args, **kwargs)

    async def arun(*args: Any, **kwargs: Any) -> Any:
        with UsersFrames():
            return await prepared(kwargs)(*args, **kwargs)

    method: Any = run if name == "run" else arun
    method.__doc__ = getattr(type(task), name).__doc__
    method.__qualname__ = f"{task.name}.{name}"
    method.__signature__ = parameters.signature_with({**RUN_OPTIONS, "store": None})
    return method
