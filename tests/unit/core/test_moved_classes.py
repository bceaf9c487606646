"""The names that classes had before they were renamed, or their modules were."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from flowpregel._pickling import moved_classes
from flowpregel._pickling.moved_classes import earlier_homes, note_renames


class Page:
    """A class with another one inside of it."""

    class Part:
        """A nested class, which keeps its depth in the module."""


class Pages:
    """A class whose name begins as that of another one."""


@pytest.mark.parametrize(
    ("old", "new", "homes"),
    [
        (
            "old.books.Sheet",
            f"{__name__}.Page",
            {Page: ("old.books", "Sheet"), Page.Part: ("old.books", "Sheet.Part")},
        ),
        (
            "old.books",
            __name__,
            {
                Page: ("old.books", "Page"),
                Page.Part: ("old.books", "Page.Part"),
                Pages: ("old.books", "Pages"),
            },
        ),
        ("old.books.Sheet", "elsewhere.Page", None),
    ],
)
def test_a_renamed_class_is_known_by_its_earlier_name(
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    homes: object,
) -> None:
    """So are the classes inside of it, and those of a module that was renamed."""
    monkeypatch.setattr(moved_classes, "_RENAMED", {})

    note_renames({old: new})

    assert homes == next(earlier_homes([Page, Page.Part, Pages]), None)


def test_a_class_is_known_by_the_module_that_still_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As that which it was moved from imports it."""
    module = ModuleType("former_home_of_pages")
    vars(module)["Page"] = Page
    monkeypatch.setitem(sys.modules, module.__name__, module)

    assert {Page: (module.__name__, "Page")} in list(earlier_homes([Page, Pages]))
