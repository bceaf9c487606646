"""The parts of code that are stored beside its source, and what changed in them."""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel._code.digest import code_digest
from flowpregel._code.parts import MOST_PARTS, CodePart, parts_in, parts_record
from flowpregel._code.sources import SOURCES, note_code, parts_key
from flowpregel._inspection.code_changes import changes_text, difference_in
from flowpregel.checkpoint.memory import InMemorySaver

SMALL = {"b": 1, "a": None}
LONG = "x" * 100


def uses_small() -> Any:
    return SMALL


def uses_long() -> Any:
    return LONG


@pytest.mark.parametrize(
    ("function", "content"),
    [(uses_small, "={'b': 1, 'a': None}"), (uses_long, None)],
)
def test_a_small_constant_is_stored_as_text(function: Any, content: str | None) -> None:
    """A larger one by its digest."""
    parts = code_digest(function).named_parts

    constant = next(part for part in parts if part.kind == "constant")

    assert (constant.content == content) == (content is not None)
    assert (constant.value is None) == (content is None)
    assert len(constant.content) < 60


def test_a_record_is_bounded_and_read_back() -> None:
    """Lines that are no parts, of a later version for example, are left out."""
    parts = [CodePart("constant", f"K{n}", f"={n}") for n in range(2 * MOST_PARTS)]

    record = parts_record(parts)

    assert parts[:MOST_PARTS] == parts_in(f"{record}\nfuture\tK\t=1\nconstant\tK")


def record_of(*parts: tuple[Any, str, str]) -> str:
    return parts_record(CodePart(*part) for part in parts)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ([("constant", "K", "=1")], [("constant", "K", "=5")], "constant K: 1 -> 5"),
        (
            [("class", "A", "1f"), ("version", "numpy", "=1.26")],
            [("class", "A", "2f"), ("version", "numpy", "=2.0")],
            "class A: its code changed; version of numpy: 1.26 -> 2.0",
        ),
        (
            [("constant", name, "=1") for name in "abcde"],
            [("constant", name, "=2") for name in "abcde"],
            "constant a: 1 -> 2; constant b: 1 -> 2; constant c: 1 -> 2; and 2 more",
        ),
        (
            [("function", "f", "1f"), ("constant", "J", "=1")],
            [("function", "f", "1f"), ("constant", "K", "=1")],
            "now uses constant K; no longer uses constant J",
        ),
        (
            [("function", "f", "1f"), ("function", "f", "2f")],
            [("function", "f", "1f"), ("function", "f", "3f")],
            "function f: its code changed",
        ),
        (
            [("function", "f.<locals>.g", "1f")],
            [("function", "h.<locals>.g", "2f")],
            "function g: its code changed",
        ),
        ([], [("constant", "K", "=5")], ""),
        ([("constant", "K", "=1")], [], ""),
    ],
)
def test_the_parts_that_changed_are_named(
    before: Any, after: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most three; what is new or gone, only if no other part explains the change."""
    monkeypatch.setitem(SOURCES, parts_key("now"), record_of(*after))

    assert text == changes_text("before", record_of(*before), "now")


def test_a_version_of_a_task_is_named() -> None:
    assert "version=: '1' -> none" == changes_text("version 1", "", "1f")
    assert "version=: '1' -> '2'" == changes_text("version 1", "", "version 2")
    assert "" == changes_text("version 1", "", "version 1")


class EarlierStore(InMemorySaver):
    """A store of an earlier version, which has sources without parts."""

    def source_of(self, code: str) -> str:
        return {"before": "def f():\n    return 1\n"}.get(code, "")


def test_code_of_an_earlier_version_is_compared_by_its_source() -> None:
    note_code("now", [code_digest(uses_small)])

    difference = difference_in(EarlierStore(), "before", "now")

    assert "-def f(): | +def uses_small() -> Any:" == difference
    SOURCES.pop("now")
