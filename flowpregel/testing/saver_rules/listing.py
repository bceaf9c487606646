"""Rules of `list` and `history`."""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel._core.records import Address
from flowpregel.checkpoint.base import Config
from flowpregel.checkpoint.transactional import TransactionalSaver
from flowpregel.testing.saver_rules.records import Hooks, Line, config, nth_id, task_id, writes


class ListRules(Hooks):
    """Which checkpoints are listed, and in which order."""

    @pytest.fixture
    def listed(self, saver: TransactionalSaver) -> TransactionalSaver:
        """A saver with checkpoints 1, 2, 4 in the root of ``t``, 3 in a child, 5 in ``u``."""
        root, child, other = Line(saver, "t"), Line(saver, "t", "child"), Line(saver, "u")
        root.commit(1, {"a": 1}, source="input", metadata={"run_id": "r1", "score": 42})
        root.commit(2, {"a": 2}, metadata={"run_id": "r1"})
        child.commit(3, {"a": 3}, source="input", metadata={"run_id": "r1"})
        root.commit(4, {"a": 4}, metadata={"run_id": "r2"})
        other.commit(5, {"a": 5}, metadata={"run_id": "r3"})
        return saver

    def numbers(self, saver: TransactionalSaver, of: Config | None, **options: Any) -> list[int]:
        """Return the numbers of the checkpoints that `list` yields."""
        return [int(each.checkpoint["id"][-12:], 16) for each in saver.list(of, **options)]

    def test_the_newest_comes_first_over_all_namespaces(self, listed: TransactionalSaver) -> None:
        assert self.numbers(listed, config("t", namespace=None)) == [4, 3, 2, 1]

    def test_a_namespace_is_listed_alone(self, listed: TransactionalSaver) -> None:
        assert self.numbers(listed, config("t")) == [4, 2, 1]
        assert self.numbers(listed, config("t", namespace="child")) == [3]
        assert self.numbers(listed, config("t", namespace="unknown")) == []

    def test_no_config_lists_every_thread(self, listed: TransactionalSaver) -> None:
        assert self.numbers(listed, None) == [5, 4, 3, 2, 1]

    def test_an_unknown_thread_lists_nothing(self, listed: TransactionalSaver) -> None:
        assert self.numbers(listed, config("unknown", namespace=None)) == []

    def test_a_config_may_name_one_checkpoint(self, listed: TransactionalSaver) -> None:
        assert self.numbers(listed, config("t", 2)) == [2]
        assert self.numbers(listed, config("t", 3, None)) == [3]

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            ({"source": "input"}, [3, 1]),
            ({"step": 0}, [2]),
            ({"run_id": "r1"}, [3, 2, 1]),
            ({"score": 42}, [1]),
            ({"source": "input", "score": 42}, [1]),
            ({"source": "loop", "score": 42}, []),
            ({"source": "fork"}, []),
            ({"no such key": 1}, []),
            ({}, [4, 3, 2, 1]),
        ],
    )
    def test_a_filter_compares_metadata(
        self, listed: TransactionalSaver, wanted: dict[str, Any], expected: list[int]
    ) -> None:
        assert expected == self.numbers(listed, config("t", namespace=None), filter=wanted)

    def test_before_takes_smaller_ids_only(self, listed: TransactionalSaver) -> None:
        of = config("t", namespace=None)

        assert self.numbers(listed, of, before=config("t", 3)) == [2, 1]
        assert self.numbers(listed, of, before=config("t", 1)) == []
        assert self.numbers(listed, of, before=config("t", 99)) == [4, 3, 2, 1]
        assert self.numbers(listed, of, before=config("t")) == [4, 3, 2, 1]

    @pytest.mark.parametrize(("limit", "expected"), [(0, []), (1, [4]), (3, [4, 3, 2]), (9, 4)])
    def test_a_limit_counts_over_all_namespaces(
        self, listed: TransactionalSaver, limit: int, expected: Any
    ) -> None:
        got = self.numbers(listed, config("t", namespace=None), limit=limit)

        assert expected == (len(got) if isinstance(expected, int) else got)

    def test_filter_before_and_limit_work_together(self, listed: TransactionalSaver) -> None:
        got = self.numbers(
            listed,
            config("t", namespace=None),
            filter={"run_id": "r1"},
            before=config("t", 3),
            limit=1,
        )

        assert got == [2]

    def test_what_is_listed_is_what_get_tuple_gives(self, listed: TransactionalSaver) -> None:
        listed.commit([writes("t", 4, ("a", "pending"))])

        for each in listed.list(None):
            assert listed.get_tuple(each.config) == each
        newest = next(listed.list(config("t")))
        assert [(task_id(1), "a", "pending")] == newest.pending_writes

    def test_a_list_goes_on_while_the_thread_does(self, listed: TransactionalSaver) -> None:
        going = listed.list(config("t"))
        next(going)
        listed.delete_thread("u")
        Line(listed, "t").commit(6, {"a": 6})

        assert {1, 2} <= {int(each.checkpoint["id"][-12:], 16) for each in going}


class HistoryRules(Hooks):
    """`history`, the transactional form of a list of one namespace."""

    def history(self, saver: TransactionalSaver, **options: Any) -> list[str]:
        """Return the ids that `history` yields of thread ``t``."""
        return [each.checkpoint.id for each in saver.history(Address("t"), **options)]

    def test_history_is_newest_first_and_keeps_its_bounds(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        for number in range(1, 6):
            line.commit(number, {"a": number}, source="input" if number % 2 else "loop")

        assert [nth_id(n) for n in (5, 4, 3, 2, 1)] == self.history(saver)
        assert [nth_id(n) for n in (2, 1)] == self.history(saver, before=nth_id(3))
        assert [nth_id(n) for n in (5, 4)] == self.history(saver, limit=2)
        assert [nth_id(4)] == self.history(saver, filter={"source": "loop"}, limit=1)
        assert self.history(saver, limit=0) == []

    def test_only_the_newest_says_that_it_is(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        for number in (1, 2, 3):
            line.commit(number)

        found = [*saver.history(Address("t"))]

        assert [each.is_latest for each in found] == [True, False, False]
        assert {each.newest_id for each in found} == {nth_id(3)}
        assert line.load(2).newest_id == nth_id(3)
        assert line.load(3).is_latest
        assert not line.load(2).is_latest

    def test_namespaces_are_those_that_have_a_checkpoint(self, saver: TransactionalSaver) -> None:
        Line(saver, "t").commit(1)
        Line(saver, "t", "child").commit(2)
        Line(saver, "u").commit(3)
        saver.commit([writes("v", 4, ("a", 1))])

        every = {(each.thread_id, each.namespace) for each in saver.namespaces()}
        of_one = {(each.thread_id, each.namespace) for each in saver.namespaces("t")}

        assert {("t", ""), ("t", "child"), ("u", "")} == every
        assert {("t", ""), ("t", "child")} == of_one
        assert [*saver.namespaces("unknown")] == []
