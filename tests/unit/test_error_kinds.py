"""Failed calls by kind of error, and the arguments that only they have."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from flowpregel._inspection.call_rows import CallChanges, CallRow
from flowpregel._inspection.error_kinds import (
    ErrorKind,
    FailedCalls,
    error_pattern,
    fields_in_text,
    shared_fields,
)


def row_of(id: str, error: str = "", name: str = "train", **arguments: Any) -> CallRow:
    """A call that failed with an error, or that is done."""
    zeros: dict[str, Any] = dict.fromkeys(CallRow._fields, 0)
    texts = dict.fromkeys(
        ("path", "caller", "namespace", "checkpoint_id", "executor", "host"), ""
    )
    fields = {
        **zeros,
        **texts,
        "id": id,
        "name": name,
        "text": f"{name}({id})",
        "state": "failed" if error else "done",
        "error": error,
        "preview": json.dumps({"a": arguments}) if arguments else "",
    }
    return CallRow(**fields)


def kinds_of(*rows: CallRow) -> list[ErrorKind]:
    failed = FailedCalls()
    failed.update(CallChanges(1, True, False, rows))
    return failed.kinds()


def test_calls_whose_errors_differ_in_numbers_are_one_kind() -> None:
    rows = [row_of(f"{n}", f"ValueError: nan at epoch {n}") for n in range(3)]

    (first, second) = kinds_of(*rows, row_of("x", "ValueError: none"))

    assert ("ValueError: nan at epoch #", 3) == (first.error, len(first.ids))
    assert ("ValueError: none", ("train(x)",)) == (second.error, second.calls)


@pytest.mark.parametrize(
    ("error", "pattern"),
    [
        ("E: 1.5e-7 of 12", "E: # of #"),
        ("E: <f at 0x7fa0c1>", "E: <f at #>"),
        ("E: no number", "E: no number"),
    ],
)
def test_numbers_in_an_error_become_a_sign(error: str, pattern: str) -> None:
    assert pattern == error_pattern(error)


def test_the_condition_is_what_only_the_failed_calls_share() -> None:
    """Each of the two values alone is that of many other calls."""
    rows: list[CallRow] = []
    for number in range(120):
        arguments = {
            "params.lr": [0.1, 0.01, 0.001][number % 3],
            "params.depth": [8, 12][number // 3 % 2],
            "params.seed": number,
            "mode": "fast",
        }
        is_bad = arguments["params.lr"] == 0.1 and arguments["params.depth"] == 12
        error = f"FloatingPointError: loss is nan at epoch {number}" if is_bad else ""
        rows.append(row_of(f"{number:03}", error, **arguments))

    (kind,) = kinds_of(*rows)

    assert 20 == len(kind.ids)
    assert kind.condition in (
        "only where lr = 0.1 and depth = 12",
        "only where depth = 12 and lr = 0.1",
    )


def test_a_condition_names_the_few_other_calls_that_fulfil_it() -> None:
    failed = [{"a": 1}] * 5
    others = [{"a": 1}, *[{"a": 2}] * 19]

    assert "where a = 1, as in 1 of 20 others" == str(shared_fields(failed, others))


@pytest.mark.parametrize(
    ("failed", "others"),
    [
        ([{"a": 1}], [{"a": 2}]),
        ([{"a": 1}, {"a": 1}], []),
        ([{"a": 1}, {"a": 1}], [{}, {}]),
        ([{"a": 1}, {"a": 2}], [{"a": 3}]),
        ([{"a": 1}, {"a": 1}], [{"a": 1}, {"a": 2}]),
        ([{}, {}], [{"a": 1}]),
    ],
    ids=["one", "no others", "others unknown", "differ", "many others", "unknown"],
)
def test_there_is_no_condition_without_evidence(
    failed: list[dict[str, Any]], others: list[dict[str, Any]]
) -> None:
    assert shared_fields(failed, others) is None


def test_true_is_not_one() -> None:
    shared = shared_fields([{"a": True}] * 2, [{"a": 1}] * 3)

    assert "only where a = True" == str(shared)


def test_a_body_is_no_failed_call_beside_its_call() -> None:
    call = row_of("1", "E: a")._replace(caller="body")
    body = row_of("0", "E: a", "flow")._replace(path="body", text="")
    node = row_of("2", "E: b", "node")._replace(path="node", text="")

    assert [("train(1)",), ("node",)] == [
        kind.calls for kind in kinds_of(body, call, node)
    ]


def test_a_call_that_succeeds_later_is_no_failure() -> None:
    failed = FailedCalls()
    failed.update(CallChanges(1, True, True, (row_of("1", "E: a"), row_of("2"))))
    assert 1 == len(failed.kinds())

    failed.update(CallChanges(2, False, False, (row_of("1"),)))

    assert [] == failed.kinds()


def test_a_large_run_is_compared_by_a_sample_that_spans_it() -> None:
    """The first calls alone would suggest a condition that is not true."""
    ids = [f"{number:032x}" for number in random.Random(1).sample(range(10**15), 9_000)]
    early = [row_of(id, a=1, b=2) for id in ids[:7_000]]
    late = [row_of(id, a=2, b=2) for id in ids[7_000:8_900]]
    bad = [row_of(id, "E: x", a=2, b=2) for id in ids[8_900:]]

    (kind,) = kinds_of(*early, *late, *bad)

    assert "" == kind.condition


def test_the_text_of_a_call_has_its_fields() -> None:
    fields = fields_in_text("f(0.1, 'x', [1], depth=-1, on=True, none=None)")

    assert {"argument 1": 0.1, "argument 2": "x", "on": True, "none": None} == fields
    assert {} == fields_in_text("train(<Params>)")
    assert {} == fields_in_text("")
