"""JSON Schema of Python annotations: what a graph takes and gives, for programs and forms.

Classes with fields (TypedDict, dataclass, NamedTuple, pydantic model) are
objects; those that stand inside others are definitions that are referred to, so
that a class may contain itself. What JSON has no word for says nothing: ``{}``.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pathlib
import types
import typing
import uuid
from collections import abc, deque
from typing import Annotated, Any, ClassVar, Final, Literal, NotRequired, Required, Union

Schema = dict[str, Any]

_PLAIN: Final[dict[Any, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    bytes: {"type": "string", "format": "binary"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"},
    datetime.timedelta: {"type": "string", "format": "duration"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    decimal.Decimal: {"anyOf": [{"type": "number"}, {"type": "string"}]},
    pathlib.Path: {"type": "string", "format": "path"},
}
_WRAPPERS: Final = (Annotated, Required, NotRequired, ClassVar, typing.Final)
_LISTS: Final = (list, deque, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection)
_SETS: Final = (set, frozenset, abc.Set, abc.MutableSet)
_MAPPINGS: Final = (dict, abc.Mapping, abc.MutableMapping)


def json_schema_of(typ: Any, title: str) -> Schema:
    """Return the JSON Schema of *typ*.

    Args:
        typ: An annotation.
        title: What to call it, if it has no name of its own.

    Example:
        >>> json_schema_of(list[int], "Numbers")
        {'title': 'Numbers', 'type': 'array', 'items': {'type': 'integer'}}
    """
    made = _Maker()
    typ = _bare(typ)
    if _is_model(typ):
        model: Schema = typ.model_json_schema()
        return model
    found = made.fields_of(typ) if _has_fields(typ) else made.of(typ)
    schema = {"title": title, **found}
    return {**schema, "$defs": made.definitions} if made.definitions else schema


class _Maker:
    """Makes schemas, and collects the definitions they refer to."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def of(self, typ: Any) -> Schema:
        """Return the schema of any annotation."""
        typ = _bare(typ)
        if typing.Hashable is not typ and _is_plain(typ):
            return dict(_PLAIN[typ])
        origin, args = typing.get_origin(typ) or typ, typing.get_args(typ)
        if origin is Literal:
            return _enum(args)
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(each) for each in args]}
        if isinstance(origin, type):
            return self._of_class(origin, args)
        return {}

    def _of_class(self, origin: type[Any], args: tuple[Any, ...]) -> Schema:
        if issubclass(origin, enum.Enum):
            return {"title": origin.__name__, **_enum([each.value for each in origin])}
        if _is_model(origin) or _has_fields(origin):
            return self._reference(origin)
        if origin is tuple:
            return self._tuple(args)
        item = {"items": self.of(args[0])} if args else {"items": {}}
        if origin in _LISTS:
            return {"type": "array", **item}
        if origin in _SETS:
            return {"type": "array", "uniqueItems": True, **item}
        if origin in _MAPPINGS:
            values = self.of(args[1]) if len(args) == 2 else {}
            return {"type": "object", "additionalProperties": values or True}
        return {}

    def _tuple(self, args: tuple[Any, ...]) -> Schema:
        if not args:
            return {"type": "array", "items": {}}
        if args[-1] is Ellipsis:
            return {"type": "array", "items": self.of(args[0])}
        return {
            "type": "array",
            "prefixItems": [self.of(each) for each in args],
            "minItems": len(args),
            "maxItems": len(args),
        }

    def _reference(self, typ: Any) -> Schema:
        """Return a reference to the definition of a class, which is made when it is not yet."""
        name = typ.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # it may contain itself
            if _is_model(typ):
                schema = typ.model_json_schema()
                self.definitions.update(schema.pop("$defs", {}))
            else:
                schema = {"title": name, **self.fields_of(typ)}
            self.definitions[name] = schema
        return {"$ref": f"#/$defs/{name}"}

    def fields_of(self, typ: Any) -> Schema:
        """Return a class with fields as an object."""
        properties: dict[str, Schema] = {}
        required = []
        for name, field in _fields(typ).items():
            found = self.of(field.typ)
            if "$ref" not in found:
                found = {"title": name.replace("_", " ").title(), **found}
            properties[name] = found | _shown(field.default)
            if field.is_required:
                required.append(name)
        schema: Schema = {"type": "object", "properties": properties}
        return {**schema, "required": required} if required else schema


