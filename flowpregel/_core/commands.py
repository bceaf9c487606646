"""Callables, commands and questions, with which a run and its user's code interact."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, Literal, TypeVar

from flowpregel._annotations import signature_of
from flowpregel._code.values import target_of_partial
from flowpregel.errors import ConfigurationError
from flowpregel.policies import TimeoutPolicy

Destination = TypeVar("Destination", bound=Hashable)
_ANY = frozenset[str]()
_INJECTED: dict[str, frozenset[str]] = {
    "config": frozenset({"RunnableConfig", "Config", "dict", "Mapping", "Any"}),
    "writer": frozenset({"StreamWriter", "Callable", "Any"}),
    "store": frozenset({"BaseStore", "Any"}),
    "error": frozenset({"NodeError", "Any"}),
    "previous": _ANY,
    "runtime": _ANY,
    "context": _ANY,
}
"""The names of the parameters that a run fills in, each with the annotations that the
parameter may have. An empty set allows any annotation.
"""


@dataclass(frozen=True, slots=True, repr=False)
class Send:
    """Request one task of *node* in the next superstep, with *arg* as the input.

    Args:
        node: The name of the node to run.
        arg: The input of the node, in place of the values of channels.
        timeout: Overrides the node's timeout for this task (seconds, a
            ``timedelta`` or a `TimeoutPolicy`).

    Example:
        >>> Send("measure", {"path": "a.py"})
        Send(node='measure', arg={'path': 'a.py'})
    """

    node: str
    arg: Any
    timeout: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "timeout", TimeoutPolicy.coerce(self.timeout))

    def __repr__(self) -> str:
        timeout = f", timeout={self.timeout!r}" if self.timeout else ""
        return f"Send(node={self.node!r}, arg={self.arg!r}{timeout})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Command(Generic[Destination]):
    """An instruction to a graph: update its state, go to a node, answer a question.

    Args:
        graph: None for this graph, `Command.PARENT` for its parent graph.
        update: State to write: a dict, (channel, value) pairs, or an annotated object.
        resume: The answer to the pending interrupt, or a dict of interrupt ids and
            answers.
        goto: A node name, a `Send`, or several of either.

    Example:
        >>> from typing import TypedDict
        >>> from flowpregel.graph import END, START, StateGraph
        >>> class State(TypedDict):
        ...     size: int
        >>> def halve(state: State) -> Command:
        ...     size = state["size"] // 2
        ...     return Command(update={"size": size}, goto="halve" if size > 4 else END)
        >>> graph = StateGraph(State).add_node(halve).add_edge(START, "halve")
        >>> graph.compile(executor="inline").invoke({"size": 40})
        {'size': 2}
    """

    graph: str | None = None
    update: Any = None
    resume: Any = None
    goto: Send | Sequence[Send | Destination] | Destination = ()

    PARENT: ClassVar[Literal["__parent__"]] = "__parent__"
    """The value of *graph* that means the parent graph."""

    def __repr__(self) -> str:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        parts = [f"{name}={value!r}" for name, value in values.items() if value]
        return f"Command({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A question that a task has asked.

    Args:
        value: The question: any value that a person or program can answer.
        id: The id of the question; an answer can be addressed to it.
        response_schema: The JSON schema of valid answers; None means any answer is
            valid.
    """

    value: Any
    id: str = "placeholder-id"
    response_schema: Any = field(default=None, compare=False)


# ---------------------------------------------------------------- callables


@dataclass(frozen=True, slots=True, eq=False)
class Injection:
    """A parameter that the run fills in."""

    name: str
    index: int | None
    """The position of the parameter, or None if it can only be passed by name."""
    required: bool
    optional: bool
    """True if the annotation allows None."""


@dataclass(frozen=True, slots=True, eq=False)
class CallTarget:
    """A callable, in its sync and async forms.

    Args:
        func: The sync form, or None.
        coroutine: The async form, or None.
        injections: The parameters that the run fills in.
        name: The name in messages.
        calls_items: True if the callable calls a task's function for each item of a
            chunk.
    """

    func: Callable[..., Any] | None
    coroutine: Callable[..., Any] | None
    injections: tuple[Injection, ...]
    name: str
    calls_items: bool = False


