"""The terms that a person types, and what they match."""

from __future__ import annotations

import math

import pytest

from flowpregel._inspection.call_query import (
    CallQuery,
    FieldValue,
    Term,
    parse_number,
    parse_terms,
)
from flowpregel.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        ("  nan  Loss ", [Term("nan"), Term("loss")]),
        ('"is nan"', [Term("is nan")]),
        ("task:train", [Term("train", "task")]),
        ("-task:train", [Term("train", "task", is_negated=True)]),
        ("-nan", [Term("nan", is_negated=True)]),
        ("took:>=2.5", [Term("2.5", "took", ">=")]),
        ('error:="a b"', [Term("a b", "error", "=")]),
        ("depth:12", [Term("12", "depth")]),
        ("params.lr:<0.1", [Term("0.1", "params.lr", "<")]),
        # A colon is part of a word if no field has the name before it.
        ("ValueError: http://x", [Term("valueerror:"), Term("http://x")]),
        ("state:", [Term("state:")]),
    ],
)
def test_a_text_is_read_as_terms(text: str, terms: list[Term]) -> None:
    assert terms == parse_terms(text, {"depth", "params.lr"})


@pytest.mark.parametrize(
    ("term", "value", "is_match"),
    [
        (Term("nan"), "loss is NaN", True),
        (Term("12", "depth"), 12, True),
        (Term("12", "depth"), 12.0, True),
        (Term("12", "depth"), 120, False),
        (Term("0.2", "loss", "<"), 0.1, True),
        (Term("0.2", "loss", "<"), 0.2, False),
        (Term("0.2", "loss", "<="), 0.2, True),
        (Term("2", "took", ">"), 3, True),
        (Term("2", "took", ">"), math.inf, False),
        (Term("nan", "loss"), math.nan, True),
        (Term("low", "took", ">"), 3, False),
        (Term("true", "wide"), True, True),
        (Term("1", "wide"), True, False),
        (Term("ada", "kind"), "Adam", True),
        (Term("ada", "kind", "="), "Adam", False),
        (Term("b", "kind", ">"), "c", True),
        (Term("1", "depth"), None, False),
        (Term("1", "depth", is_negated=True), None, True),
        (Term("12", "depth", is_negated=True), 12, False),
        (Term("500ms", "took", ">"), 0.6, True),
        (Term("2m", "took", "<"), 119, True),
        (Term("1gb", "memory", ">"), 2_000_000_000, True),
    ],
)
def test_a_term_compares_a_value(term: Term, value: FieldValue, is_match: bool) -> None:
    assert is_match == term.matches(value)


@pytest.mark.parametrize("text", ["", "x", "1.2.3", "1.2.3s", "..mb", "5 s"])
def test_a_text_without_a_number_has_none(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize(
    "wrong", [{"offset": -1}, {"count": -1}, {"count": 1_001}, {"states": ["lost"]}]
)
def test_a_query_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        CallQuery(**wrong)  # type: ignore[arg-type]
