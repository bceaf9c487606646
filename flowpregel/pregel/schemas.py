"""The types of a graph's input and output, as annotations, models and JSON Schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from keyword import iskeyword
from typing import Any, TypedDict

from flowpregel.pregel.definition import GraphDefinition
from flowpregel.pregel.jsonschema import json_schema_of, model_of


@dataclass(frozen=True, slots=True)
class GraphSchemas:
    """The types that runs of a graph take and return.

    Args:
        definition: The parts of the graph.
    """

    definition: GraphDefinition

    @property
    def input_type(self) -> Any:
        """The type of a run's input, or None if there are several input channels."""
        definition = self.definition
        keys = definition.input_channels
        if definition.input_type is not None:
            return definition.input_type
        return definition.channels[keys].UpdateType if isinstance(keys, str) else None

    @property
    def output_type(self) -> Any:
        """The type of a run's output, or None if there are several output channels."""
        definition = self.definition
        keys = definition.output_channels
        if definition.output_type is not None:
            return definition.output_type
        return definition.channels[keys].ValueType if isinstance(keys, str) else None

    def input_model(self) -> Any:
        """Return a pydantic model of a run's input, or the input's type if pydantic is
        not installed.
        """
        return model_of(self._input(), f"{self.definition.name}Input")

    def output_model(self) -> Any:
        """Return a pydantic model of a run's output, or the output's type if pydantic
        is not installed.
        """
        return model_of(self._output(), f"{self.definition.name}Output")

    def input_json(self) -> dict[str, Any]:
        """Return the JSON Schema of a run's input."""
        return json_schema_of(self._input(), f"{self.definition.name}Input")

    def output_json(self) -> dict[str, Any]:
        """Return the JSON Schema of a run's output."""
        return json_schema_of(self._output(), f"{self.definition.name}Output")

    def context_json(self) -> dict[str, Any] | None:
        """Return the JSON Schema of a run's context, or None if it has no schema."""
        schema = self.definition.context_schema
        if schema is None:
            return None
        title = getattr(schema, "__name__", self.definition.name)
        return json_schema_of(schema, title)

    def _input(self) -> Any:
        keys = self.definition.input_channels
        return self.input_type or self._record_of(keys, "UpdateType")

    def _output(self) -> Any:
        keys = self.definition.output_channels
        return self.output_type or self._record_of(keys, "ValueType")

    def _record_of(
        self,
        keys: Sequence[str],
        attribute: str,
    ) -> Any:
        """Return a class with a field for each of the channels, which is None by
        default.

        The class is a dataclass, or a `TypedDict` if a channel's name cannot be the
        name of a field.
        """
        channels = self.definition.channels
        types = {key: getattr(channels[key], attribute) for key in keys}
        if not all(key.isidentifier() and not iskeyword(key) for key in keys):
            return TypedDict("Values", types, total=False)  # type: ignore[operator]
        fields = [(key, typ, field(default=None)) for key, typ in types.items()]
        return make_dataclass("Values", fields)
