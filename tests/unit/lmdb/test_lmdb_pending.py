"""What is in a store's journal, as those who write and those who only read come to know it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from flowpregel._lmdb import pending
from flowpregel._lmdb.journal import SIZE, Change, Journal, packed
from flowpregel._lmdb.overlay import TooMuchError
from flowpregel._lmdb.pending import Missing, Pending
from flowpregel.errors import StoreCorruptError

FIRST: list[Change] = [(0, b"k", b"1")]
SECOND: list[Change] = [(0, b"k", b"2"), (0, b"l", b"")]


class StepId:
    """An LMDB file with a journal beside it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.lmdb = lmdb.open(self.path, max_dbs=1, lib_version=0)
        self.db = self.lmdb.open_db(b"records")
        self.numbers = {self.db: 0}

    def base(self) -> int:
        """Return the number of LMDB's newest transaction."""
        with self.lmdb.begin() as transaction:
            return int(transaction.id())

    def move(self) -> None:
        """Commit by LMDB itself."""
        with self.lmdb.begin(write=True) as transaction:
            transaction.put(b"moved", str(transaction.id()).encode(), db=self.db)

    def get(self, those: Pending, key: bytes) -> bytes | None:
        """Return what is at *key* for a reader who knows *those*."""
        with self.lmdb.begin() as transaction:
            found: bytes | None = those.seen(transaction, self.numbers, None).get(key, db=self.db)
            return found


def add(place: StepId, those: Pending, changes: list[Change]) -> None:
    """Commit *changes* as a process that writes does."""
    with place.lmdb.begin() as transaction:
        draft = those.draft(transaction, place.numbers)
        for _, key, value in changes:
            draft.put(key, value or b"", db=place.db)
    those.add(draft)


def put_by_another(place: StepId) -> None:
    """Put a record into the journal as another process does."""
    journal = Journal(place.path, readonly=False)
    journal.make()
    journal.put(place.base(), 1, 0, [packed(*each) for each in FIRST])
    journal.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[StepId]:
    """Return the file."""
    made = StepId(tmp_path)
    yield made
    made.lmdb.close()


@pytest.fixture
def ours(place: StepId) -> Iterator[Pending]:
    """Return what a process that writes knows."""
    made = Pending(place.path, readonly=False)
    assert made.make()
    made.catch_up(place.base())
    yield made
    made.close()


@pytest.fixture
def theirs(place: StepId) -> Iterator[Pending]:
    """Return what another process knows, that only reads."""
    made = Pending(place.path, readonly=True)
    yield made
    made.close()


def test_what_was_added_is_seen_by_all(place: StepId, ours: Pending, theirs: Pending) -> None:
    """At once, the newest of it."""
    add(place, ours, FIRST)
    assert [b"1", b"1"] == [place.get(those, b"k") for those in (ours, theirs)]

    add(place, ours, SECOND)
    assert [b"2", b"2"] == [place.get(those, b"k") for those in (ours, theirs)]
    assert b"" == place.get(theirs, b"l")


def test_what_was_not_told_is_not_seen_by_those_who_read(
    place: StepId, ours: Pending, theirs: Pending
) -> None:
    """It may be on its way to the disk; whoever has the lock knows that it is not."""
    put_by_another(place)

    assert place.get(theirs, b"k") is None
    ours.catch_up(place.base())
    assert b"1" == place.get(ours, b"k")
    assert b"1" == place.get(theirs, b"k")


def test_nothing_counts_once_lmdb_has_moved_on(
    place: StepId, ours: Pending, theirs: Pending
) -> None:
    """Whoever moved it took all along."""
    add(place, ours, FIRST)
    assert b"1" == place.get(theirs, b"k")
    place.move()

    ours.catch_up(place.base())

    assert ours.is_empty
    assert [None, None] == [place.get(those, b"k") for those in (ours, theirs)]


def test_an_older_view_of_lmdb_is_not_used(place: StepId, ours: Pending) -> None:
    """What was in the journal on that one is not known any more."""
    with place.lmdb.begin() as older:
        add(place, ours, FIRST)
        place.move()
        ours.catch_up(place.base())

        assert isinstance(ours.seen(older, place.numbers, None), Missing)


def test_a_record_that_was_told_and_is_missing_is_damage(
    place: StepId, ours: Pending, theirs: Pending
) -> None:
    """Unless LMDB moved on while we looked: so it is looked for twice."""
    add(place, ours, FIRST)
    journal = Path(place.path, "journal")
    journal.write_bytes(bytes(SIZE))
    with place.lmdb.begin() as transaction:
        missing = theirs.seen(transaction, place.numbers, None)
        assert isinstance(missing, Missing)

        with pytest.raises(StoreCorruptError, match="record 1 of the journal is damaged"):
            theirs.seen(transaction, place.numbers, missing)


def test_numbers_tell_whether_another_has_written(place: StepId, ours: Pending) -> None:
    """One more where nobody has, and not the next one where somebody has."""
    first = ours.next_number
    add(place, ours, FIRST)
    ours.catch_up(place.base())
    assert first + 1 == ours.next_number
    place.move()
    ours.moved(place.base())
    ours.catch_up(place.base())
    assert first + 2 == ours.next_number

    put_by_another(place)
    ours.catch_up(place.base())
    assert ours.next_number > first + 3
    before = ours.next_number
    place.move()
    ours.catch_up(place.base())
    assert ours.next_number > before + 1


def test_it_is_lmdbs_turn_after_so_many(place: StepId, ours: Pending, monkeypatch: Any) -> None:
    """Or once the journal is full."""
    monkeypatch.setattr(pending, "_MOST", 2)
    with place.lmdb.begin() as transaction:
        add(place, ours, FIRST)
        ours.draft(transaction, place.numbers)
        add(place, ours, SECOND)
        with pytest.raises(TooMuchError):
            ours.draft(transaction, place.numbers)

    monkeypatch.setattr(pending, "_MOST", 1000)
    add(place, ours, [(0, b"k", bytes(SIZE - 1130))])
    with place.lmdb.begin() as transaction, pytest.raises(TooMuchError):
        ours.draft(transaction, place.numbers)


def test_what_is_too_large_is_lmdbs_from_the_beginning(place: StepId, ours: Pending) -> None:
    """Nothing is done for it twice."""
    add(place, ours, [(0, b"k", bytes(SIZE // 2))])
    with place.lmdb.begin() as transaction:
        ours.draft(transaction, place.numbers, SIZE // 4)
        with pytest.raises(TooMuchError):
            ours.draft(transaction, place.numbers, SIZE // 2)
