"""The files in the record of a call, which may come from another program."""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel._core.records import CALLED, Address
from flowpregel.checkpoint.work import work_from

FILE = ("a.csv", "8fa3e39f", 6)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ((FILE,), (FILE,)),
        ((FILE, ("b.csv",), 3, ("c.csv", 1, "2")), (FILE,)),
        ("a.csv", ()),
        (None, ()),
    ],
)
def test_only_files_are_read_as_files(files: Any, expected: Any) -> None:
    fields = ("parse", "digest", "code", "parse(1)", 0, "caller", files)

    work = work_from(Address("t"), 0, "task", {CALLED: fields}, None)

    assert work.call_key is not None
    assert expected == work.call_key.files


def test_the_record_of_an_earlier_version_has_no_files() -> None:
    fields = ("parse", "digest", "code", "parse(1)", 0, "caller")

    work = work_from(Address("t"), 0, "task", {CALLED: fields}, None)

    assert work.call_key is not None
    assert () == work.call_key.files
