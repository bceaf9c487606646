"""The short values of a call by field, which are recorded where the call runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pytest

from flowpregel._core.previews import (
    LONGEST_FIELD,
    MOST_BYTES,
    MOST_FIELDS,
    argument_fields,
    field_value,
    first_fields,
    pack_media,
    unpack_media,
    value_fields,
)
from flowpregel._core.records import Node
from flowpregel._inspection.call_previews import (
    NO_CALL_PREVIEW,
    media_to_json,
    read_preview,
)
from flowpregel._inspection.call_query import recorded_fields
from flowpregel._inspection.call_rows import CallRow
from flowpregel._inspection.preview import ReprText
from flowpregel.executors.previews import (
    LARGEST_MEDIA,
    LARGEST_PICTURE,
    media_of,
    packed_media,
    result_fields,
)
from flowpregel.func.mapping import positional_parameters

PNG = b"\x89PNG\r\n\x1a\n"


@dataclass
class Params:
    depth: int
    rates: list[float] = field(default_factory=list)
    api_key: str = "sk-1"


class Point(NamedTuple):
    x: float
    y: float


class Colour(Enum):
    RED = 1


class Array:
    """An array, to look at."""

    shape = (3, 1_000)
    dtype = "float32"


class Scalar:
    """An array without dimensions."""

    shape = ()

    def item(self) -> float:
        return 0.5


class Hostile:
    """A class that raises whatever is read of it."""

    @property
    def shape(self) -> Any:
        raise RuntimeError("no shape")

    _repr_png_ = shape
    _repr_markdown_ = shape


def fields_of(
    func: Callable[..., Any],
    *args: Any,
    redacted: frozenset[int | str] = frozenset(),
    **kwargs: Any,
) -> dict[str, Any]:
    """Return the fields of the call ``func(*args, **kwargs)``."""
    parameters = positional_parameters(func)
    node = Node(name="f", redacted=redacted, parameters=parameters)
    return dict(argument_fields(node, args, kwargs))


def train(params: Any, seed: int = 0, *rest: Any, note: str = "") -> None:
    """A function with all kinds of parameters."""


def test_arguments_are_named_by_parameter_and_field() -> None:
    assert {
        "params.depth": 8,
        "params.rates": ["[0.1, 0.2]"],
        "params.api_key": ["<redacted>"],
        "seed": 3,
        "2": "more",
        "note": "hi",
    } == fields_of(train, Params(8, [0.1, 0.2]), 3, "more", note="hi")


def test_parameters_of_a_method_and_of_a_wrapped_function_are_named() -> None:
    class Model:
        def fit(self, rows: int) -> None: ...

    assert {"rows": 3} == fields_of(Model().fit, 3)
    assert {"0": 3} == fields_of(print, 3)
    assert {"0": 3} == fields_of(min, 3)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (-5, -5),
        (1 << 60, [str(1 << 60)]),
        (0.25, 0.25),
        (float("nan"), ["nan"]),
        (float("-inf"), ["-inf"]),
        ("a text", "a text"),
        ("x" * 100, "x" * (LONGEST_FIELD - 1) + "…"),
        ("postgres://ann:pw@host/db", "postgres://<redacted>@host/db"),
        (date(2026, 1, 2), "2026-01-02"),
        (PurePosixPath("/a/b"), "/a/b"),
        (Colour.RED, ["Colour.RED"]),
        ({"password": 1}, ["<dict of 1>"]),
        ([1, 2], ["[1, 2]"]),
        (list(range(9)), ["[0, 1, 2, 3, ...]"]),
        (Array(), ["<Array 3 x 1,000 float32>"]),
        (Scalar(), 0.5),
        (Hostile(), ["<Hostile>"]),
    ],
)
def test_a_value_is_a_number_a_short_text_or_described(value: Any, shown: Any) -> None:
    assert shown == field_value(value)


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "db_passwd",
        "client_secret",
        "apiKey",
        "API_KEY",
        "accessKey",
        "token",
        "auth_token",
        "authToken",
        "credentials",
    ],
)
def test_values_with_the_name_of_a_secret_are_redacted(name: str) -> None:
    assert {name: ["<redacted>"]} == value_fields({name: "hidden"})
    assert {"note": "", name: ["<redacted>"]} == fields_of(
        train, note="", **{name: "hidden"}
    )


@pytest.mark.parametrize("name", ["max_tokens", "token_count", "keys", "depth"])
def test_values_with_other_names_are_not(name: str) -> None:
    assert {name: 3} == value_fields({name: 3})


def test_arguments_that_a_task_redacts_are_not_shown() -> None:
    redacted = frozenset({0, "params", "note"})

    assert {
        "params": ["<redacted>"],
        "seed": 1,
        "note": ["<redacted>"],
    } == fields_of(train, Params(8), 1, note="x", redacted=redacted)


def test_fields_are_bounded_in_number_and_size() -> None:
    many = {f"field_{number}": "ü" * 500 for number in range(500)}

    found = fields_of(train, many, 1)
    packed = first_fields({"a": found, "r": value_fields(many), "m": {"loss": 0.5}})

    assert MOST_FIELDS == len(found)
    assert len(packed) <= MOST_BYTES
    assert json.loads(packed)["a"].items() <= found.items()


def test_named_tuples_and_dicts_of_texts_have_fields() -> None:
    assert {"x": 1.0, "y": 2.0} == value_fields(Point(1.0, 2.0))
    assert {"loss": 0.5} == value_fields({"loss": 0.5})
    assert value_fields({1: "one"}) is None
    assert value_fields([1]) is None


def test_a_result_without_fields_is_described() -> None:
    assert {"loss": ["nan"]} == result_fields({"loss": float("nan")})
    assert ["<set of 2>"] == result_fields({1, 2})
    assert ["<Hostile>"] == result_fields(Hostile())


# ---------------------------------------------------------------- media


class Figure:
    """A figure as IPython knows one."""

    def __init__(self, **shown: Any) -> None:
        self.shown = shown

    def _repr_png_(self) -> Any:
        return self.shown.get("png")

    def _repr_svg_(self) -> Any:
        return self.shown.get("svg")

    def _repr_markdown_(self) -> Any:
        return self.shown.get("markdown")


class Plot:
    """A figure as matplotlib has one."""

    def savefig(self, file: Any, **options: Any) -> None:
        file.write(PNG + repr(options).encode())


class Frame:
    """A table as pandas has one."""

    columns = ("name", "password_count")
    shape = (100, 2)

    def head(self, count: int) -> Frame:
        self.count = count
        return self

    def itertuples(self, **_: Any) -> list[tuple[Any, ...]]:
        return [("a", float("nan"))] * self.count


@pytest.mark.parametrize(
    ("value", "kind", "data"),
    [
        ("one\ntwo", "text", b"one\ntwo"),
        (PNG + b"data", "png", PNG + b"data"),
        (b"\xff\xd8\xffdata", "jpeg", b"\xff\xd8\xffdata"),
        (Figure(png=PNG + b"1"), "png", PNG + b"1"),
        (Figure(png=(PNG + b"1", {"width": 2})), "png", PNG + b"1"),
        (Figure(svg="<svg></svg>"), "svg", b"<svg></svg>"),
        (Figure(markdown="# Title"), "markdown", b"# Title"),
        ("<svg xmlns='x'></svg>", "svg", b"<svg xmlns='x'></svg>"),
        (Plot(), "png", PNG + b"{'format': 'png', 'dpi': 80}"),
    ],
)
def test_a_value_is_shown_by_its_picture_or_text(
    value: Any, kind: str, data: bytes
) -> None:
    assert [("result", kind, data)] == media_of(value, "result")


@pytest.mark.parametrize(
    "value", ["short", 3, None, b"bytes", Figure(), Hostile(), Array(), {"a": 1}]
)
def test_other_values_have_no_media(value: Any) -> None:
    assert [] == media_of(value, "result")


def test_a_table_is_shown_by_its_first_rows() -> None:
    ((_, kind, data),) = media_of(Frame(), "result")

    table = json.loads(data)
    assert "table" == kind
    assert ["name", "password_count"] == table["columns"]
    assert [["a", ["nan"]]] * 10 == table["rows"]
    assert [100, 2] == table["shape"]


def test_of_a_long_text_the_first_lines_are_shown() -> None:
    ((_, _, data),) = media_of("line\n" * 10_000, "result")

    assert data.startswith(b"line\nline\n")
    assert data.endswith("\n… (50,000 characters)".encode())
    assert len(data) < 200


def test_a_picture_that_is_too_large_is_left_out() -> None:
    assert [] == media_of(PNG + bytes(LARGEST_PICTURE), "result")
    assert [] == media_of(Figure(svg="<svg>" + " " * LARGEST_PICTURE), "result")


def test_media_have_a_limit_together() -> None:
    half = bytes(LARGEST_MEDIA // 2)

    media = unpack_media(packed_media([("a", "png", half)] * 3))

    assert [("a", "png", half)] * 2 == media


def test_media_are_read_as_data_urls_tables_and_texts() -> None:
    table = {"columns": ["a"], "rows": [[["nan"]]], "shape": [9, 1]}
    packed = pack_media(
        [
            ("result", "png", b"12"),
            ("ü", "text", b"one"),
            ("t", "table", b'{"columns":["a"],"rows":[[["nan"]]],"shape":[9,1]}'),
            ("later", "hologram", b"?"),
        ]
    )

    assert [
        {"title": "result", "kind": "picture", "url": "data:image/png;base64,MTI="},
        {"title": "ü", "kind": "text", "text": "one"},
        {"title": "t", "kind": "table", "table": table},
    ] == media_to_json(packed)
    assert [] == media_to_json(b"") == media_to_json(b"no media")


# ---------------------------------------------------------------- reading


def test_a_preview_is_read_with_descriptions_apart_from_texts() -> None:
    preview = read_preview(b'{"a":{"n":3,"t":"<x>","p":["<x>"]},"r":{"loss":["nan"]}}')

    assert "f(n=3, t='<x>', p=<x>)" == preview.call_text("f")
    assert isinstance(preview.result["loss"], ReprText)
    assert {} == preview.metrics


@pytest.mark.parametrize(
    "table", [b"[]", b"3", b'{"rows":[]}', b'{"columns":1,"rows":[],"shape":[1,1]}']
)
def test_a_table_of_another_form_is_left_out(table: bytes) -> None:
    packed = pack_media([("one", "text", b"1"), ("two", "table", table)])

    assert ["one"] == [medium["title"] for medium in media_to_json(packed)]


def test_nested_values_of_another_program_are_described() -> None:
    preview = read_preview('{"a":{"x":{"y":[1]},"z":[[1]]},"r":{"s":{}}}')

    assert {"x": "{...}", "z": "[1]"} == preview.arguments
    assert {"s": "{...}"} == preview.result


@pytest.mark.parametrize("data", ["", "no JSON", "[]", '{"a":3}', '{"a":' * 9_000])
def test_a_preview_that_cannot_be_read_is_empty(data: str) -> None:
    assert NO_CALL_PREVIEW == read_preview(data)


def row_of(preview: str) -> CallRow:
    """Return the row of a call with this preview."""
    empty = CallRow._make([""] * len(CallRow._fields))
    return empty._replace(preview=preview)


def test_a_call_has_its_metrics_arguments_and_result_as_fields() -> None:
    row = row_of(
        '{"a":{"params.depth":8,"a.x":1,"b.x":2,"step":4,"epochs":9},'
        '"r":{"loss":0.5,"depth":1},"m":{"epochs":3}}'
    )

    assert {
        "depth": 8,
        "a.x": 1,
        "b.x": 2,
        "argument.step": 4,
        "epochs": 9,
        "metric.epochs": 3,
        "loss": 0.5,
        "result.depth": 1,
    } == recorded_fields(row)
    assert {"n": 2, "result": 4} == recorded_fields(row_of('{"a":{"n":2},"r":4}'))
    assert {} == recorded_fields(row_of(""))
