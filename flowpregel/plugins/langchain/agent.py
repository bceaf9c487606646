"""`create_react_agent`: a graph that calls a model, then the tools it requests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NotRequired, cast, get_type_hints

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.runnables import (
    Runnable,
    RunnableConfig,
    RunnableLambda,
    RunnableSequence,
)
from langchain_core.tools import BaseTool

# Python's own TypedDict is not used, because before Python 3.12 pydantic does not
# accept it in a tool.
from typing_extensions import TypedDict

from flowpregel.errors import ConfigurationError
from flowpregel.graph import END, CompiledStateGraph, StateGraph
from flowpregel.managed import RemainingSteps
from flowpregel.plugins.langchain.injected import part_of
from flowpregel.plugins.langchain.messages import add_langchain_messages
from flowpregel.plugins.langchain.requests import ONE_CALL
from flowpregel.plugins.langchain.tools import ToolNode, without_run_id
from flowpregel.runtime import get_runtime
from flowpregel.types import Send

Step = Runnable[Any, Any]
STRUCTURED: Final = "generate_structured_response"


class AgentState(TypedDict):
    """The state of an agent; derive from it to add keys.

    Example:
        >>> class State(AgentState):
        ...     topic: str
        >>> "messages" in State.__annotations__
        True
    """

    messages: Annotated[Sequence[BaseMessage], add_langchain_messages]
    remaining_steps: NotRequired[RemainingSteps]
    structured_response: NotRequired[Any]


def create_react_agent(  # noqa: PLR0913 - LangGraph's signature
    model: str | Step | Callable[..., Any],
    tools: Sequence[BaseTool | Callable[..., Any] | dict[str, Any]] | ToolNode,
    *,
    prompt: str | SystemMessage | Step | Callable[[Any], Any] | None = None,
    response_format: Any = None,
    pre_model_hook: Any = None,
    post_model_hook: Any = None,
    state_schema: Any = AgentState,
    context_schema: type[Any] | None = None,
    version: Literal["v1", "v2"] = "v2",
    name: str | None = None,
    executor: Any = "threads",
    **compiled: Any,
) -> CompiledStateGraph:
    """Return an agent: a graph that calls a model, then its tools, and the model again.

    Args:
        model: A chat model, with or without tools bound to it; a name for LangChain's
            ``init_chat_model``; or a function of the state and the runtime that returns
            a model with its tools, sync or async.
        tools: Tools, functions to make tools of, and dicts for tools that the model's
            provider runs; or a `ToolNode`.
        prompt: The beginning of the model's input: a string or a `SystemMessage`; or a
            function or Runnable that makes the whole input from the state.
        response_format: A schema for the last answer, which a separate call of the
            model stores under ``structured_response``; or a pair of a prompt for that
            call and a schema.
        pre_model_hook: A node before each call of the model. The messages that it
            writes to ``llm_input_messages`` replace those of the state as the model's
            input.
        post_model_hook: A node after each call of the model.
        state_schema: The state: `AgentState`, or a subclass with more keys.
        context_schema: The schema of the context, as for `StateGraph`.
        version: ``"v2"`` makes each call of a tool a task, with a stored result and
            interrupts of its own. ``"v1"`` makes all calls one task.
        name: The name of the agent in drawings and messages, and of the author in the
            model's answers.
        executor: The executor of the nodes. A model waits for its provider, and few can
            be sent to another process: by default ``"threads"``.
        compiled: Options of `StateGraph.compile`: ``checkpointer``, ``store``,
            ``interrupt_before`` and others. The nodes are ``agent``, ``tools``,
            ``pre_model_hook``, ``post_model_hook`` and
            ``generate_structured_response``.

    Raises:
        ConfigurationError: An option is invalid.

    Example:
        >>> from langchain_core.language_models import FakeListChatModel
        >>> model = FakeListChatModel(responses=["Hello!"])
        >>> agent = create_react_agent(model, tools=[])
        >>> agent.invoke({"messages": [("user", "Hi.")]})["messages"][-1].content
        'Hello!'
    """
    if version not in ("v1", "v2"):
        raise ConfigurationError(f"version={version!r}; use 'v1' or 'v2'")
    tool_node, remote_tools = _split_tools(tools)
    local_tools = list(tool_node.tools_by_name.values())
    if isinstance(model, str):
        model = _init_model(model)
    routes = _Routes(
        entry="agent" if pre_model_hook is None else "pre_model_hook",
        end=END if response_format is None else STRUCTURED,
        tools="tools" if local_tools else None,
        is_split=version == "v2" or post_model_hook is not None,
        direct=frozenset(tool.name for tool in local_tools if tool.return_direct),
    )
    chain = _model_chain(model, prompt, [*local_tools, *remote_tools])
    agent = _AskModel(chain, name, routes.direct)
    builder = StateGraph(state_schema, context_schema)
    last = _add_model(builder, agent, state_schema, pre_model_hook, post_model_hook)
    builder.set_entry_point(routes.entry)
    builder.add_conditional_edges(last, routes.after_model, routes.targets)
    if local_tools:
        _add_tools(builder, tool_node, routes)
    if response_format is not None:
        builder.add_node(STRUCTURED, _structured(model, response_format))
    return builder.compile(name=name, executor=executor, **compiled)


def _add_model(
    builder: StateGraph,
    agent: _AskModel,
    state_schema: Any,
    pre_model_hook: Any,
    post_model_hook: Any,
) -> str:
    """Add the nodes of the model, and of the hooks before and after it, to the graph.
    Return the name of the last of these nodes.
    """
    input_schema = state_schema
    if pre_model_hook is not None:
        input_schema = _with_model_input(state_schema)
    builder.add_node("agent", agent, input_schema=input_schema)
    if pre_model_hook is not None:
        builder.add_node("pre_model_hook", pre_model_hook)
        builder.add_edge("pre_model_hook", "agent")
    if post_model_hook is None:
        return "agent"
    builder.add_node("post_model_hook", post_model_hook)
    builder.add_edge("agent", "post_model_hook")
    return "post_model_hook"


def _add_tools(
    builder: StateGraph,
    node: ToolNode,
    routes: _Routes,
) -> None:
    builder.add_node("tools", node)
    builder.add_conditional_edges("tools", routes.after_tools, [routes.entry, END])


def _split_tools(tools: Any) -> tuple[ToolNode, list[Any]]:
    """Return two things: a `ToolNode` for the tools that run in the graph, and the
    tools that the model's provider runs.
    """
    if isinstance(tools, ToolNode):
        return tools, []
    local_tools = []
    remote_tools = []
    for tool in tools:
        if isinstance(tool, dict):
            remote_tools.append(tool)
        else:
            local_tools.append(tool)
    return ToolNode(local_tools), remote_tools


@dataclass(frozen=True, slots=True)
class _AskModel:
    """The node that calls the model.

    Args:
        chain: A Runnable that returns the model's answer, given the state.
        author: The name that is set in the answers.
        direct: The tools whose answers end the run.
    """

    chain: Step
    author: str | None
    direct: frozenset[str]

    def invoke(
        self,
        state: Any,
        config: RunnableConfig,
    ) -> Any:
        model_input = _model_input(state)
        answer = self.chain.invoke(model_input, without_run_id(config))
        return self._update(state, answer)

    async def ainvoke(
        self,
        state: Any,
        config: RunnableConfig,
    ) -> Any:
        model_input = _model_input(state)
        answer = await self.chain.ainvoke(model_input, without_run_id(config))
        return self._update(state, answer)

    def _update(
        self,
        state: Any,
        answer: Any,
    ) -> dict[str, Any]:
        names = {call["name"] for call in getattr(answer, "tool_calls", ())}
        remaining = part_of(state, "remaining_steps")
        # The calls of the tools take one more superstep. The next call of the model
        # takes another one, unless the answers of all these tools end the run.
        needed = 1 if names <= self.direct else 2
        if names and remaining is not None and remaining < needed:
            answer = AIMessage(
                "I would need more steps than I have to answer this.", id=answer.id
            )
        signed_answer = answer.model_copy(update={"name": self.author})
        return {"messages": [signed_answer]}


@dataclass(frozen=True, slots=True)
class _Routes:
    """The functions that choose the next node after an agent's model, and after its
    tools.
    """

    entry: str
    end: str
    tools: str | None
    is_split: bool
    """True if each call of a tool is a task."""
    direct: frozenset[str]
    """The tools whose answers end the run."""

    @property
    def targets(self) -> list[str]:
        """The nodes that `after_model` can choose."""
        if self.tools is None:
            return [self.entry, self.end]
        return [self.tools, self.entry, self.end]

    def after_model(self, state: Any) -> str | list[Send]:
        """Return the next nodes after the model: the tools that were requested and have
        not answered yet, or the end.
        """
        messages = part_of(state, "messages")
        calls = _unanswered(_recent(messages))
        if not calls or self.tools is None:
            # The last message is the answer to a tool call. This means that the hook
            # after the model has answered the call in place of the tool, so the model
            # is called next.
            is_answered = isinstance(messages[-1], ToolMessage)
            return self.entry if is_answered else self.end
        if not self.is_split:
            return self.tools
        sends = []
        for call in calls:
            packet = {"__type": ONE_CALL, "tool_call": call, "state": state}
            sends.append(Send(self.tools, packet))
        return sends

    def after_tools(self, state: Any) -> str:
        """Return the next node after the tools: the model, or the end if a tool's
        answer ends the run.
        """
        messages = _recent(part_of(state, "messages"))
        names = {call["name"] for call in _calls_in(messages)}
        return END if names & self.direct else self.entry


def _recent(messages: Sequence[Any]) -> Sequence[Any]:
    """Return the messages since the model's last answer. Within these messages, the ids
    of tool calls are unique.
    """
    start = len(messages)
    for position in range(len(messages) - 1, -1, -1):
        if isinstance(messages[position], AIMessage):
            start = position
            break
    return messages[start:]


def _calls_in(messages: Sequence[Any]) -> list[Any]:
    calls: list[Any] = []
    for message in messages:
        calls += getattr(message, "tool_calls", ())
    return calls


def _unanswered(messages: Sequence[Any]) -> list[Any]:
    """Return the tool calls in *messages* that no message in *messages* answers."""
    answered = {getattr(message, "tool_call_id", None) for message in messages}
    return [call for call in _calls_in(messages) if call["id"] not in answered]


def _model_input(state: Any) -> Any:
    """Return *state* with the model's input as its messages.

    Raises:
        ConfigurationError: A tool call in the messages was never answered.
    """
    messages = part_of(state, "llm_input_messages") or part_of(state, "messages")
    missing = _unanswered(messages)
    if missing:
        raise ConfigurationError(
            "Found tool_calls that do not have a corresponding ToolMessage: "
            f"{missing[:3]}; models refuse such a history, so add the answers, or "
            "remove the calls (INVALID_CHAT_HISTORY)"
        )
    if isinstance(state, Mapping):
        return {**state, "messages": messages}
    return state.model_copy(update={"messages": messages})


def _init_model(name: str) -> Any:
    # LangChain itself is an optional dependency, so it is imported on first use.
    from langchain.chat_models import init_chat_model  # noqa: PLC0415

    return init_chat_model(name)


def _prompt_of(prompt: Any) -> Step:
    """Return a Runnable that returns the model's input, given the state."""
    if isinstance(prompt, Runnable):
        return prompt
    if prompt is not None and not isinstance(prompt, str | SystemMessage):
        return RunnableLambda(prompt)
    first_messages = []
    if isinstance(prompt, str):
        first_messages.append(SystemMessage(prompt))
    elif prompt:
        first_messages.append(prompt)

    def prepend(state: Any) -> list[Any]:
        return [*first_messages, *part_of(state, "messages")]

    return RunnableLambda(prepend)


