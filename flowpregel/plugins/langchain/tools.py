"""`ToolNode`, which calls the tools that a model requests, and passes parameters from
the run to them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
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

from flowpregel.config import get_config
from flowpregel.errors import ConfigurationError, is_invalid_resume
from flowpregel.graph import END
from flowpregel.runtime import (
    Runtime,
    get_runtime,
    has_answers,
    is_inside_run,
    number_interrupts_apart,
)
from flowpregel.types import Command, Send

ContextT = TypeVar("ContextT", default=Any)
StateT = TypeVar("StateT", default=Any)
Handling = (
    bool | str | type[Exception] | tuple[type[Exception], ...] | Callable[[Any], str]
)

MISSING: Final = object()
"""The marker for a value that the run does not have."""
ONE_CALL: Final = "tool_call_with_context"
"""The ``__type`` of a tool node's input that consists of one tool call and the state.
"""


class InjectedState(InjectedToolArg):
    """A marker for a tool's parameter that gets the state.

    Annotate the parameter with ``Annotated[dict, InjectedState]``.

    Args:
        field: The key of the state to pass; None: the whole state.

    Example:
        >>> from typing import Annotated
        >>> from langchain_core.messages import AIMessage
        >>> from flowpregel.plugins.langchain import ToolNode
        >>> def count(messages: Annotated[list, InjectedState("messages")]) -> int:
        ...     "Count the messages."
        ...     return len(messages)
        >>> call = {"name": "count", "args": {}, "id": "1"}
        >>> state = {"messages": [AIMessage("", tool_calls=[call])]}
        >>> ToolNode([count]).invoke(state)["messages"][0].content
        '1'
    """

    def __init__(self, field: str | None = None) -> None:
        self.field = field


class InjectedStore(InjectedToolArg):
    """A marker for a tool's parameter that gets the graph's long-term store.

    Example:
        >>> from typing import Annotated, Any
        >>> from flowpregel.plugins.langchain import ToolNode
        >>> def recall(key: str, store: Annotated[Any, InjectedStore()]) -> str:
        ...     "Recall a note."
        ...     return store.get(("notes",), key).value["text"]
        >>> recall_tool = ToolNode([recall]).tools_by_name["recall"]
        >>> list(recall_tool.tool_call_schema.model_fields)  # the model fills these
        ['key']
    """


@dataclass(frozen=True, kw_only=True)
class ToolRuntime(
    Runtime[ContextT], _DirectlyInjectedToolArg, Generic[ContextT, StateT]
):
    """The runtime of a run for tools; parameters with this annotation get it."""

    state: StateT
    """The state of the graph, or the messages."""
    config: RunnableConfig
    """The config of the run."""
    tool_call_id: str | None
    """The id of the requested call."""
    tools: list[BaseTool] = field(default_factory=list)
    """The tools of the node."""


class ToolNode(Runnable[Any, Any]):
    """A node that calls the tools that the last `AIMessage` requests, in parallel.

    Its input is a state with messages, a list of messages, or a list of tool calls. It
    returns the answers in the same form: a dict, or a list of `ToolMessage`. Tools may
    return a `Command`, or a list of commands and messages; then the node returns those.

    Args:
        tools: The tools, or functions to make tools of.
        name: The name of the node.
        tags: Without effect; LangGraph's programs pass it.
        handle_tool_errors: The errors that the model gets as an answer: a type or a
            tuple of types; True: all; False: none; a text: all, and the answer is the
            text; a function: those that its parameter is annotated with, and the answer
            is its result. By default wrong arguments. Any other error fails the node.
        messages_key: The key of the state that holds the messages.

    Example:
        >>> from langchain_core.messages import AIMessage
        >>> def double(number: int) -> int:
        ...     "Double a number."
        ...     return 2 * number
        >>> call = {"name": "double", "args": {"number": 4}, "id": "1"}
        >>> request = AIMessage("", tool_calls=[call])
        >>> ToolNode([double]).invoke([request])[0].content
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
        self.name: str = name
        self.tools_by_name: dict[str, BaseTool] = {}
        self._markers: dict[str, dict[str, Any]] = {}
        for candidate in tools:
            tool = candidate
            if not isinstance(tool, BaseTool):
                tool = make_tool(tool)
            self.tools_by_name[tool.name] = tool
            self._markers[tool.name] = _markers_of(tool)
        self._handling = handle_tool_errors
        self._key = messages_key

    def invoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        **_: Any,
    ) -> Any:
        """Call the tools that *input* requests, and return the answers.

        Args:
            input: A state with messages, a list of messages, or a list of tool calls.
                Of messages, the last `AIMessage` requests the tools.
            config: The config of the run, which the tools get.

        Raises:
            ConfigurationError: Nothing requests tools, or a tool needs a part of the
                state or the run that does not exist.
            Exception: An error of a tool that is not handled.
        """
        calls, runtimes = self._requests(input, config)
        with get_executor_for_config(config) as pool:
            call_all = map if has_answers() else pool.map
            answers = list(
                call_all(
                    self._call,
                    calls,
                    runtimes,
                )
            )
        return self._output(answers, input)

    async def ainvoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        **_: Any,
    ) -> Any:
        """Call the tools as `invoke` does, on the running event loop."""
        calls, runtimes = self._requests(input, config)
        coroutines = map(self._acall, calls, runtimes)
        answers: list[Any]
        if has_answers():
            answers = [await coroutine for coroutine in coroutines]
            return self._output(answers, input)
        # All tools are awaited even if one of them fails, because no tool may run
        # longer than the node.
        answers = await asyncio.gather(*coroutines, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return self._output(answers, input)

    def _call(
        self,
        call: ToolCall,
        runtime: ToolRuntime[Any, Any],
    ) -> list[Any]:
        tool, tool_input = self._prepared(call, runtime)
        try:
            response = tool.invoke(tool_input, runtime.config)
            return self._named(response, call)
        except Exception as error:  # noqa: BLE001 - it is raised again, or an answer
            return self._error_answer(error, call)

    async def _acall(
        self,
        call: ToolCall,
        runtime: ToolRuntime[Any, Any],
    ) -> list[Any]:
        tool, tool_input = self._prepared(call, runtime)
        try:
            response = await tool.ainvoke(tool_input, runtime.config)
            return self._named(response, call)
        except Exception as error:  # noqa: BLE001 - it is raised again, or an answer
            return self._error_answer(error, call)

    # ------------------------------------------------------------ the input of tools

    def _requests(
        self,
        input: Any,
        config: RunnableConfig | None,
    ) -> tuple[Sequence[ToolCall], list[ToolRuntime[Any, Any]]]:
        """Return the calls that *input* requests, and a runtime for each."""
        calls, state = self._calls_and_state(input)
        runtime: Runtime[Any] = Runtime()
        run_config = cast(RunnableConfig, {})
        if is_inside_run():
            runtime = get_runtime()
            run_config = cast(RunnableConfig, get_config())
        shared = ToolRuntime[Any, Any](
            **{field.name: getattr(runtime, field.name) for field in fields(runtime)},
            state=state,
            config=without_run_id(config or run_config),
            tool_call_id=None,
            tools=list(self.tools_by_name.values()),
        )
        return calls, [replace(shared, tool_call_id=call["id"]) for call in calls]

    def _calls_and_state(self, input: Any) -> tuple[Sequence[ToolCall], Any]:
        """Return the calls that *input* requests, and the state for their tools."""
        if isinstance(input, Mapping) and input.get("__type") == ONE_CALL:
            return [input["tool_call"]], input["state"]
        if _is_list_of_calls(input):
            return input, {}
        messages = input
        if not isinstance(input, list):
            messages = part_of(
                input,
                self._key,
                (),
            )
        for message in reversed(messages):
            if isinstance(message, AIMessage):
                return message.tool_calls, input
        raise ConfigurationError(
            "ToolNode calls what an AIMessage asks for, "
            f"and found none in {self._key!r}"
        )

    def _prepared(
        self,
        call: ToolCall,
        runtime: ToolRuntime[Any, Any],
    ) -> tuple[Runnable[Any, Any], dict[str, Any]]:
        """Return the tool of *call*, and its input with parameters from the run."""
        if not has_answers():
            # If several calls interrupt, the first call's question is shown. Once it is
            # answered, the calls run one after the other and find their answers in that
            # order.
            number_interrupts_apart()
        markers = self._markers.get(call["name"], {})
        # Arguments for injected parameters are dropped, because a model must not
        # replace a value of the run by one of its own.
        arguments = {
            key: value for key, value in call["args"].items() if key not in markers
        }
        for key, marker in markers.items():
            value = self._injected(marker, runtime)
            # A missing value is not passed: the tool itself reports it, unless the
            # parameter has a default.
            if value is not MISSING:
                arguments[key] = value
        tool = self.tools_by_name.get(call["name"]) or RunnableLambda(self._unknown)
        return tool, {**call, "args": arguments, "type": "tool_call"}

    def _injected(
        self,
        marker: Any,
        runtime: ToolRuntime[Any, Any],
    ) -> Any:
        """Return the run's value for a parameter with *marker*, or `MISSING`."""
        if _is_a(marker, ToolRuntime):
            return runtime
        if _is_a(marker, InjectedStore):
            return MISSING if runtime.store is None else runtime.store
        if not _is_a(marker, InjectedState):
            return MISSING
        state = runtime.state
        if isinstance(state, list):
            state = {self._key: state}
        field_name = getattr(marker, "field", None)
        if field_name:
            return part_of(
                state,
                field_name,
                MISSING,
            )
        return state

    def _unknown(self, call: ToolCall) -> ToolMessage:
        names = ", ".join(self.tools_by_name)
        text = f"There is no tool {call['name']!r}; the tools are: {names}"
        return _error_message(call, text)

    # ------------------------------------------------------------ the answers of tools

    def _named(
        self,
        response: Any,
        call: ToolCall,
    ) -> list[Any]:
        """Return the parts of *response*. In the answers to *call*, the name of the
        tool is set.
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

    def _error_answer(
        self,
        error: Exception,
        call: ToolCall,
    ) -> list[ToolMessage]:
        """Return the answer to the model about *error*.

        Raises:
            Exception: The node does not handle the error, or the error means that an
                answer to a question of the tool has the wrong form.
        """
        handling = self._handling
        text = repr(error)
        is_handled = isinstance(error, _handled_types(handling))
        if is_invalid_resume(error):
            is_handled = False
        if isinstance(error, ValidationError):
            text = self._faults(error, call)
            is_handled = is_handled and text != ""
        if not is_handled:
            raise error
        if isinstance(handling, str):
            text = handling
        elif callable(handling) and not isinstance(handling, type):
            text = handling(error)
        else:
            text = (
                f"Tool {call['name']!r} failed: {text}. "
                "Correct the mistake and try again."
            )
        return [_error_message(call, text)]

    def _faults(
        self,
        error: ValidationError,
        call: ToolCall,
    ) -> str:
        """Return the faults in the arguments that the model passed. Faults in arguments
        from the run are left out.
        """
        injected = self._markers[call["name"]]
        faults = []
        for fault in error.errors():
            location = fault["loc"]
            if location and location[0] in injected:
                continue
            path = ".".join(str(step) for step in location)
            faults.append(f"{path}: {fault['msg']}")
        return "; ".join(faults)

    def _output(
        self,
        answers: Sequence[list[Any]],
        input: Any,
    ) -> Any:
        """Return the output of the node. Messages are a bare list if *input* is a list
        of messages, or else a dict with the key of the messages.
        """
        parts = list(chain.from_iterable(answers))
        is_bare = isinstance(input, list) and not _is_list_of_calls(input)
        if not any(isinstance(part, Command) for part in parts):
            return parts if is_bare else {self._key: parts}
        return self._output_with_commands(parts, is_bare)

    def _output_with_commands(
        self,
        parts: Sequence[Any],
        is_bare: bool,
    ) -> list[Any]:
        """Return messages and commands as updates. Commands that only send to the
        parent graph are merged into one.
        """
        output: list[Any] = []
        sends: list[Send] = []
        for part in parts:
            if _is_send_to_parent(part):
                sends += part.goto
            elif isinstance(part, Command):
                output.append(part)
            else:
                output.append([part] if is_bare else {self._key: [part]})
        if sends:
            # Only one command can leave the graph, so the commands that only send are
            # merged.
            output.append(Command(graph=Command.PARENT, goto=sends))
        return output


def tools_condition(
    state: Any,
    messages_key: str = "messages",
) -> str:
    """Return ``"tools"`` if the last message requests tools, otherwise `END`.

    Args:
        state: A state with messages, or a list of messages.
        messages_key: The key of the state that holds them.

    Raises:
        ConfigurationError: There are no messages.

    Example:
        >>> from langchain_core.messages import AIMessage
        >>> call = {"name": "double", "args": {"number": 4}, "id": "1"}
        >>> tools_condition({"messages": [AIMessage("", tool_calls=[call])]})
        'tools'
        >>> tools_condition({"messages": [AIMessage("done")]})
        '__end__'
    """
    messages = state if isinstance(state, list) else part_of(state, messages_key)
    if not messages:
        raise ConfigurationError(
            f"tools_condition found no messages under {messages_key!r}"
        )
    return "tools" if getattr(messages[-1], "tool_calls", None) else END


def part_of(
    state: Any,
    key: str,
    default: Any = None,
) -> Any:
    """Return the value of *key* in *state*, a dict or an object."""
    if isinstance(state, Mapping):
        return state.get(key, default)
    return getattr(state, key, default)


def without_run_id(config: RunnableConfig) -> RunnableConfig:
    """Return *config* without ``run_id``, for nested calls, because LangChain accepts a
    run id for one call only.
    """
    nested = {key: value for key, value in config.items() if key != "run_id"}
    return cast(RunnableConfig, nested)


def _is_list_of_calls(input: Any) -> bool:
    if not isinstance(input, list) or not input:
        return False
    return bool(part_of(input[-1], "type") == "tool_call")


def _is_send_to_parent(part: Any) -> bool:
    """Return whether *part* is a command that only sends to the parent graph."""
    if not isinstance(part, Command):
        return False
    if part.update is not None or part.graph != Command.PARENT:
        return False
    goto = part.goto
    return isinstance(goto, list) and all(isinstance(item, Send) for item in goto)


def _error_message(
    call: ToolCall,
    text: str,
) -> ToolMessage:
    return ToolMessage(
        text,
        name=call["name"],
        tool_call_id=call["id"],
        status="error",
    )


def _markers_of(tool: BaseTool) -> dict[str, Any]:
    """Return the markers of the parameters that *tool* gets from the run, by name."""
    function = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    annotations: dict[str, Any] = {}
    if function is not None:
        annotations = get_type_hints(function, include_extras=True)
    annotations |= get_all_basemodel_annotations(tool.get_input_schema())
    markers = {}
    for name, annotation in annotations.items():
        marker = _marker_in(annotation)
        if marker is not None:
            markers[name] = marker
    return markers


def _marker_in(annotation: Any) -> Any:
    """Return the marker in an annotation, or in its arguments, if there is one."""
    for part in (annotation, get_origin(annotation)):
        if _is_a(part, InjectedToolArg) or _is_a(part, _DirectlyInjectedToolArg):
            return part
    for argument in get_args(annotation):
        marker = _marker_in(argument)
        if marker:
            return marker
    return None


def _is_a(
    marker: Any,
    kind: type,
) -> bool:
    """Return whether *marker* is of the class *kind*, or is that class."""
    if isinstance(marker, type):
        return issubclass(marker, kind) or isinstance(marker, kind)
    return isinstance(marker, kind)


def _handled_types(handling: Any) -> tuple[type[Exception], ...]:
    """Return the types of errors that the model gets as answers."""
    if isinstance(handling, tuple):
        return handling
    if isinstance(handling, type):
        return (handling,)
    hints: dict[str, Any] = {}
    if inspect.isroutine(handling):
        hints = get_type_hints(handling)
    hints.pop("return", None)
    for hint in hints.values():
        # The type of the first parameter decides which errors the function handles.
        return get_args(hint) or (hint,)
    return (Exception,) if handling else ()
