"""`create_react_agent`: a graph that asks a model, calls the tools it wants, and asks
again.
"""

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

# before Python 3.12 pydantic, for a tool, takes no other
from typing_extensions import TypedDict

from flowpregel._core.commands import Send
from flowpregel.errors import ConfigurationError
from flowpregel.graph.compile import CompiledStateGraph
from flowpregel.graph.state import StateGraph
from flowpregel.integrations.langchain.messages import add_messages
from flowpregel.integrations.langchain.tools import (
    ONE_CALL,
    ToolNode,
    part_of,
    without_run_id,
)
from flowpregel.managed import RemainingSteps
from flowpregel.pregel.definition import END
from flowpregel.runtime import get_runtime

Step = Runnable[Any, Any]
STRUCTURED: Final = "generate_structured_response"


class AgentState(TypedDict):
    """The state of an agent; make subclasses of it to add keys."""

    messages: Annotated[Sequence[BaseMessage], add_messages]
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
    """Return an agent: a graph that asks a model, calls the tools it wants, and asks
    again.

    Args:
        model: A chat model, with tools bound to it or without; its name for LangChain's
            ``init_chat_model``; or a function of the state and the runtime that returns
            a model with its tools, sync or async.
        tools: Tools, functions to make tools of, and dicts for tools that the model's
            provider runs; or a `ToolNode`.
        prompt: What precedes the messages: a text or a `SystemMessage`; or a function
            or Runnable that makes the model's input from the state.
        response_format: A schema for the last answer, which a call of its own gives
            under ``structured_response``; or a pair of a prompt for that call and a
            schema.
        pre_model_hook: A node before each call of the model. What it writes to
            ``llm_input_messages`` is what the model is given instead of the messages.
        post_model_hook: A node after each call of the model. state_schema: The state:
        `AgentState`, or a subclass with keys added. context_schema: As `StateGraph`
        takes it. version: ``"v2"`` makes each call of a tool a task: it is kept when it
        has ended,
            and asks for itself. ``"v1"`` makes all of them one task.
        name: Shown in drawings and messages; the model's answers bear it. executor:
        Where nodes run. A model waits for its provider, and few can be sent to
            another process: by default ``"threads"``.
        compiled: As `StateGraph.compile` takes them: ``checkpointer``, ``store``,
            ``interrupt_before`` and such. The nodes are ``agent``, ``tools``,
            ``pre_model_hook``, ``post_model_hook`` and
            ``generate_structured_response``.

    Raises:
        ConfigurationError: An option cannot be.
    """
    if version not in ("v1", "v2"):
        raise ConfigurationError(f"version={version!r}; use 'v1' or 'v2'")
    remote: list[Any] = []
    if not isinstance(tools, ToolNode):
        remote = [tool for tool in tools if isinstance(tool, dict)]
        tools = ToolNode([tool for tool in tools if not isinstance(tool, dict)])
    known = [*tools.tools_by_name.values()]
    model = _model_named(model) if isinstance(model, str) else model
    routes = _Routes(
        entry="agent" if pre_model_hook is None else "pre_model_hook",
        end=END if response_format is None else STRUCTURED,
        tools="tools" if known else None,
        is_split=version == "v2" or post_model_hook is not None,
        direct=frozenset(tool.name for tool in known if tool.return_direct),
    )
    start = _prompt_of(prompt)
    chain = _chain(
        model, lambda made: start | made, lambda made: _bound(made, [*known, *remote])
    )
    builder = StateGraph(state_schema, context_schema)
    input_schema = _with_model_input(state_schema) if pre_model_hook else state_schema
    builder.add_node(
        "agent", _AskModel(chain, name, routes.direct), input_schema=input_schema
    )
    if pre_model_hook is not None:
        builder.add_node("pre_model_hook", pre_model_hook).add_edge(
            "pre_model_hook", "agent"
        )
    if post_model_hook is not None:
        builder.add_node("post_model_hook", post_model_hook).add_edge(
            "agent", "post_model_hook"
        )
    last = "agent" if post_model_hook is None else "post_model_hook"
    builder.set_entry_point(routes.entry)
    builder.add_conditional_edges(last, routes.after_model, routes.targets)
    if known:
        builder.add_node("tools", tools)
        builder.add_conditional_edges("tools", routes.after_tools, [routes.entry, END])
    if response_format is not None:
        builder.add_node(STRUCTURED, _structured(model, response_format))
    return builder.compile(name=name, executor=executor, **compiled)


@dataclass(frozen=True, slots=True)
class _AskModel:
    """The node that asks the model.

    Args:
        chain: Makes the answer from the state.
        author: Whose name the answers bear.
        direct: The tools whose answers end the run.
    """

    chain: Step
    author: str | None
    direct: frozenset[str]

    def invoke(self, state: Any, config: RunnableConfig) -> Any:
        return self._update(
            state, self.chain.invoke(_model_input(state), without_run_id(config))
        )

    async def ainvoke(self, state: Any, config: RunnableConfig) -> Any:
        answer = await self.chain.ainvoke(_model_input(state), without_run_id(config))
        return self._update(state, answer)

    def _update(self, state: Any, answer: Any) -> dict[str, Any]:
        asked = {call["name"] for call in getattr(answer, "tool_calls", ())}
        left = part_of(state, "remaining_steps")
        # The tools take one step more, and unless that ends the run the model another.
        if asked and left is not None and left < (1 if asked <= self.direct else 2):
            answer = AIMessage(
                "I would need more steps than I have to answer this.", id=answer.id
            )
        return {"messages": [answer.model_copy(update={"name": self.author})]}