def _model_chain(
    model: Any,
    prompt: Any,
    tools: Sequence[Any],
) -> Step:
    """Return a Runnable that returns the model's answer, given the state."""
    start = _prompt_of(prompt)
    if isinstance(model, Runnable):
        # The tools are bound only to a model that the user has passed. A function that
        # chooses a model binds them itself.
        model = _with_tools(model, tools)
    return _chain(model, lambda model: start | model)


def _chain(
    model: Any,
    build: Callable[[Any], Step],
) -> Step:
    """Return the Runnable that *build* returns for a model.

    If *model* is a function that chooses a model, *build* is called at each call.
    """
    if isinstance(model, Runnable):
        return build(model)

    async def choose_awaiting(state: Any) -> Step:
        return build(await model(state, get_runtime()))

    def choose(state: Any) -> Step:
        return build(model(state, get_runtime()))

    # `choose` and `choose_awaiting` only return a Runnable. If a function in a
    # `RunnableLambda` returns a Runnable, LangChain calls it with the same input.
    if inspect.iscoroutinefunction(model):
        return RunnableLambda(choose_awaiting)
    return RunnableLambda(choose)


def _binding_in(model: Any) -> Any:
    """Return the part of a sequence that is a chat model, or a Runnable that binds
    tools to a chat model.
    """
    steps = model.steps if isinstance(model, RunnableSequence) else [model]
    for step in steps:
        if hasattr(step, "bind_tools"):
            return step
    return model


def _with_tools(
    model: Any,
    tools: Sequence[Any],
) -> Any:
    """Return *model* with *tools* bound, unless it has tools already."""
    has_tools = "tools" in getattr(_binding_in(model), "kwargs", {})
    if has_tools or not tools:
        return model
    return model.bind_tools(tools)


def _structured(
    model: Any,
    response_format: Any,
) -> Step:
    """Return the node that asks the model for the last answer in a given format."""
    prompt = None
    schema = response_format
    if isinstance(response_format, tuple):
        prompt, schema = response_format
    start = _prompt_of(prompt)

    def build(model: Any) -> Any:
        binding = _binding_in(model)
        chat_model = getattr(binding, "bound", binding)
        return start | chat_model.with_structured_output(schema)

    def update(response: Any) -> dict[str, Any]:
        return {"structured_response": response}

    return _chain(model, build) | update


def _with_model_input(schema: Any) -> Any:
    """Return *schema* with the additional key ``llm_input_messages``, for the model's
    input that a hook before the model prepares.
    """
    hints = get_type_hints(schema, include_extras=True)
    hints["llm_input_messages"] = list[Any]
    make = cast(Any, TypedDict)
    return make("ModelInput", hints)