def call_target_of(target: Any, *, takes_input: bool = True) -> CallTarget:
    """Return the `CallTarget` of *target*: a callable, or an object with ``invoke`` or
    ``ainvoke``.

    Args:
        target: The node, as the user gave it.
        takes_input: True if the first parameter is the node's input, which is never
            filled in by name.

    Raises:
        ConfigurationError: *target* cannot be called.
    """
    func = _method_of(target, "invoke")
    coroutine = _method_of(target, "ainvoke")
    if not callable(func) and not callable(coroutine):
        if not callable(target):
            raise ConfigurationError(
                f"{target!r} cannot be a node: give a callable, or an object with "
                "invoke or ainvoke"
            )
        is_async = is_coroutine_function(target)
        func = None if is_async else target
        coroutine = target if is_async else None
    injections = injections_of(func or coroutine, takes_input)
    return CallTarget(func, coroutine, injections, name_of(target))


def _method_of(target: Any, name: str) -> Any:
    """Return the method *name* of *target*, or None if there is none."""
    # A `Mock` seems to have every attribute, but must be called directly. So the
    # methods of a callable are searched with `getattr_static`, which does not find the
    # attributes that a `Mock` invents.
    find = inspect.getattr_static if callable(target) else getattr
    return getattr(target, name) if find(target, name, None) else None


def is_coroutine_function(target: Any) -> bool:
    """Return whether a call of *target* returns a coroutine."""
    target = target_of_partial(target)
    call = getattr(target, "__call__", None)  # noqa: B004 - the method is inspected
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(call)


def is_generator_function(target: Any) -> bool:
    """Return whether a call of *target* returns a generator, sync or async."""
    target = target_of_partial(target)
    if not inspect.isroutine(target) and not isinstance(target, type):
        # `__call__` is inspected in place of a callable object, because `inspect` only
        # recognizes functions and methods.
        target = getattr(type(target), "__call__", target)  # noqa: B004
    return inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target)


def name_of(target: Any) -> str:
    """Return the name of a callable, as its author wrote it."""
    called = target_of_partial(target)
    names = (
        # A partial has a name of its own only if its author has set one.
        getattr(target, "__name__", None),
        getattr(called, "__name__", None),
        getattr(called, "name", None),
    )
    for name in names:
        if name and isinstance(name, str):
            return name
    return type(called).__name__


def injections_of(target: Any, takes_input: bool) -> tuple[Injection, ...]:
    """Return the parameters of *target* that the run fills in by name."""
    try:
        parameters = list(signature_of(target).parameters.values())
    except (TypeError, ValueError):
        return ()
    injections = []
    for index, parameter in enumerate(parameters):
        if takes_input and index == 0:
            continue
        injection = _injection_of(parameter, index)
        if injection is not None:
            injections.append(injection)
    return tuple(injections)


def _injection_of(parameter: inspect.Parameter, index: int) -> Injection | None:
    """Return the injection for a parameter, or None if the run does not fill it in."""
    if parameter.name not in _INJECTED:
        return None
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return None
    names = _annotation_names(parameter.annotation)
    if names and not _may_be_injected(parameter.name, names):
        return None
    is_by_name = parameter.kind is parameter.KEYWORD_ONLY
    return Injection(
        name=parameter.name,
        index=None if is_by_name else index,
        required=parameter.default is parameter.empty,
        optional=not names or "None" in names or "Any" in names,
    )


def _may_be_injected(name: str, annotation: frozenset[str]) -> bool:
    """Return whether a run fills in the parameter *name* if its annotation has these
    class names.
    """
    allowed = _INJECTED[name]
    if allowed == _ANY or annotation & allowed:
        return True
    # The annotation of a store may name a class of a particular store, such as
    # `LMDBStore`.
    return name == "store" and any(part.endswith("Store") for part in annotation)


def _annotation_names(annotation: Any) -> frozenset[str]:
    """Return the class names in an annotation (an object or a string), without modules
    and parameters.
    """
    if annotation is inspect.Parameter.empty:
        return frozenset()
    text = annotation
    if not isinstance(annotation, str):
        text = inspect.formatannotation(annotation)
    for mark in "|,[]()\"'":
        text = text.replace(mark, " ")
    words = {word.rsplit(".", 1)[-1] for word in text.split()}
    if "Optional" in words or "NoneType" in words:
        words.add("None")
    return frozenset(words)
