"""The fields of a form that asks for the input of a flow.

::

    the annotation of a parameter ──► `FormField` ──► JSON, for the page
       int, float, bool, str             a field
       Literal, Enum                     a choice
       a dataclass, TypedDict, ...       a group of fields
       everything else                   JSON

`arguments_from` in `typed_arguments` converts the values that were entered.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Mapping, Sequence, Set
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from flowpregel._annotations import hints_of, without
from flowpregel._core.previews import named_fields

if TYPE_CHECKING:
    from flowpregel.pregel.pregel import Pregel

FieldKind: TypeAlias = Literal[
    "integer", "number", "boolean", "text", "choice", "group", "json"
]
MISSING: Final = inspect.Parameter.empty
"""The default of a field that must have a value."""
NOT_JSON: Final = object()
"""The placeholder for a value that JSON cannot express."""
_DEEPEST: Final = 4
"""The greatest depth of groups of fields."""
_WRAPPERS: Final = (Annotated, typing.Required, typing.NotRequired, typing.Final)
_PLAIN_KINDS: Final[Mapping[Any, FieldKind]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "text",
    Path: "text",
    datetime: "text",
    date: "text",
    Decimal: "text",
}
"""The control for each class of single values."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FormField:
    """A field of a form."""

    name: str
    """The name of the parameter, or of the field of a class."""
    kind: FieldKind
    """The kind of the control."""
    type: str
    """The annotation as a string."""
    is_required: bool
    """True if there is no default."""
    is_optional: bool = False
    """True if None is allowed."""
    default: Any = None
    """The default as JSON; None if there is none, or JSON cannot express it."""
    choices: tuple[tuple[str, Any], ...] = ()
    """The text and the JSON value of each choice."""
    fields: tuple[FormField, ...] = ()
    """The fields of a group."""

    def to_json(self) -> dict[str, Any]:
        """Return this form field as a dict for ``json.dumps``."""
        return dataclasses.asdict(self)


class RecordField(NamedTuple):
    """A field of a class, or a parameter of a flow."""

    name: str
    annotation: Any
    default: Any
    """The default value, or `MISSING` if a value is required."""


def parameters_of_flow(flow: Pregel) -> list[RecordField]:
    """Return the parameters of a workflow, or the keys of a graph's input.

    Args:
        flow: The imported flow.
    """
    parameters = getattr(flow, "parameters", None)
    if parameters is None:
        return list(record_fields(flow.InputType) or ())
    signature: inspect.Signature = parameters.signature
    function: Any = flow.nodes[flow.name].bound
    hints = _resolved_hints(signature, function.__module__)
    return [
        RecordField(name, hints.get(name, Any), parameter.default)
        for name, parameter in signature.parameters.items()
    ]


def _resolved_hints(signature: inspect.Signature, module: str) -> dict[str, Any]:
    """Return the annotations of parameters, with strings resolved to their objects."""
    annotations = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if parameter.annotation is not parameter.empty
    }
    # `hints_of` takes a class, and resolves annotations that are strings in the module
    # of that class. So a class is made that has the module of the parameters.
    holder = type(
        "Parameters", (), {"__annotations__": annotations, "__module__": module}
    )
    return hints_of(holder) if module in sys.modules else annotations


def form_field(parameter: RecordField, depth: int = 0) -> FormField:
    """Return the field of a form for a parameter.

    Args:
        parameter: The parameter, or the field of a class.
        depth: The number of groups around the field.

    Example:
        >>> field = form_field(RecordField("mode", Literal["fast", "exact"], "fast"))
        >>> field.kind, field.choices, field.default
        ('choice', (('fast', 'fast'), ('exact', 'exact')), 'fast')
    """
    annotation, is_optional = split_optional(parameter.annotation)
    choices = tuple(choices_of(annotation).items())
    records = record_fields(annotation)
    kind: FieldKind = "json"
    members: tuple[FormField, ...] = ()
    if choices:
        kind = "choice"
    elif records is not None and depth < _DEEPEST:
        kind = "group"
        members = tuple(form_field(record, depth + 1) for record in records)
    elif isinstance(annotation, type):
        kind = _PLAIN_KINDS.get(annotation, "json")
    default = json_value(parameter.default)
    return FormField(
        name=parameter.name,
        kind=kind,
        type=type_text(parameter.annotation),
        is_required=parameter.default is MISSING,
        is_optional=is_optional,
        default=None if default is NOT_JSON else default,
        choices=tuple((label, json_value(value)) for label, value in choices),
        fields=members,
    )