class _Field(typing.NamedTuple):
    """What a class says of one of its fields."""

    typ: Any
    is_required: bool
    default: Any = ...
    """``...``: it has none."""
    factory: Any = None


def _fields(typ: Any) -> dict[str, _Field]:
    """Return the fields of a TypedDict, dataclass or NamedTuple."""
    hints = {
        name: hint for name, hint in _hints(typ).items() if typing.get_origin(hint) is not ClassVar
    }
    if dataclasses.is_dataclass(typ):
        return {each.name: _of_dataclass(each, hints) for each in dataclasses.fields(typ)}
    if not _is_typed_dict(typ):
        defaults = typ._field_defaults
        return {
            name: _Field(hint, name not in defaults, defaults.get(name, ...))
            for name, hint in hints.items()
        }
    # Of annotations that are texts, the class itself does not know whether they are required.
    return {
        name: _Field(
            hint,
            typing.get_origin(hint) is Required
            or (typ.__total__ and typing.get_origin(hint) is not NotRequired),
        )
        for name, hint in hints.items()
    }


def _of_dataclass(field: dataclasses.Field[Any], hints: dict[str, Any]) -> _Field:
    missing = dataclasses.MISSING
    hint = hints.get(field.name, Any)
    if field.default is not missing:
        return _Field(hint, False, field.default)
    if field.default_factory is not missing:
        return _Field(hint, False, factory=field.default_factory)
    return _Field(hint, True)


def _bare(typ: Any) -> Any:
    """Return an annotation without what stands around the type."""
    while typing.get_origin(typ) in _WRAPPERS:
        typ = typing.get_args(typ)[0]
    return getattr(typ, "__supertype__", typ)


def _is_plain(typ: Any) -> bool:
    try:
        return typ in _PLAIN
    except TypeError:  # an annotation of a user's that cannot be hashed
        return False


def _is_model(typ: Any) -> bool:
    return isinstance(typ, type) and hasattr(typ, "model_json_schema")


def _has_fields(typ: Any) -> bool:
    is_named_tuple = isinstance(typ, type) and issubclass(typ, tuple) and hasattr(typ, "_fields")
    return _is_typed_dict(typ) or dataclasses.is_dataclass(typ) or is_named_tuple


def _is_typed_dict(typ: Any) -> bool:
    # Not typing.is_typeddict: it does not know those of typing_extensions.
    return isinstance(typ, type) and issubclass(typ, dict) and hasattr(typ, "__total__")


def _hints(typ: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(typ, include_extras=True)
    except (NameError, TypeError, AttributeError):
        # Names that are not there at run time: what they would say is not known.
        return dict.fromkeys(getattr(typ, "__annotations__", {}), Any)


def _shown(default: Any) -> Schema:
    """Return a default, if JSON has it."""
    if default is None or isinstance(default, str | int | float | bool):
        return {"default": default}
    return {}


def _enum(values: typing.Sequence[Any]) -> Schema:
    kinds = {type(value) for value in values}
    kind = _PLAIN.get(kinds.pop(), {}) if len(kinds) == 1 else {}
    return {"enum": [*values], **kind}


def model_of(typ: Any, name: str) -> Any:
    """Return a pydantic model of *typ*; without pydantic *typ* itself.

    Args:
        typ: An annotation.
        name: What to call the model.
    """
    try:
        from pydantic import (  # noqa: PLC0415 - not needed, and slow
            BaseModel,
            ConfigDict,
            Field,
            RootModel,
            create_model,
        )
    except ImportError:
        return typ
    typ = _bare(typ)
    if isinstance(typ, type) and issubclass(typ, BaseModel):
        return typ
    if not _has_fields(typ):
        return create_model(name, __base__=RootModel[typ])
    fields: dict[str, Any] = {}
    for key, field in _fields(typ).items():
        default = Field(default_factory=field.factory) if field.factory else field.default
        if not field.is_required and default is ...:
            default = None
        fields[key] = (_bare(field.typ), default)
    return create_model(name, __config__=ConfigDict(arbitrary_types_allowed=True), **fields)
