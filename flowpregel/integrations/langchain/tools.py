"""`ToolNode`: calls the tools that a model asks for, and gives them what the run
has.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Generic, cast, get_args, get_origin, get_type_hints

from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.runnables.config import get_executor_for_config
from langchain_core.tools import BaseTool, InjectedToolArg
from langchain_core.tools import tool as make_tool
from langchain_core.tools.base import (
    _DirectlyInjectedToolArg,
    get_all_basemodel_annotations,
)
from pydantic import ValidationError
from typing_extensions import TypeVar

from flowpregel._core.commands import Command, Send
from flowpregel.channels.base import MISSING
from flowpregel.context import config_of, current
from flowpregel.errors import ConfigurationError, is_invalid_resume
from flowpregel.pregel.definition import END
from flowpregel.runtime import Runtime, runtime_of

ContextT = TypeVar("ContextT", default=Any)
StateT = TypeVar("StateT", default=Any)
Handling = (
    bool | str | type[Exception] | tuple[type[Exception], ...] | Callable[[Any], str]
)

ONE_CALL: Final = "tool_call_with_context"
"""The ``__type`` of what an agent sends its tools: one call, and the state."""


class InjectedState(InjectedToolArg):
    """Marks a tool's parameter that is given the state: ``Annotated[dict,
    InjectedState]``.

    Args:
        field: The key of the state it is given; None: all of it.
    """

    def __init__(self, field: str | None = None) -> None:
        self.field = field


class InjectedStore(InjectedToolArg):
    """Marks a tool's parameter that is given the graph's long-term store."""


@dataclass(frozen=True, kw_only=True)
class ToolRuntime(
    Runtime[ContextT], _DirectlyInjectedToolArg, Generic[ContextT, StateT]
):
    """What a run offers its tools; a parameter that is annotated with it is given
    it.
    """

    state: StateT
    config: RunnableConfig
    tool_call_id: str | None
    tools: list[BaseTool] = field(default_factory=list)


class ToolNode(Runnable[Any, Any]):
    """A node that calls the tools the last `AIMessage` asks for, side by side.

    It takes a state with messages, a list of messages, or a list of tool calls, and
    returns the answers in the same form: a dict, or a list of `ToolMessage`. Tools may
    return a `Command`, or a list of commands and messages; then the node returns those.

    Args:
        tools: The tools, or functions to make tools of.
        name: The name of the node.
        tags: Of no effect; LangGraph's programs pass it.
        handle_tool_errors: Which errors are told to the model, as an answer: those of a
            type or a tuple of types; True: all; False: none; a text: all, in these
            words; a function: those its parameter is annotated with, in the words it
            returns. By default wrong arguments. Any other error fails the node.
        messages_key: The key of the state that holds the messages.

    Example:
        >>> from langchain_core.messages import AIMessage
        >>> def double(number: int) -> int:
        ...     "Double a number."
        ...     return 2 * number
        >>> call = {"name": "double", "args": {"number": 4}, "id": "1"}
        >>> asked = AIMessage("", tool_calls=[call])
        >>> ToolNode([double]).invoke([asked])[0].content
        '8'
    """

    def __init__(
        self,
        tools: Sequence[BaseTool | Callable[..., Any]],
        *,
        name: str = "tools",
        tags: Sequence[str] | None = None,
        handle_tool_errors: Handling = ValidationError,
        messages_key: str = "messages",
    ) -> None:
        made = [
            tool if isinstance(tool, BaseTool) else make_tool(tool) for tool in tools
        ]
        self.name = name
        self.tools_by_name: dict[str, BaseTool] = {tool.name: tool for tool in made}
        self._filled_in = {tool.name: _filled_in(tool) for tool in made}
        self._handling = handle_tool_errors
        self._key = messages_key

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        """Call the tools that *input* asks for, and return the answers.

        Raises:
            ConfigurationError: Nothing asks for tools, or a tool needs what is not
                there.
            Exception: What a tool raised that is not handled.
        """
        calls, runtimes = self._asked(input, config)
        with get_executor_for_config(config) as pool:
            call_all = map if _has_answers() else pool.map
            return self._output([*call_all(self._call, calls, runtimes)], input)

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **_: Any
    ) -> Any:
        """`invoke`, on the running event loop."""
        calls, runtimes = self._asked(input, config)
        made = map(self._acall, calls, runtimes)
        if _has_answers():
            return self._output([await call for call in made], input)
        # All of them are waited for, also if one fails: what it does must not outlive
        # the node.
        answers: list[Any] = await asyncio.gather(*made, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return self._output(answers, input)

    def _call(self, call: ToolCall, runtime: ToolRuntime[Any, Any]) -> list[Any]:
        tool, given = self._prepared(call, runtime)
        try:
            return self._named(tool.invoke(given, runtime.config), call)
        except Exception as error:  # noqa: BLE001 - raised again, or told to the model
            return self._refused(error, call)

    async def _acall(self, call: ToolCall, runtime: ToolRuntime[Any, Any]) -> list[Any]:
        tool, given = self._prepared(call, runtime)
        try:
            return self._named(await tool.ainvoke(given, runtime.config), call)
        except Exception as error:  # noqa: BLE001 - raised again, or told to the model
            return self._refused(error, call)

    # ------------------------------------------------------------ what tools are given

    def _asked(
        self, given: Any, config: RunnableConfig | None
    ) -> tuple[Sequence[ToolCall], list[ToolRuntime[Any, Any]]]:
        """Return the calls that *given* asks for, and what the run offers each."""
        calls: Sequence[ToolCall]
        state, scope = given, current.get()
        if isinstance(given, Mapping) and given.get("__type") == ONE_CALL:
            calls, state = [given["tool_call"]], given["state"]
        elif _are_calls(given):
            calls, state = given, {}
        else:
            messages = (
                given if isinstance(given, list) else part_of(given, self._key, ())
            )
            asking = next(
                (each for each in reversed(messages) if isinstance(each, AIMessage)),
                None,
            )
            if asking is None:
                raise ConfigurationError(
                    "ToolNode calls what an AIMessage asks for, and found none in "
                    f"{self._key!r}"
                )
            calls = asking.tool_calls
        runtime: Runtime[Any] = Runtime() if scope is None else runtime_of(scope)
        config = config or cast(
            RunnableConfig, {} if scope is None else config_of(scope)
        )
        offered = ToolRuntime[Any, Any](
            **{each.name: getattr(runtime, each.name) for each in fields(runtime)},
            state=state,
            config=without_run_id(config),
            tool_call_id=None,
            tools=[*self.tools_by_name.values()],
        )
        return calls, [replace(offered, tool_call_id=call["id"]) for call in calls]

    def _prepared(
        self, call: ToolCall, runtime: ToolRuntime[Any, Any]
    ) -> tuple[Runnable[Any, Any], dict[str, Any]]:
        """Return the tool that *call* is for, and the call with what the run fills
        in.
        """
        scope = current.get()
        if scope is not None and not scope.job.task.answers:
            # It runs beside others, and asks as if it were the first. Of several that
            # ask, the first call's question is shown; once it is answered, the calls
            # are made one after the other, and find their answers in that order.
            current.set(replace(scope))
        filled_in = self._filled_in.get(call["name"], {})
        # What the model gives for them is left out: it must not pass for the run's.
        arguments = {
            key: value for key, value in call["args"].items() if key not in filled_in
        }
        for key, marker in filled_in.items():
            value: Any = MISSING
            if _is_a(marker, ToolRuntime):
                value = runtime
            elif _is_a(marker, InjectedStore):
                value = MISSING if runtime.store is None else runtime.store
            elif _is_a(marker, InjectedState):
                state = runtime.state
                value = {self._key: state} if isinstance(state, list) else state
                if name := getattr(marker, "field", None):
                    value = part_of(value, name, MISSING)
            # What is missing the tool itself finds, unless it has a default for it.
            if value is not MISSING:
                arguments[key] = value
        tool = self.tools_by_name.get(call["name"]) or RunnableLambda(self._unknown)
        return tool, {**call, "args": arguments, "type": "tool_call"}

    def _unknown(self, call: ToolCall) -> ToolMessage:
        known = ", ".join(self.tools_by_name)
        return _failed(
            call, f"There is no tool {call['name']!r}; the tools are: {known}"
        )

    # ------------------------------------------------------------ what tools return

    def _named(self, response: Any, call: ToolCall) -> list[Any]:
        """Return the parts of *response*; messages that answer *call* get the tool's
        name.
        """
        parts = response if isinstance(response, list) else [response]
        for part in parts:
            update = part.update if isinstance(part, Command) else ()
            if isinstance(update, Mapping):
                update = update.get(self._key)
            for message in update or ():
                if getattr(message, "tool_call_id", None) == call["id"]:
                    message.name = call["name"]
        return parts

    def _refused(self, error: Exception, call: ToolCall) -> list[ToolMessage]:
        """Return what the model is told of *error*.

        Raises:
            Exception: It is not told; or an answer to a question of the tool does not
                fit.
        """
        text, handling = repr(error), self._handling
        is_told = not is_invalid_resume(error) and isinstance(
            error, _handled_types(handling)
        )
        if isinstance(error, ValidationError):
            # Of what the run fills in, the model knows nothing.
            hidden = self._filled_in[call["name"]]
            faults = [
                fault
                for fault in error.errors()
                if (*fault["loc"], "")[0] not in hidden
            ]
            text = "; ".join(
                f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in faults
            )
            is_told = is_told and bool(faults)
        if not is_told:
            raise error
        if isinstance(handling, str):
            text = handling
        elif callable(handling) and not isinstance(handling, type):
            text = handling(error)
        else:
            text = (
                f"Tool {call['name']!r} failed: {text}. Correct the mistake and try "
                "again."
            )
        return [_failed(call, text)]

    def _output(self, answers: Sequence[list[Any]], given: Any) -> Any:
        """Return what the node returns, in the form of its input."""
        parts = [part for answer in answers for part in answer]
        is_bare = isinstance(given, list) and not _are_calls(given)
        if not any(isinstance(part, Command) for part in parts):
            return parts if is_bare else {self._key: parts}
        output: list[Any] = []
        sends: list[Send] = []
        for part in parts:
            if not isinstance(part, Command):
                output.append([part] if is_bare else {self._key: [part]})
                continue
            goto: Any = (
                part.goto
                if part.update is None and part.graph == Command.PARENT
                else None
            )
            if isinstance(goto, list) and all(
                isinstance(packet, Send) for packet in goto
            ):
                sends += goto
            else:
                output.append(part)
        # Only one command can leave the graph: those that just send are made one.
        return [*output, Command(graph=Command.PARENT, goto=sends)] if sends else output


def tools_condition(state: Any, messages_key: str = "messages") -> str:
    """Return ``"tools"`` if the last message asks for tools, and `END` if not.

    Args:
        state: A state with messages, or a list of messages.
        messages_key: The key of the state that holds them.

    Raises:
        ConfigurationError: There are no messages.
    """
    messages = state if isinstance(state, list) else part_of(state, messages_key)
    if not messages:
        raise ConfigurationError(
            f"tools_condition found no messages under {messages_key!r}"
        )
    return "tools" if getattr(messages[-1], "tool_calls", None) else END


def part_of(state: Any, key: str, default: Any = None) -> Any:
    """Return what *state*, a dict or an object, has under *key*."""
    return (
        state.get(key, default)
        if isinstance(state, Mapping)
        else getattr(state, key, default)
    )


def without_run_id(config: RunnableConfig) -> RunnableConfig:
    """Return *config* for what runs within: LangChain takes a ``run_id`` for that of
    one call.
    """
    return cast(
        RunnableConfig, {key: value for key, value in config.items() if key != "run_id"}
    )


def _are_calls(given: Any) -> bool:
    return (
        isinstance(given, list)
        and bool(given)
        and part_of(given[-1], "type") == "tool_call"
    )


def _failed(call: ToolCall, text: str) -> ToolMessage:
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"], status="error")


def _has_answers() -> bool:
    """Return whether the task was asked something that is answered by now."""
    scope = current.get()
    return scope is not None and bool(scope.job.task.answers)


def _filled_in(tool: BaseTool) -> dict[str, Any]:
    """Return the parameters of *tool* that the model does not give, and what marks
    them.
    """
    function = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    annotations = (
        {} if function is None else get_type_hints(function, include_extras=True)
    )
    annotations |= get_all_basemodel_annotations(tool.get_input_schema())
    marked = {name: _marker_in(annotation) for name, annotation in annotations.items()}
    return {name: marker for name, marker in marked.items() if marker is not None}


def _marker_in(annotation: Any) -> Any:
    for part in (annotation, get_origin(annotation)):
        if _is_a(part, InjectedToolArg) or _is_a(part, _DirectlyInjectedToolArg):
            return part
    return next(filter(None, map(_marker_in, get_args(annotation))), None)


def _is_a(marker: Any, kind: type) -> bool:
    """Return whether *marker* is of the class *kind*, or is that class."""
    return isinstance(marker, kind) or (
        isinstance(marker, type) and issubclass(marker, kind)
    )


def _handled_types(handling: Any) -> tuple[type[Exception], ...]:
    """Return the errors that are told to the model."""
    if isinstance(handling, type | tuple):
        return handling if isinstance(handling, tuple) else (handling,)
    hints = get_type_hints(handling) if inspect.isroutine(handling) else {}
    hints.pop("return", None)
    for hint in hints.values():
        return get_args(hint) or (hint,)
    return (Exception,) if handling else ()
