"""The stores of one server, each with a page of its own.

The page of the first store is at ``/``, as if it were the only one. Each other store
has a page at ``/stores/NAME/``. The page uses relative addresses only, so it is the
same page, and its links contain the store. If a store vanishes, only its own page is
affected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath

from flowpregel.cli.base import has_flag, open_to_read, print_note
from flowpregel.errors import FlowPregelError
from flowpregel.plugins.page.actions import ACTION_PATHS, Actions
from flowpregel.plugins.page.pages import Pages
from flowpregel.plugins.page.store_thread import ANSWER_LIMIT, StoreThread

_UNSAFE = re.compile(r"[^\w.-]+")


@dataclass(frozen=True, kw_only=True)
class ServedStore:
    """A store that the server shows."""

    pages: Pages
    actions: Actions | None
    """The object that starts the commands of the buttons, or None for a page without
    buttons.
    """
    name: str
    """The name, which is different for each store of the server."""
    public_location: str = ""
    """The store as the user has named it, or its URL without a password."""
    is_first: bool = False
    """True if the page of the store is at the root."""

    @cached_property
    def reads(self) -> StoreThread:
        """The OS thread on which the store is read."""
        return StoreThread(self.pages.path, ANSWER_LIMIT)

    def close(self) -> None:
        """Close the pages. If the store does not answer, leave them open."""
        self.reads.close(self.pages.close)

    @property
    def prefix(self) -> str:
        """The path of the store's page, without a slash at the end."""
        return "" if self.is_first else f"/stores/{self.name}"

    @property
    def writes(self) -> Iterator[str]:
        """The paths that accept POST requests."""
        if self.actions is not None:
            for path in ACTION_PATHS:
                yield f"{self.prefix}{path}"


def served_stores(
    pages: Pages,
    actions: Actions | None,
    others: Sequence[ServedStore] = (),
) -> list[ServedStore]:
    """Return all stores of a server.

    Args:
        pages: The data of the first store.
        actions: The starter of commands on the first store, or None.
        others: The other stores.
    """
    first = ServedStore(
        pages=pages,
        actions=actions,
        name=store_name(pages.path, []),
        is_first=True,
    )
    return [first, *others]


def store_name(path: str, names: Sequence[str]) -> str:
    """Return a name for a store that can be part of the path in an address.

    Args:
        path: The path of the store, or its URL without a password.
        names: The names that other stores have.

    Example:
        >>> store_name("/jobs/runs.lmdb", []), store_name("/x/runs.lmdb", ["runs.lmdb"])
        ('runs.lmdb', 'runs.lmdb-2')
    """
    last_part = PurePath(path.partition("?")[0]).name
    name = _UNSAFE.sub("-", last_part).strip(".-") or "store"
    unique_name = name
    number = 1
    while unique_name in names:
        number += 1
        unique_name = f"{name}-{number}"
    return unique_name


def open_stores(
    locations: Sequence[str],
    resources: ExitStack,
    *,
    actions: bool,
    flows: Sequence[str] = (),
) -> list[ServedStore]:
    """Open stores, and return them. If there are several, those that cannot be opened
    are left out, with a note.

    Args:
        locations: The paths or URLs of the stores.
        resources: An exit stack, to which the stores are added so that they are closed.
        actions: Whether the pages have buttons.
        flows: The flows that the form offers although no run may have recorded them.

    Raises:
        FlowPregelError: No store can be opened.
    """
    options = ["--trust"] if has_flag("--trust") else []
    stores: list[ServedStore] = []
    failures: list[FlowPregelError] = []
    for location in locations:
        try:
            saver = resources.enter_context(open_to_read(location))
            pages = Pages(saver)
        except FlowPregelError as error:
            failures.append(error)
            continue
        names = [store.name for store in stores]
        store = ServedStore(
            pages=pages,
            actions=Actions(saver.location, options, flows) if actions else None,
            name=store_name(saver.path, names),
            public_location=saver.path if "://" in saver.path else location,
            is_first=not stores,
        )
        resources.enter_context(closing(store))
        stores.append(store)
    if not stores:
        raise failures[0]
    for failure in failures:
        print_note(f"left out: {failure}")
    return stores
