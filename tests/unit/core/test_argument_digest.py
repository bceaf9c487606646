"""Digests of arguments are those of their content: in every process, and in every
Python.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowpregel import shared
from flowpregel._pickling.digest import arguments_digest
from tests.unit.code.code_packages import PYTHONS, run
from tests.unit.core import argument_samples

"""Functions count by their bytecode so far, which every Python has its own of."""


def digest(value: Any) -> str:
    return arguments_digest((value,), {"k": value}, "the value")


@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_has_the_same_digests(python: str) -> None:
    """Of what the standard library has, and of a user's classes."""
    here = {name: digest(each) for name, each in argument_samples.SAMPLES.items()}

    there = json.loads(
        run(
            "-c",
            "import tests.unit.core.argument_samples as a; a.show()",
            python=python,
        )
    )

    assert here == there


def test_no_two_samples_have_the_same_digest() -> None:
    """They differ in type, or in content."""
    samples = argument_samples.SAMPLES
    digests = {digest(each) for each in samples.values()}

    # A path of this system is the pure one of the same name, and nothing else.
    assert len(samples) == len(digests)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(12.0).reshape(3, 4),
        np.array(["a", "bc"]),
        np.array([1, "a", None], object),
        np.float32(1.5),
        np.datetime64("2024-01-01"),
    ],
)
def test_arrays_are_told_by_their_bytes(value: Any) -> None:
    """A copy is the same; another value, shape or type of numbers is not."""
    others = [
        np.arange(12.0).reshape(4, 3),
        np.arange(12.0),
        np.arange(12).reshape(3, 4),
    ]

    assert digest(value) == digest(value.copy())
    assert digest(value) not in map(digest, others)


def test_a_shared_value_has_the_digest_of_its_content() -> None:
    """The handle is looked at, whichever it is, and hashed once."""
    one, other = shared(np.arange(3)), shared(np.arange(4))

    assert digest(one) == digest(shared(np.arange(3))) != digest(other)


def test_a_class_of_the_main_program_may_move(tmp_path: Path) -> None:
    """With the folder of the program, to another machine."""
    found = set()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "script.py").write_text(
            "import dataclasses\n"
            "from flowpregel._pickling.digest import arguments_digest\n"
            "@dataclasses.dataclass\nclass Point:\n    x: int\n"
            "print(arguments_digest((Point(1),), {}, ''))\n"
        )
        found.add(run("script.py", cwd=tmp_path / name))

    assert 1 == len(found)


@pytest.mark.parametrize("layout", [np.asfortranarray, np.copy])
def test_the_layout_of_an_array_does_not_count(layout: Any) -> None:
    """Equal content is equal: by rows or by columns, in one piece or a part of another
    array.
    """
    array = np.arange(24.0).reshape(4, 6)[:, ::2]

    assert digest(array) == digest(layout(array))
