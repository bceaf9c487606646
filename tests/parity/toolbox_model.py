"""A model for examples that have none of their own: it tries its tools, then
answers.
"""

from __future__ import annotations

from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel

SAMPLES = {
    "string": "x",
    "integer": 2,
    "number": 2.0,
    "boolean": True,
    "array": [],
    "object": {},
}


class ToolboxModel(BaseChatModel):
    """Asks for each of its tools once, side by side, then says how much it was told."""

    toolbox: Any = ()

    @property
    def _llm_type(self) -> str:
        return "toolbox"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        """Return the model with *tools*."""
        given = [convert_to_openai_tool(tool)["function"] for tool in tools]
        return ToolboxModel(toolbox=given).bind(tools=given)

    def with_structured_output(self, schema: Any, **_: Any) -> Any:
        """Return what answers with a sample of *schema*."""
        described = convert_to_openai_tool(schema)["function"]["parameters"]
        is_model = isinstance(schema, type) and issubclass(schema, BaseModel)
        return RunnableLambda(
            lambda _: schema(**sample(described)) if is_model else sample(described)
        )

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any
    ) -> Any:
        answered = any(isinstance(message, ToolMessage) for message in messages)
        calls = [
            {
                "name": tool["name"],
                "args": sample(tool["parameters"]),
                "id": f"call {index}",
            }
            for index, tool in enumerate(() if answered else self.toolbox)
        ]
        text = (
            ""
            if calls
            else f"I was told {len(messages)} messages, last {messages[-1].content}"
        )
        message = AIMessage(text, tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


def sample(schema: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that fit *schema*."""
    properties = schema.get("properties", {})
    return {
        name: field["enum"][0]
        if "enum" in field
        else SAMPLES.get(field.get("type", ""), "x")
        for name, field in properties.items()
        if name in schema.get("required", ())
    }
