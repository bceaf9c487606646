"""The conversion of JSON to the annotations of a flow's parameters."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from flowpregel._text import did_you_mean
from flowpregel.cli.form_fields import (
    MISSING,
    RecordField,
    choices_of,
    parameters_of_flow,
    record_fields,
    split_optional,
)
from flowpregel.cli.options import load_input
from flowpregel.cli.targets import load_flow
from flowpregel.errors import ConfigurationError


def load_flow_with_input(name: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """Import a flow, and return it with the input of a run.

    Args:
        name: ``MODULE:FLOW``.
        options: The options of a command, from which those of `INPUT_OPTIONS` are
            removed.

    Raises:
        ConfigurationError: There is no such flow, or its input is missing or wrong.
    """
    flow = load_flow(name, options.pop("folder"))
    arguments = options.pop("arguments")
    value = load_input(options.pop("flow_input"), arguments)
    if arguments is not None:
        return flow, input_from_arguments(flow, value)
    if flow.once is None or flow.once.completed is None:
        return flow, value
    try:
        return flow, flow.once.completed(value)
    except TypeError as error:
        raise ConfigurationError(f"--input: {error}") from error


def input_from_arguments(flow: Any, arguments: Any) -> Any:
    """Return the input of a run with arguments that are given as JSON.

    Args:
        flow: The workflow.
        arguments: A dict of the arguments by name.

    Raises:
        ConfigurationError: *flow* is a graph, or arguments are missing or wrong. The
            message has a line for each of them.
    """
    if not hasattr(flow, "parameters"):
        raise ConfigurationError(
            f"--arguments is for a workflow of @entrypoint or a task; {flow.name} is a "
            "graph, which takes --input"
        )
    if not isinstance(arguments, dict):
        raise ConfigurationError(
            "--arguments is not an object with the arguments by name, such as "
            '{"depth": 3}'
        )
    converter = _Converter()
    values = converter.record(parameters_of_flow(flow), arguments, "")
    if converter.problems:
        lines = [f"\n  {path}: {text}" for path, text in converter.problems.items()]
        raise ConfigurationError(
            f"--arguments does not fit {flow.name}:{''.join(lines)}"
        )
    return _input_by_parameters(flow, values)


def _input_by_parameters(flow: Any, values: dict[str, Any]) -> Any:
    """Return the input of a run with these arguments by name."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for name, parameter in flow.parameters.signature.parameters.items():
        if name not in values:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(values[name])
        elif parameter.kind is parameter.VAR_KEYWORD:
            keywords.update(values[name])
        else:
            keywords[name] = values[name]
    return flow.parameters.input_of(tuple(positional), keywords)


