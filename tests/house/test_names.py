"""One word, one class; and the measure by which files are counted."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from tests.house.measure import classes, code_lines, package_files


def test_no_two_classes_have_the_same_name() -> None:
    """One word, one class: whoever searches for it finds one."""
    owners = Counter(
        name
        for file in package_files()
        for name in classes(file.read_text(encoding="utf-8"))
    )

    assert [] == [name for name, count in owners.items() if count > 1]


def test_a_comment_that_excludes_mutants_has_the_code_in_the_next_line() -> None:
    """`tests.mutants` reads only the line above the code: in a comment of two lines, it
    would not find the words.
    """
    in_vain = []
    for file in package_files():
        lines = file.read_text(encoding="utf-8").splitlines()
        for number, (line, following) in enumerate(pairwise(lines), start=1):
            is_comment = line.lstrip().startswith("# no mutant:")
            if is_comment and following.lstrip().startswith("#"):
                in_vain.append(f"{file.name}:{number}")

    assert [] == in_vain


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ('"""Says what."""\n\n# why\nX = 1\n', 1),
        (
            (
                "def f():\n    '''One.\n\n    Two.\n    '''\n    return (\n        1\n "
                "   "
                ")\n"
            ),
            4,
        ),
        ('class A:\n    x: int\n    """What x is."""\n', 2),
        ('TEXT = """One\ntwo"""\n', 2),
    ],
)
def test_code_lines_are_those_with_code(source: str, lines: int) -> None:
    """The measure itself: layout, comments and docstrings are free; text that is data
    is not.
    """
    assert lines == code_lines(source)
