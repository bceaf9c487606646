"""The files among the arguments of calls: which of them have other content now."""

from __future__ import annotations

import pytest

from flowpregel._core.files import FileContent, changed_files

OLD = ("a.csv", "0123456789abcdef", 1_234)


@pytest.mark.parametrize(
    ("now", "texts"),
    [
        ([OLD], []),
        ([], []),
        ([("b.csv", "fedcba98", 7)], []),
        (
            [("b.csv", "fedcba98", 7), ("a.csv", "fedcba9876543210", 5_678)],
            [
                "file 'a.csv' was 1,234 bytes [01234567] "
                "and is now 5,678 bytes [fedcba98]"
            ],
        ),
    ],
    ids=["same", "no longer used", "another", "changed"],
)
def test_a_file_has_changed_if_it_was_recorded_with_another_digest(
    now: list[FileContent], texts: list[str]
) -> None:
    """The text has both sizes and the beginnings of both digests."""
    changes = changed_files([OLD], now)

    assert texts == [text for _, text in changes]
    assert [file for file in now if file[0] == "a.csv" and texts] == [
        file for file, _ in changes
    ]
