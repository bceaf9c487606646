"""`ToolNode`, which calls the tools that a model requests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, cast, get_args, get_type_hints

from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.runnables.config import get_executor_for_config
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as make_tool
from pydantic import ValidationError

from flowpregel.config import get_config
from flowpregel.errors import ConfigurationError, is_invalid_resume
from flowpregel.graph import END
from flowpregel.plugins.langchain.injected import (
    MISSING,
    ToolRuntime,
    injected_value,
    markers_of,
    part_of,
)
from flowpregel.plugins.langchain.requests import (
    ONE_CALL,
    AsyncToolCallWrapper,
    ToolCallRequest,
    ToolCallWrapper,
)
from flowpregel.runtime import (
    Runtime,
    get_runtime,
    has_answers,
    is_inside_run,
    number_interrupts_apart,
    read_state,
)
from flowpregel.types import Command, Send

Handling = (
    bool | str | type[Exception] | tuple[type[Exception], ...] | Callable[[Any], str]
)


class ToolNode(Runnable[Any, Any]):
    """A node that calls the tools that the last `AIMessage` requests, in parallel.

    Its input is a state with messages, a list of messages, a list of tool calls, or a
    `ToolCallWithContext`. It returns the answers in the same form: a dict, or a list of
    `ToolMessage`. Tools may return a `Command`, or a list of commands and messages;
    then the node returns those. A list of tool calls, as in ``Send("tools", [call])``,
    has no state: in a graph of its own the node reads the state, as an edge to the node
    would pass it.

    Args:
        tools: The tools, or functions to make tools of.
        name: The name of the node.
        tags: Stored without effect; LangGraph's programs pass it.
        handle_tool_errors: The errors that the model gets as an answer: a type or a
            tuple of types; True: all; False: none; a string: all, and the answer is the
            string; a function: those that its parameter is annotated with, and the
            answer is its result. By default wrong arguments. Any other error fails the
            node.
        messages_key: The key of the state that holds the messages.
        wrap_tool_call: A function that wraps each call: ``wrap(request, execute)``
            returns the answer, and ``execute(request)`` calls the tool. It may change
            the request (`ToolCallRequest.override`), call the tool several times, or
            answer without it. An error of the function is handled like an error of a
            tool.
        awrap_tool_call: The async form, for async runs. Without it, they use
            *wrap_tool_call*.

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

    reads_state: ClassVar[bool] = True
    """True, because the node may read the whole state of the graph."""

    def __init__(  # noqa: PLR0913 - LangGraph's signature
        self,
        tools: Sequence[BaseTool | Callable[..., Any]],
        *,
        name: str = "tools",
        tags: Sequence[str] | None = None,
        handle_tool_errors: Handling = ValidationError,
        messages_key: str = "messages",
        wrap_tool_call: ToolCallWrapper | None = None,
        awrap_tool_call: AsyncToolCallWrapper | None = None,
    ) -> None:
        # The attributes of a node have the same names as in LangGraph, because packages
        # read them, to make another node with the same options and more tools.
        self.name: str = name
        self.tags: Sequence[str] | None = tags
        self.tools_by_name: dict[str, BaseTool] = {}
        self._markers: dict[str, dict[str, Any]] = {}
        for candidate in tools:
            tool = candidate
            if not isinstance(tool, BaseTool):
                tool = make_tool(tool)
            self.tools_by_name[tool.name] = tool
            self._markers[tool.name] = markers_of(tool)
        self._handle_tool_errors = handle_tool_errors
        self._messages_key = messages_key
        self._wrap = wrap_tool_call
        self._awrap = awrap_tool_call

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
        requests = self._requests(input, config)
        with get_executor_for_config(config) as pool:
            call_all = map if has_answers() else pool.map
            answers = list(call_all(self._call, requests))
        return self._output(answers, input)

    async def ainvoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        **_: Any,
    ) -> Any:
        """Call the tools as `invoke` does, on the running event loop."""
        requests = self._requests(input, config)
        coroutines = map(self._acall, requests)
        answers: list[Any]
        if has_answers():
            answers = [await coroutine for coroutine in coroutines]
            return self._output(answers, input)
        # No tool may outlive the node. So if a tool raises an error, the others are
        # awaited before this error is raised.
        answers = await asyncio.gather(*coroutines, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return self._output(answers, input)

    def _call(self, request: ToolCallRequest) -> Any:
        """Return the answer to a request of a tool call, from the wrapper
        (`wrap_tool_call`) if there is one.
        """
        _number_interrupts()
        if self._wrap is None:
            return self._execute(request)
        try:
            return self._wrap(request, self._execute)
        except Exception as error:  # noqa: BLE001 - it is raised again, or an answer
            return self._wrapper_error_answer(error, request.tool_call)

    async def _acall(self, request: ToolCallRequest) -> Any:
        _number_interrupts()
        try:
            if self._awrap is not None:
                return await self._awrap(request, self._aexecute)
            if self._wrap is not None:
                return self._wrap(request, self._execute)
        except Exception as error:  # noqa: BLE001 - it is raised again, or an answer
            return self._wrapper_error_answer(error, request.tool_call)
        return await self._aexecute(request)

    def _execute(self, request: ToolCallRequest) -> Any:
        """Call the tool of a request, and return its answer."""
        tool, tool_input = self._prepared(request)
        try:
            response = tool.invoke(tool_input, request.runtime.config)
            return self._named(response, request.tool_call)
        except Exception as error:  # noqa: BLE001 - it is raised again, or an answer
            return self._error_answer(error, request)

    async def _aexecute(self, request: ToolCallRequest) -> Any:
        tool, tool_input = self._prepared(request)
        try:
            response = await tool.ainvoke(tool_input, request.runtime.config)
            return self._named(response, request.tool_call)
        except Exception as error:  # noqa: BLE001 - it is raised again, or an answer
            return self._error_answer(error, request)

    # ------------------------------------------------------------ the input of tools

    def _requests(
        self,
        input: Any,
        config: RunnableConfig | None,
    ) -> list[ToolCallRequest]:
        """Return a request for each call that *input* requests."""
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
        requests = []
        for call in calls:
            tool = self.tools_by_name.get(call["name"])
            call_runtime = replace(shared, tool_call_id=call["id"])
            requests.append(ToolCallRequest(call, tool, state, call_runtime))
        return requests

    def _calls_and_state(self, input: Any) -> tuple[Sequence[ToolCall], Any]:
        """Return the calls that *input* requests, and the state for their tools."""
        if isinstance(input, Mapping) and input.get("__type") == ONE_CALL:
            return [input["tool_call"]], input["state"]
        if _is_list_of_calls(input):
            return input, read_state()
        messages = input
        if not isinstance(input, list):
            messages = part_of(
                input,
                self._messages_key,
                (),
            )
        for message in reversed(messages):
            if isinstance(message, AIMessage):
                return message.tool_calls, input
        raise ConfigurationError(
            "ToolNode calls what an AIMessage asks for, "
            f"and found none in {self._messages_key!r}"
        )

    def _prepared(
        self, request: ToolCallRequest
    ) -> tuple[Runnable[Any, Any], dict[str, Any]]:
        """Return the tool of a request, and the input of the tool with the values of
        injected parameters.
        """
        call = request.tool_call
        markers = self._markers_in(request)
        # Arguments from the model for injected parameters are dropped, because a model
        # must not replace a value of the run.
        arguments = {
            key: value for key, value in call["args"].items() if key not in markers
        }
        for key, marker in markers.items():
            value = injected_value(
                marker,
                request.runtime,
                self._messages_key,
            )
            # A value that the run does not have is not passed, so that the tool uses
            # the parameter's default, or reports that the value is missing.
            if value is not MISSING:
                arguments[key] = value
        tool = request.tool or RunnableLambda(self._unknown)
        return tool, {**call, "args": arguments, "type": "tool_call"}

    def _markers_in(self, request: ToolCallRequest) -> Mapping[str, Any]:
        """Return the markers of the injected parameters of a request's tool. A wrapper
        may have replaced this tool.
        """
        tool = request.tool
        if tool is None:
            return {}
        if self.tools_by_name.get(tool.name) is tool and tool.name in self._markers:
            return self._markers[tool.name]
        return markers_of(tool)

    def _unknown(self, call: ToolCall) -> ToolMessage:
        names = ", ".join(self.tools_by_name)
        text = f"There is no tool {call['name']!r}; the tools are: {names}"
        return _error_message(call, text)

    # ------------------------------------------------------------ the answers of tools

    def _named(
        self,
        response: Any,
        call: ToolCall,
    ) -> Any:
        """Return *response*. If it is a `Command` with messages that answer *call*,
        these messages get the name of the tool.
        """
        if isinstance(response, list):
            return [self._named(part, call) for part in response]
        if not isinstance(response, Command):
            return response
        update = response.update
        if isinstance(update, list):
            return replace(response, update=_with_name(update, call))
        if isinstance(update, Mapping) and update.get(self._messages_key):
            messages = _with_name(update[self._messages_key], call)
            return replace(response, update={**update, self._messages_key: messages})
        return response

    def _wrapper_error_answer(
        self,
        error: Exception,
        call: ToolCall,
    ) -> ToolMessage:
        """Return the answer to the model about an *error* of the wrapper.

        Raises:
            Exception: The node does not handle the error.
        """
        # By default the node handles only errors about wrong arguments, and these were
        # handled when the tool was called.
        if self._handle_tool_errors is ValidationError or not self._handles(error):
            raise error
        return self._told(error, repr(error), call)

    def _error_answer(
        self,
        error: Exception,
        request: ToolCallRequest,
    ) -> ToolMessage:
        """Return the answer to the model about *error*.

        Raises:
            Exception: The node does not handle the error, or the error means that a
                person's answer to a question of the tool has the wrong form.
        """
        text = repr(error)
        is_handled = self._handles(error)
        if isinstance(error, ValidationError):
            text = _faults(error, self._markers_in(request))
            is_handled = is_handled and text != ""
        if not is_handled:
            raise error
        return self._told(error, text, request.tool_call)

    def _handles(self, error: Exception) -> bool:
        """Return whether the model gets an answer about *error*."""
        if is_invalid_resume(error):
            return False
        return isinstance(error, _handled_types(self._handle_tool_errors))

    def _told(
        self,
        error: Exception,
        text: str,
        call: ToolCall,
    ) -> ToolMessage:
        """Return the answer with which the model learns of an *error* that the node
        handles. *text* describes the error.
        """
        handling = self._handle_tool_errors
        if isinstance(handling, str):
            text = handling
        elif callable(handling) and not isinstance(handling, type):
            text = handling(error)
        else:
            text = (
                f"Tool {call['name']!r} failed: {text}. "
                "Correct the mistake and try again."
            )
        return _error_message(call, text)

    def _output(
        self,
        answers: Sequence[Any],
        input: Any,
    ) -> Any:
        """Return the output of the node. Messages are a bare list if *input* is a list
        of messages, or else a dict with the key of the messages.
        """
        parts: list[Any] = []
        for answer in answers:
            parts += _parts_of_answer(answer)
        is_bare = isinstance(input, list) and not _is_list_of_calls(input)
        if not any(isinstance(part, Command) for part in parts):
            return parts if is_bare else {self._messages_key: parts}
        return self._output_with_commands(parts, is_bare)

    def _output_with_commands(
        self,
        parts: Sequence[Any],
        is_bare: bool,
    ) -> list[Any]:
        """Return messages and commands as updates of the state. Commands that only send
        to the parent graph are merged into one.
        """
        output: list[Any] = []
        sends: list[Send] = []
        for part in parts:
            if _is_send_to_parent(part):
                sends += part.goto
            elif isinstance(part, Command):
                output.append(part)
            else:
                output.append([part] if is_bare else {self._messages_key: [part]})
        if sends:
            # Only one command can be sent to the parent graph, so these commands are
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
        # The annotation of the first parameter of the user's function decides which
        # errors the function handles.
        return get_args(hint) or (hint,)
    return (Exception,) if handling else ()


def _faults(
    error: ValidationError,
    injected: Mapping[str, Any],
) -> str:
    """Describe the faults in the arguments that the model has passed, without those in
    the *injected* arguments, which come from the run.
    """
    faults = []
    for fault in error.errors():
        location = fault["loc"]
        if location and location[0] in injected:
            continue
        path = ".".join(str(step) for step in location)
        faults.append(f"{path}: {fault['msg']}")
    return "; ".join(faults)


def _parts_of_answer(answer: Any) -> Sequence[Any]:
    """Return the messages and commands in the answer of a tool."""
    return answer if isinstance(answer, list) else [answer]


def _number_interrupts() -> None:
    """Number the interrupts of this tool call separately from those of other tool
    calls.

    If several calls interrupt, the first call's question is shown. Once it is answered,
    the calls run one after the other and find their answers in that order.
    """
    if not has_answers():
        number_interrupts_apart()


def _with_name(
    messages: Any,
    call: ToolCall,
) -> Any:
    """Return *messages*, with copies of the answers to *call* that have the name of the
    tool.
    """
    if not isinstance(messages, list):
        return messages
    named = []
    for message in messages:
        if getattr(message, "tool_call_id", None) == call["id"]:
            message = message.model_copy(update={"name": call["name"]})
        named.append(message)
    return named
