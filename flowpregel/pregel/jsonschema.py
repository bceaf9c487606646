"""JSON Schema of Python annotations: what a graph takes and gives, for programs and
forms.

pydantic writes the schema; it is imported when it is first needed. An annotation that
JSON Schema cannot express is shown as ``{}``, which allows any value.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Final, NotRequired, Required

from flowpregel.errors import ConfigurationError

Schema = dict[str, Any]

_WRAPPERS: Final = (Annotated, Required, NotRequired, typing.Final)


def json_schema_of(
    typ: Any,
    title: str,
) -> Schema:
    """Return the JSON Schema of *typ*.

    Args:
        typ: An annotation.
        title: The title of the schema, unless *typ* is a pydantic model.

    Raises:
        ConfigurationError: pydantic is not installed.

    Example:
        >>> json_schema_of(int, "Number")
        {'title': 'Number', 'type': 'integer'}
    """
    model = model_of(typ, title)
    if not hasattr(model, "model_json_schema"):
        raise ConfigurationError(
            "a JSON Schema needs pydantic, which is not installed: pip install pydantic"
        )
    from pydantic.json_schema import GenerateJsonSchema  # noqa: PLC0415 - as in model_of

    class Lenient(GenerateJsonSchema):
        def handle_invalid_for_json_schema(
            self,
            schema: Any,
            error_info: str,
        ) -> Schema:
            return {}

    schema: Schema = model.model_json_schema(schema_generator=Lenient)
    return schema


def model_of(
    typ: Any,
    name: str,
) -> Any:
    """Return a pydantic model of *typ*, or *typ* itself if pydantic is not installed.

    Args:
        typ: An annotation.
        name: The name of the model.
    """
    try:
        import pydantic  # noqa: PLC0415 - slow to import, and seldom needed
        import typing_extensions  # noqa: PLC0415 - pydantic brings it; knows its own TypedDict too
    except ImportError:
        return typ
    typ = without(_WRAPPERS, typ)
    if isinstance(typ, type) and issubclass(typ, pydantic.BaseModel):
        return typ
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    is_named_tuple = (
        isinstance(typ, type) and issubclass(typ, tuple) and hasattr(typ, "_fields")
    )
    if not (
        is_named_tuple
        or typing_extensions.is_typeddict(typ)
        or dataclasses.is_dataclass(typ)
    ):
        base = type("Root", (pydantic.RootModel,), {"model_config": config})
        return pydantic.create_model(name, __base__=base[typ])  # type: ignore[index]
    fields: dict[str, Any] = {
        key: (without(_WRAPPERS, hint), _field_default(typ, key, hint))
        for key, hint in hints_of(typ, extras=True).items()
        if typing.get_origin(hint) is not ClassVar
    }
    return pydantic.create_model(name, __config__=config, **fields)


def _field_default(
    typ: Any,
    key: str,
    hint: Any,
) -> Any:
    """Return what pydantic takes as the default of a field; ``...`` if it is
    required.
    """
    from pydantic import Field  # noqa: PLC0415 - as in model_of

    optional = Field(default_factory=lambda: None)
    if dataclasses.is_dataclass(typ):
        return typ.__dataclass_fields__[key]
    if hasattr(typ, "_fields"):
        return typ._field_defaults.get(key, ...)
    # if it was text, its class missed it
    if typing.get_origin(hint) in (Required, NotRequired):
        return ... if typing.get_origin(hint) is Required else optional
    return optional if key in typ.__optional_keys__ else ...


def without(
    wrappers: Collection[Any],
    typ: Any,
) -> Any:
    """Return *typ* without those of *wrappers* that are around it, such as
    ``Required``.
    """
    while typing.get_origin(typ) in wrappers:
        typ = typing.get_args(typ)[0]
    return typ


def hints_of(
    target: Any,
    *,
    extras: bool = False,
) -> dict[str, Any]:
    """Return the annotations of a class or a function, resolved.

    If one of them cannot be (a class of a function's own, a missing import), all are
    `Any`.

    Args:
        target: Anything; what has no annotations gives none.
        extras: Whether to keep what `Annotated` adds.
    """
    try:
        return typing.get_type_hints(target, include_extras=extras)
    except Exception:  # noqa: BLE001 - annotations may be any text
        return dict.fromkeys(getattr(target, "__annotations__", {}), Any)