@dataclass(frozen=True, slots=True)
class _Routes:
    """Where an agent goes after its model and its tools."""

    entry: str
    end: str
    tools: str | None
    is_split: bool
    """Whether each call of a tool is a task."""
    direct: frozenset[str]
    """The tools whose answers end the run."""

    @property
    def targets(self) -> list[str]:
        """Where `after_model` leads."""
        return [*filter(None, (self.tools, self.entry, self.end))]

    def after_model(self, state: Any) -> str | list[Send]:
        """Call the tools that are asked for and not answered yet; without any, end."""
        messages = part_of(state, "messages")
        calls = _unanswered(_recent(messages))
        if not calls or self.tools is None:
            # A node after the model may have answered for the tools.
            return self.entry if isinstance(messages[-1], ToolMessage) else self.end
        if not self.is_split:
            return self.tools
        packets = (
            {"__type": ONE_CALL, "tool_call": call, "state": state} for call in calls
        )
        return [Send(self.tools, packet) for packet in packets]

    def after_tools(self, state: Any) -> str:
        """Ask the model again, unless a tool's answer is the last word."""
        asked = {
            call["name"] for call in _calls_in(_recent(part_of(state, "messages")))
        }
        return END if asked & self.direct else self.entry


def _recent(messages: Sequence[Any]) -> Sequence[Any]:
    """Return the messages since the model was asked: ids of calls are unique among
    those.
    """
    places = (i for i, message in enumerate(messages) if isinstance(message, AIMessage))
    return messages[max(places, default=len(messages)) :]


def _calls_in(messages: Sequence[Any]) -> list[Any]:
    return [call for message in messages for call in getattr(message, "tool_calls", ())]


def _unanswered(messages: Sequence[Any]) -> list[Any]:
    """Return the calls among *messages* that none of them answers."""
    answered = {getattr(message, "tool_call_id", None) for message in messages}
    return [call for call in _calls_in(messages) if call["id"] not in answered]


def _model_input(state: Any) -> Any:
    """Return *state* with the messages that the model is given.

    Raises:
        ConfigurationError: A call among them was never answered.
    """
    messages = part_of(state, "llm_input_messages") or part_of(state, "messages")
    if missing := _unanswered(messages):
        raise ConfigurationError(
            "the messages hold calls of tools without a ToolMessage that answers them: "
            f"{missing[:3]}; models refuse such a history. Add the answers, or remove "
            "the calls"
        )
    if isinstance(state, Mapping):
        return {**state, "messages": messages}
    return state.model_copy(update={"messages": messages})


def _model_named(name: str) -> Any:
    from langchain.chat_models import init_chat_model  # noqa: PLC0415 - LangChain itself

    return init_chat_model(name)


def _prompt_of(prompt: Any) -> Step:
    """Return what makes the model's input from the state."""
    if isinstance(prompt, Runnable):
        return prompt
    if prompt is None or isinstance(prompt, str | SystemMessage):
        first = (
            [SystemMessage(prompt)]
            if isinstance(prompt, str)
            else [prompt]
            if prompt
            else []
        )
        return RunnableLambda(lambda state: [*first, *part_of(state, "messages")])
    return RunnableLambda(prompt)


def _chain(
    model: Any,
    build: Callable[[Any], Step],
    prepare: Callable[[Any], Any] = lambda model: model,
) -> Step:
    """Return what *build* makes of *model*; if a function chooses the model, at each
    call.

    *prepare* is for a model that is not chosen.
    """
    if isinstance(model, Runnable):
        return build(prepare(model))

    async def choose_awaiting(state: Any) -> Step:
        return build(await model(state, get_runtime()))

    def choose(state: Any) -> Step:
        return build(model(state, get_runtime()))

    # A Runnable that a RunnableLambda returns is called in its place.
    return RunnableLambda(
        choose_awaiting if inspect.iscoroutinefunction(model) else choose
    )


def _binding_in(model: Any) -> Any:
    """Return the chat model in a sequence, or what binds tools to it."""
    steps = model.steps if isinstance(model, RunnableSequence) else [model]
    return next((step for step in steps if hasattr(step, "bind_tools")), model)


def _bound(model: Any, tools: Sequence[Any]) -> Any:
    has_tools = "tools" in getattr(_binding_in(model), "kwargs", {})
    return model if has_tools or not tools else model.bind_tools(tools)


def _structured(model: Any, response_format: Any) -> Step:
    """Return the node that asks for the last answer in a form."""
    is_pair = isinstance(response_format, tuple)
    prompt, schema = response_format if is_pair else (None, response_format)
    start = _prompt_of(prompt)

    def build(made: Any) -> Any:
        found = _binding_in(made)
        return start | getattr(found, "bound", found).with_structured_output(schema)

    return _chain(model, build) | (lambda response: {"structured_response": response})


def _with_model_input(schema: Any) -> Any:
    """Return *schema* with what a node before the model may give it."""
    hints = get_type_hints(schema, include_extras=True)
    make = cast(Any, TypedDict)
    return make("ModelInput", {**hints, "llm_input_messages": list[Any]})