class _Converter:
    """A converter of JSON values, which collects what is wrong with them."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        """The reason why a value cannot be used, by the name of the field, such as
        ``params.depth``.
        """

    def record(
        self,
        fields: list[RecordField],
        values: Mapping[str, Any],
        prefix: str,
    ) -> dict[str, Any]:
        """Return the converted values of fields by name.

        Args:
            fields: The fields, with their annotations.
            values: The values, as JSON.
            prefix: The name of the record with a dot, or an empty string.
        """
        known = [field.name for field in fields]
        for name in values.keys() - set(known):
            advice = did_you_mean(name, known)
            self.problems[f"{prefix}{name}"] = f"there is no such field{advice}"
        result: dict[str, Any] = {}
        for field in fields:
            path = f"{prefix}{field.name}"
            if field.name in values:
                result[field.name] = self.value(
                    values[field.name], field.annotation, path
                )
            elif field.default is MISSING:
                self.problems[path] = "a value is needed"
        return result

    def value(self, value: Any, annotation: Any, path: str) -> Any:
        """Return a converted value.

        Args:
            value: The value, as JSON.
            annotation: The annotation of the parameter or field.
            path: The name of the field, for a problem.
        """
        annotation, is_optional = split_optional(annotation)
        if value is None and is_optional:
            return None
        choices = choices_of(annotation)
        if choices:
            return self._choice(value, choices, path)
        fields = record_fields(annotation)
        if fields is not None:
            return self._object(value, annotation, fields, path)
        if isinstance(annotation, type) and annotation in _CONVERSIONS:
            convert, words = _CONVERSIONS[annotation]
            with suppress(TypeError, ValueError, ArithmeticError):
                return convert(value)
            self.problems[path] = f"must be {words}, not {_wrong_value(value)}"
            return value
        return self._items(value, annotation, path)

    def _choice(self, value: Any, choices: Mapping[str, Any], path: str) -> Any:
        """Return the member of *choices* that *value* names, or note a problem if there
        is none.
        """
        choice = choices.get(str(value), MISSING)
        if choice is MISSING:
            names = ", ".join(choices)
            self.problems[path] = f"must be one of {names}, not {_wrong_value(value)}"
        return choice

    def _object(
        self,
        value: Any,
        annotation: Any,
        fields: list[RecordField],
        path: str,
    ) -> Any:
        """Return an instance of a class that has fields, such as a dataclass."""
        if not isinstance(value, dict):
            self.problems[path] = (
                f"must be an object with fields, not {_wrong_value(value)}"
            )
            return value
        count = len(self.problems)
        values = self.record(fields, value, f"{path}.")
        if len(self.problems) > count:
            return value
        try:
            return annotation(**values)
        except Exception as error:  # noqa: BLE001 - the user's class may check values
            self.problems[path] = " ".join(str(error).split())
            return value

    def _items(self, value: Any, annotation: Any, path: str) -> Any:
        """Return *value* with converted items, if the annotation is a list, tuple, set
        or dict. Otherwise return *value* unchanged.
        """
        origin = typing.get_origin(annotation) or annotation
        kind = _CONTAINERS.get(origin) if isinstance(origin, type) else None
        if kind is None:
            return value
        json_type, words = kind
        if not isinstance(value, json_type):
            self.problems[path] = f"must be {words}, not {_wrong_value(value)}"
            return value
        if origin is dict:
            return self._dict_items(value, annotation, path)
        item_types = _item_types(origin, typing.get_args(annotation), len(value))
        if len(item_types) != len(value):
            self.problems[path] = f"must have {len(item_types)} items"
            return value
        items: list[Any] = []
        for number, item_type in enumerate(item_types):
            item = self.value(value[number], item_type, f"{path}.{number}")
            items.append(item)
        return origin(items)

    def _dict_items(
        self,
        values: dict[str, Any],
        annotation: Any,
        path: str,
    ) -> dict[str, Any]:
        """Return a dict with converted values."""
        arguments = typing.get_args(annotation)
        item_type = arguments[1] if arguments else Any
        return {
            name: self.value(item, item_type, f"{path}.{name}")
            for name, item in values.items()
        }


def _item_types(origin: Any, arguments: tuple[Any, ...], count: int) -> list[Any]:
    """Return the annotations of the items of a list, tuple or set.

    Args:
        origin: The class of the container.
        arguments: The arguments of the annotation.
        count: The number of items.
    """
    if not arguments:
        return [Any] * count
    if origin is not tuple or arguments[1:] == (...,):
        return [arguments[0]] * count
    return list(arguments)


def _wrong_value(value: Any) -> str:
    """Return a short description of a wrong value."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


# ---------------------------------------------------------------- plain values


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if value != int(value):
        raise ValueError
    return int(value)


def _finite_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not math.isfinite(value):
        raise ValueError
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


_CONVERSIONS: Mapping[type, tuple[Callable[[Any], Any], str]] = {
    bool: (_boolean, "true or false"),
    int: (_integer, "a whole number"),
    float: (_finite_number, "a number"),
    str: (_text, "a text"),
    Path: (lambda value: Path(_text(value)), "a path"),
    datetime: (
        lambda value: datetime.fromisoformat(_text(value)),
        "a time such as 2026-11-29T12:00",
    ),
    date: (
        lambda value: date.fromisoformat(_text(value)),
        "a date such as 2026-11-29",
    ),
    Decimal: (lambda value: Decimal(str(value)), "a number"),
}
"""The function that converts JSON to each class, and a description of the values that
it accepts.
"""
_CONTAINERS: Mapping[type, tuple[Any, str]] = {
    dict: (dict, "an object"),
    list: (list, "a list"),
    tuple: (list, "a list"),
    set: (list, "a list"),
    frozenset: (list, "a list"),
}
"""The class of the JSON value for each class of containers, and a description of such a
value.
"""
