"""JSON Schema of annotations, written by pydantic."""

from __future__ import annotations

import datetime
import enum
import operator
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    NewType,
    Optional,
    TypedDict,
)

import pytest
import typing_extensions
from pydantic import BaseModel, TypeAdapter

from flowpregel.pregel.jsonschema import json_schema_of, model_of


class Colour(enum.Enum):
    """Some values."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    """Fields with and without defaults."""

    x: int
    y: float = 0.5
    tags: list[str] = field(default_factory=list)
    count: ClassVar[int] = 0


class Tree(typing_extensions.TypedDict):
    """Contains itself."""

    value: int
    children: list[Tree]
    note: typing_extensions.NotRequired[str]


class Pair(NamedTuple):
    """A tuple with names."""

    a: int
    b: str = "b"


class Inner(BaseModel):
    """A pydantic model in another class."""

    n: int = 1


@dataclass
class Outer:
    """A class with one of another kind inside."""

    inner: Inner
    point: Point


UserId = NewType("UserId", int)


@pytest.mark.parametrize(
    ("typ", "schema"),
    [
        (str, {"type": "string"}),
        (None, {"type": "null"}),
        (Any, {}),
        (object, {}),
        (Callable[[], int], {}),
        (UserId, {"type": "integer"}),
        (
            Annotated[list[int], operator.add],
            {"type": "array", "items": {"type": "integer"}},
        ),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045 - as people write it
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Literal["a", "b"], {"enum": ["a", "b"], "type": "string"}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (
            set[int],
            {"type": "array", "uniqueItems": True, "items": {"type": "integer"}},
        ),
        (list, {"type": "array", "items": {}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (
            dict[str, int],
            {"type": "object", "additionalProperties": {"type": "integer"}},
        ),
        (Mapping, {"type": "object", "additionalProperties": True}),
        (datetime.datetime, {"type": "string", "format": "date-time"}),
    ],
)
def test_an_annotation_says_this(typ: Any, schema: dict[str, Any]) -> None:
    assert schema == {
        key: value for key, value in json_schema_of(typ, "T").items() if key != "title"
    }


def test_fields_without_defaults_are_required() -> None:
    assert {
        "title": "T",
        "type": "object",
        "properties": {
            "x": {"title": "X", "type": "integer"},
            "y": {"title": "Y", "type": "number", "default": 0.5},
            "tags": {"title": "Tags", "type": "array", "items": {"type": "string"}},
        },
        "required": ["x"],
    } == json_schema_of(Point, "T")
    assert ["a"] == json_schema_of(Pair, "T")["required"]


def test_a_key_is_as_required_as_in_the_class_that_declares_it() -> None:
    """A subclass may be total where its base is not, and the other way round."""
    partial = TypedDict("Partial", {"a": int}, total=False)  # noqa: UP013 - not read as text
    total = TypedDict("Total", {"b": int})  # noqa: UP013 - as above

    class Both(partial):  # type: ignore[misc, valid-type]
        c: int

    class Other(total, total=False):  # type: ignore[misc, valid-type]
        d: int

    assert ["c"] == json_schema_of(Both, "T")["required"]
    assert ["b"] == json_schema_of(Other, "T")["required"]


def test_a_typed_dict_of_typing_extensions_is_one() -> None:
    """It is another class than that of typing before Python 3.12."""

    class State(typing_extensions.TypedDict):
        x: int
        y: typing_extensions.NotRequired[str]

    assert {
        "title": "State",
        "type": "object",
        "properties": {
            "x": {"title": "X", "type": "integer"},
            "y": {"title": "Y", "type": "string"},
        },
        "required": ["x"],
    } == json_schema_of(State, "State")
    assert ["x", "y"] == [*model_of(State, "State").model_fields]


def test_a_class_may_contain_itself() -> None:
    schema = json_schema_of(Tree, "T")

    assert ["value", "children"] == schema["required"]
    children = {"title": "Children", "type": "array", "items": {"$ref": "#/$defs/Tree"}}
    assert children == schema["properties"]["children"]
    assert children == schema["$defs"]["Tree"]["properties"]["children"]


def test_classes_inside_others_are_referred_to() -> None:
    schema = json_schema_of(Outer, "T")

    assert {"$ref": "#/$defs/Inner"} == schema["properties"]["inner"]
    assert {"Inner", "Point"} == schema["$defs"].keys()
    assert Inner.model_json_schema() == schema["$defs"]["Inner"]


def test_an_enum_is_a_definition() -> None:
    schema = json_schema_of(list[Colour], "T")

    assert {"$ref": "#/$defs/Colour"} == schema["items"]
    assert ["red", "blue"] == schema["$defs"]["Colour"]["enum"]


def without(*modules: str) -> str:
    """Return what a program prints of two schemas where some modules are not
    installed.
    """
    code = f"""
        import sys
        sys.modules.update(dict.fromkeys({modules!r}))
        from flowpregel.pregel.jsonschema import json_schema_of, model_of
        from flowpregel.errors import ConfigurationError
        print(model_of(int, "Number"))
        try:
            print(json_schema_of(int, "Number"))
        except ConfigurationError as error:
            print(error)
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_without_pydantic_the_error_says_what_to_install() -> None:
    assert "<class 'int'>\na JSON Schema needs pydantic" in without("pydantic")


def test_names_that_are_not_there_say_nothing() -> None:
    broken = TypedDict("broken", {"a": "NoSuchClass"})  # type: ignore[name-defined] # noqa: F821, UP013 - that is the point

    assert {"title": "A"} == json_schema_of(broken, "T")["properties"]["a"]


@pytest.mark.parametrize("typ", [Inner, Point, Outer, dict[str, list[int]], int | None])
def test_pydantic_says_the_same(typ: Any) -> None:
    """But for the title and the order, and the doc of a class."""

    def bare(schema: Any) -> Any:
        if isinstance(schema, dict):
            return {
                k: bare(v)
                for k, v in schema.items()
                if k not in ("title", "description")
            }
        return schema

    assert bare(TypeAdapter(typ).json_schema()) == bare(json_schema_of(typ, "T"))


def test_a_model_checks_what_its_schema_says() -> None:
    model = model_of(Point, "PointInput")

    assert "PointInput" == model.__name__
    assert 3 == model(x="3").x
    with pytest.raises(ValueError, match="valid integer"):
        model(x="three")
    assert [1] == model_of(list[int], "Numbers")(["1"]).root
    assert Inner is model_of(Inner, "any")
