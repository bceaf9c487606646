"""What a graph takes and gives, as types and as JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from flowpregel.pregel.base import PregelBase

if TYPE_CHECKING:
    from flowpregel.pregel.jsonschema import Schema

Config = Mapping[str, Any]


class Schemas(PregelBase):
    """The part of `Pregel` that says what it takes and gives."""

    @property
    def InputType(self) -> Any:
        """The type of a run's input; None if it has several channels."""
        keys = self.input_channels
        return self.channels[keys].UpdateType if isinstance(keys, str) else None

    @property
    def OutputType(self) -> Any:
        """The type of what a run returns; None if it has several channels."""
        keys = self.output_channels
        return self.channels[keys].ValueType if isinstance(keys, str) else None

    def get_input_jsonschema(self, config: Config | None = None) -> Schema:
        """Return the JSON Schema of a run's input.

        Args:
            config: Not used; LangGraph's programs pass it.

        Example:
            >>> app.get_input_jsonschema()  # doctest: +SKIP
            {'title': 'LangGraphInput', 'type': 'string'}
        """
        return self._json_schema(self._input(), "Input")

    def get_output_jsonschema(self, config: Config | None = None) -> Schema:
        """Return the JSON Schema of what a run returns."""
        return self._json_schema(self._output(), "Output")

    def get_context_jsonschema(self) -> Schema | None:
        """Return the JSON Schema of a run's context; None if it has none."""
        typ = self.context_schema
        return None if typ is None else self._json_schema(typ, None)

    def get_input_schema(self, config: Config | None = None) -> Any:
        """Return a pydantic model of a run's input; without pydantic, its type."""
        return self._model(self._input(), "Input")

    def get_output_schema(self, config: Config | None = None) -> Any:
        """Return a pydantic model of what a run returns; without pydantic, its type."""
        return self._model(self._output(), "Output")

    def _input(self) -> Any:
        keys = self.input_channels
        if isinstance(keys, str):
            return self.InputType
        return _dict_of({key: self.channels[key].UpdateType for key in keys})

    def _output(self) -> Any:
        keys = self.output_channels
        if isinstance(keys, str):
            return self.OutputType
        return _dict_of({key: self.channels[key].ValueType for key in keys})

    def _json_schema(self, typ: Any, role: str | None) -> Schema:
        from flowpregel.pregel.jsonschema import json_schema_of  # noqa: PLC0415 - seldom needed

        title = getattr(typ, "__name__", self.name) if role is None else f"{self.name}{role}"
        return json_schema_of(typ, title)

    def _model(self, typ: Any, role: str) -> Any:
        from flowpregel.pregel.jsonschema import model_of  # noqa: PLC0415 - seldom needed

        return model_of(typ, f"{self.name}{role}")


def _dict_of(types: dict[str, Any]) -> Any:
    """Return a TypedDict class with these keys, of which none has to be there."""
    return TypedDict("Values", types, total=False)  # type: ignore[operator]