def type_text(annotation: Any) -> str:
    """Return an annotation as a string."""
    if annotation is Any or annotation is MISSING:
        return ""
    return inspect.formatannotation(annotation)


def split_optional(annotation: Any) -> tuple[Any, bool]:
    """Return an annotation without None, and whether None is allowed.

    Example:
        >>> split_optional(int | None)
        (<class 'int'>, True)
    """
    annotation = without(_WRAPPERS, annotation)
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation, annotation is None or annotation is type(None)
    arguments = typing.get_args(annotation)
    others = [part for part in arguments if part is not type(None)]
    is_optional = len(others) < len(arguments)
    if len(others) == 1:
        return without(_WRAPPERS, others[0]), is_optional
    return annotation, is_optional


def choices_of(annotation: Any) -> dict[str, Any]:
    """Return the values of a `Literal` or the members of an enumeration, by their
    texts.
    """
    if typing.get_origin(annotation) is Literal:
        return {str(value): value for value in typing.get_args(annotation)}
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return {str(json_value(member)): member for member in annotation}
    return {}


def record_fields(annotation: Any) -> list[RecordField] | None:
    """Return the fields of a dataclass, a TypedDict, a named tuple or a pydantic model,
    or None for any other annotation.
    """
    if not isinstance(annotation, type):
        return None
    if dataclasses.is_dataclass(annotation):
        return _fields_of_dataclass(annotation)
    if hasattr(annotation, "__required_keys__"):
        return _fields_of_typed_dict(annotation)
    if issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        return _fields_of_named_tuple(annotation)
    models = getattr(annotation, "model_fields", None)
    return _fields_of_model(models) if isinstance(models, Mapping) else None


def _fields_of_dataclass(cls: Any) -> list[RecordField]:
    """Return the fields of a dataclass that its constructor takes."""
    hints = hints_of(cls, extras=True)
    records: list[RecordField] = []
    for field in dataclasses.fields(cls):
        default: Any = MISSING
        if field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.init:
            record = RecordField(field.name, hints.get(field.name, Any), default)
            records.append(record)
    return records


def _fields_of_typed_dict(cls: Any) -> list[RecordField]:
    """Return the keys of a TypedDict."""
    records: list[RecordField] = []
    for name, hint in hints_of(cls, extras=True).items():
        default = MISSING if name in cls.__required_keys__ else None
        records.append(RecordField(name, hint, default))
    return records


def _fields_of_named_tuple(cls: Any) -> list[RecordField]:
    """Return the fields of a named tuple."""
    hints = hints_of(cls, extras=True)
    records: list[RecordField] = []
    for name in cls._fields:
        default = cls._field_defaults.get(name, MISSING)
        records.append(RecordField(name, hints.get(name, Any), default))
    return records


def _fields_of_model(models: Mapping[str, Any]) -> list[RecordField]:
    """Return the fields of a pydantic model."""
    records: list[RecordField] = []
    for name, field in models.items():
        default: Any = MISSING
        if not field.is_required():
            default = field.get_default(call_default_factory=True, validated_data={})
        records.append(RecordField(name, field.annotation, default))
    return records


# ---------------------------------------------------------------- values as JSON


def json_value(value: Any) -> Any:
    """Return a value in the form in which a form shows it, or `NOT_JSON`.

    Example:
        >>> json_value((1, PurePath("a"))), json_value(object()) is NOT_JSON
        ([1, 'a'], True)
    """
    match value:
        case Enum():
            plain = json_value(value.value)
            is_plain = isinstance(plain, str | int | float)
            return plain if is_plain else value.name
        case None | str() | int() | float():
            return value
        case datetime() | date():
            return value.isoformat()
        case PurePath() | Decimal():
            return str(value)
        case bytes() | bytearray():
            return NOT_JSON
        case _:
            return _container_value(value)


def _container_value(value: Any) -> Any:
    """Return an object with fields or items in the form in which a form shows it, or
    `NOT_JSON`.
    """
    fields = value if isinstance(value, Mapping) else named_fields(value)
    if fields is not None:
        items = {name: json_value(item) for name, item in fields.items()}
        is_json = all(isinstance(name, str) for name in items)
        is_json = is_json and NOT_JSON not in items.values()
        return items if is_json else NOT_JSON
    if not isinstance(value, Sequence | Set):
        return NOT_JSON
    values = [json_value(item) for item in value]
    return NOT_JSON if NOT_JSON in values else values
