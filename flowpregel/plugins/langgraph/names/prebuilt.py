"""Names of LangGraph's prebuilt agents that `flowpregel.plugins.langchain` lacks.

This module needs langchain-core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Final, Literal, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.runnables import (
    Runnable,
    RunnableBinding,
    RunnableConfig,
    RunnableSequence,
)
from langchain_core.runnables.config import get_executor_for_config
from langchain_core.tools import BaseTool, create_schema_from_function
from pydantic import BaseModel

# Python's own TypedDict is not used, because before Python 3.12 pydantic does not
# accept it in a tool.
from typing_extensions import TypedDict

from flowpregel.errors import ConfigurationError
from flowpregel.managed import RemainingSteps
from flowpregel.plugins.langchain import AgentState, add_messages
from flowpregel.plugins.langgraph.names.runnable import RunnableCallable

__all__ = [
    "ActionRequest",
    "AgentStatePydantic",
    "AgentStateWithStructuredResponse",
    "HumanInterrupt",
    "HumanInterruptConfig",
    "HumanResponse",
    "Prompt",
    "StateSchema",
    "StateSchemaType",
    "StructuredResponse",
    "StructuredResponseSchema",
    "ToolCallTransformer",
    "ValidationNode",
    "chat_model_of",
    "get_executor_for_config",
    "should_bind_tools",
]

Prompt: TypeAlias = SystemMessage | str | Callable[..., Any] | Runnable[Any, Any]
StateSchema: TypeAlias = Any
StateSchemaType: TypeAlias = type[Any]
StructuredResponse: TypeAlias = dict[str, Any] | BaseModel
StructuredResponseSchema: TypeAlias = dict[str, Any] | type[BaseModel]

AgentStateWithStructuredResponse: Final = AgentState


class AgentStatePydantic(BaseModel):
    """The state of an agent as a pydantic model."""

    messages: Annotated[Sequence[BaseMessage], add_messages]
    remaining_steps: RemainingSteps = 25


# ------------------------------------------------------------ questions to a person


class HumanInterruptConfig(TypedDict):
    """The answers that a person may give."""

    allow_ignore: bool
    allow_respond: bool
    allow_edit: bool
    allow_accept: bool


class ActionRequest(TypedDict):
    """An action that an agent wants to take."""

    action: str
    args: dict[str, Any]


class HumanInterrupt(TypedDict):
    """A question to a person about an action."""

    action_request: ActionRequest
    config: HumanInterruptConfig
    description: str | None


class HumanResponse(TypedDict):
    """The answer of a person."""

    type: Literal["accept", "ignore", "response", "edit"]
    args: str | ActionRequest | None


# ------------------------------------------------------------ streams


class AbsentTransformer:
    """A placeholder for LangGraph's transformer of tool events, if LangGraph is not
    installed.
    """

    def __init__(self, *args: Any) -> None:
        raise ConfigurationError(
            "events of tools are read with LangGraph's package langgraph.stream, which "
            "is not installed; get it with: pip install 'langgraph>=1.2'"
        )


def _tool_call_transformer() -> Any:
    try:
        module = import_module("langgraph.prebuilt._tool_call_transformer")
    except ImportError:
        return AbsentTransformer
    return module.ToolCallTransformer


ToolCallTransformer: Final = _tool_call_transformer()


# ------------------------------------------------------------ models


def chat_model_of(model: Any) -> BaseChatModel:
    """Return the chat model in a sequence of Runnables, or in a Runnable that binds
    arguments to the model.

    Raises:
        ConfigurationError: *model* has no chat model.
    """
    model = _model_step(model)
    if isinstance(model, RunnableBinding):
        model = model.bound
    if not isinstance(model, BaseChatModel):
        raise ConfigurationError(f"{model!r} is not a chat model")
    return model


def should_bind_tools(
    model: Any, tools: Sequence[BaseTool], num_builtin: int = 0
) -> bool:
    """Return whether *tools* must be bound to *model*, because no tools are bound to
    it.

    Args:
        model: The model.
        tools: The tools that run in the graph.
        num_builtin: The number of tools that the model's provider runs.

    Raises:
        ConfigurationError: The tools that are bound to the model differ from *tools*.
    """
    model = _model_step(model)
    if not isinstance(model, RunnableBinding) or "tools" not in model.kwargs:
        return True
    bound_tools = model.kwargs["tools"]
    if len(tools) != len(bound_tools) - num_builtin:
        raise ConfigurationError(
            f"the model has {len(bound_tools) - num_builtin} tools bound, but the "
            f"agent has {len(tools)}: bind the same tools, or none"
        )
    missing = {tool.name for tool in tools} - set(map(_bound_name, bound_tools))
    if missing:
        raise ConfigurationError(
            f"the model has tools bound, but not {', '.join(sorted(missing))}: bind "
            "the tools of the agent, or none"
        )
    return False


def _model_step(model: Any) -> Any:
    """Return the chat model, or the Runnable that binds arguments to it, in a
    sequence.
    """
    steps = model.steps if isinstance(model, RunnableSequence) else []
    for step in steps:
        if isinstance(step, RunnableBinding | BaseChatModel):
            return step
    return model


def _bound_name(tool: Mapping[str, Any]) -> Any:
    """Return the name of a tool that is given as a dict, in the form of a model's
    provider.
    """
    if tool.get("type") == "function":
        return tool["function"]["name"]
    return tool.get("name")


# ------------------------------------------------------------ validation


class ValidationNode(RunnableCallable):
    """A node that checks the arguments of requested tools, and runs no tool.

    Args:
        schemas: The schemas: pydantic models, tools, and functions.
        format_error: A function that returns the text of the answer to the model, given
            an error, the call and its schema.
        name: The name of the node.
        tags: Tags, which are only stored.

    Raises:
        ConfigurationError: A tool has no pydantic model, or a schema has another type.
    """

    def __init__(
        self,
        schemas: Sequence[Any],
        *,
        format_error: Callable[..., str] | None = None,
        name: str = "validation",
        tags: list[str] | None = None,
    ) -> None:
        super().__init__(self._func, None, name=name, tags=tags, trace=False)
        self._format_error = format_error or _text_of_error
        self.schemas_by_name: dict[str, type[BaseModel]] = {}
        for schema in schemas:
            schema_name, model = _schema_of(schema)
            self.schemas_by_name[schema_name] = model

    def _func(self, input: Any, config: RunnableConfig) -> Any:
        """Return a message for each requested call: the arguments, or the error."""
        output_type, message = self._get_message(input)
        with get_executor_for_config(config) as pool:
            answers = [*pool.map(self._checked, message.tool_calls)]
        return answers if output_type == "list" else {"messages": answers}

    def _get_message(self, input: Any) -> tuple[str, AIMessage]:
        """Return the last message, and the type of the output for *input*.

        Raises:
            ConfigurationError: There are no messages, or the last is not the model's.
        """
        is_list = isinstance(input, list)
        messages = input if is_list else input.get("messages")
        if not messages or not isinstance(messages[-1], AIMessage):
            raise ConfigurationError(
                "ValidationNode checks what an AIMessage asks for, and the last "
                "message is none"
            )
        return "list" if is_list else "dict", messages[-1]

    def _checked(self, call: Any) -> ToolMessage:
        schema = self.schemas_by_name[call["name"]]
        answer = partial(ToolMessage, name=call["name"], tool_call_id=call["id"])
        try:
            arguments = schema.model_validate(call["args"])
        except ValueError as error:
            text = self._format_error(error, call, schema)
            return answer(text, additional_kwargs={"is_error": True})
        return answer(arguments.model_dump_json())


def _text_of_error(error: BaseException, call: Any, schema: type[BaseModel]) -> str:
    return f"{error!r}\n\nCorrect all of these errors, and call the tool again."


def _schema_of(schema: Any) -> tuple[str, type[BaseModel]]:
    """Return the name and the model of one of the schemas of a `ValidationNode`."""
    if isinstance(schema, BaseTool):
        model = schema.args_schema
        if not isinstance(model, type) or not issubclass(model, BaseModel):
            raise ConfigurationError(
                f"tool {schema.name!r} has no pydantic model as its args_schema, which "
                "ValidationNode needs"
            )
        return schema.name, model
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return schema.__name__, schema
    if callable(schema):
        arguments: Any = create_schema_from_function("Validation", schema)
        return schema.__name__, arguments
    raise ConfigurationError(
        f"{schema!r} is no schema; use a pydantic model, a tool or a function"
    )
