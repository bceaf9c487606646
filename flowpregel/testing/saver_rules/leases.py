"""Rules of leases and fencing: one run at a time writes a thread's namespace."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from flowpregel.checkpoint.transactional import TransactionalSaver
from flowpregel.errors import ConfigurationError, LeaseLostError, ThreadBusyError
from flowpregel.testing.saver_rules.records import Hooks, Line, ids, writes

_PATIENCE = 20
"""Seconds until a rule that waits for an OS thread gives up."""


class LeaseRules(Hooks):
    """A lease is held by one run, and a run that lost it learns so."""

    def test_a_second_run_of_a_thread_is_refused_by_name(self, saver: TransactionalSaver) -> None:
        with (
            saver.lease("t", "ns"),
            pytest.raises(ThreadBusyError) as caught,
            saver.lease("t", "ns"),
        ):
            pytest.fail("the lease was given twice")

        assert (caught.value.thread_id, caught.value.namespace) == ("t", "ns")
        assert caught.value.owner

    def test_other_threads_and_namespaces_are_free(self, saver: TransactionalSaver) -> None:
        with saver.lease("t"), saver.lease("t", "ns"), saver.lease("u") as last:
            assert last.fence is not None

    def test_a_lease_is_free_again_when_its_run_ends(self, saver: TransactionalSaver) -> None:
        with saver.lease("t") as first:
            pass
        with pytest.raises(RuntimeError, match="the run failed"), saver.lease("t"):
            raise RuntimeError("the run failed")
        with saver.lease("t") as last:
            assert first.fence is not None
            assert last.fence is not None
            assert first.fence < last.fence

    def test_a_lease_creates_no_thread(self, saver: TransactionalSaver) -> None:
        with saver.lease("t"):
            assert [*saver.namespaces()] == []
        assert [*saver.namespaces()] == []

    def test_a_run_with_its_fence_commits(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")

        with saver.lease("t") as lease:
            saver.commit([replace(line.batch(1, {"a": 1}), fence=lease.fence)])
            saver.commit([replace(writes("t", 1, ("a", 2)), fence=lease.fence)])

        assert line.load().checkpoint.values == {"a": 1}

    def test_a_waiting_run_goes_on_when_the_first_has_ended(
        self, saver: TransactionalSaver
    ) -> None:
        order: list[str] = []
        waiting = threading.Event()

        def wait() -> None:
            waiting.set()
            with saver.lease("t", on_conflict="wait"):
                order.append("second")

        second = threading.Thread(target=wait)
        with saver.lease("t"):
            second.start()
            assert waiting.wait(_PATIENCE)
            order.append("first")
        second.join(_PATIENCE)

        assert order == ["first", "second"]

    def test_a_run_that_was_taken_over_keeps_nothing_more(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        with saver.lease("t") as old, saver.lease("t", on_conflict="takeover") as new:
            late = [replace(writes("t", 1, ("a", 0)), fence=old.fence), line.batch(1, {"a": 1})]

            with pytest.raises(LeaseLostError) as caught:
                saver.commit(late)

            assert caught.value.thread_id == "t"
            assert ids(saver, "t") == []
            saver.commit([replace(line.fork().batch(2, {"a": 2}), fence=new.fence)])
        assert line.load().checkpoint.values == {"a": 2}

    def test_the_end_of_a_lost_lease_frees_nothing(self, saver: TransactionalSaver) -> None:
        old = saver.lease("t")
        old.__enter__()
        with saver.lease("t", on_conflict="takeover"):
            old.__exit__(None, None, None)

            with pytest.raises(ThreadBusyError), saver.lease("t"):
                pytest.fail("the lease was given twice")

    def test_a_lost_fence_stays_lost_when_the_next_run_has_ended(
        self, saver: TransactionalSaver
    ) -> None:
        line = Line(saver, "t")
        with saver.lease("t") as old:
            with saver.lease("t", on_conflict="takeover"):
                pass

            with pytest.raises(LeaseLostError):
                saver.commit([replace(line.batch(1), fence=old.fence)])

    def test_a_fence_is_for_its_own_namespace(self, saver: TransactionalSaver) -> None:
        with saver.lease("t") as root, saver.lease("t", "child") as child:
            saver.commit([replace(Line(saver, "t").batch(1), fence=root.fence)])
            saver.commit([replace(Line(saver, "t", "child").batch(1), fence=child.fence)])

        assert len([*saver.namespaces("t")]) == 2

    def test_a_deleted_thread_leaves_its_running_lease_alone(
        self, saver: TransactionalSaver
    ) -> None:
        with saver.lease("t") as lease:
            saver.delete_thread("t")
            with pytest.raises(ThreadBusyError), saver.lease("t"):
                pytest.fail("the lease was given twice")
            saver.commit([replace(Line(saver, "t").batch(1), fence=lease.fence)])

        assert len(ids(saver, "t")) == 1

    def test_one_lost_lease_keeps_a_whole_commit_out(self, saver: TransactionalSaver) -> None:
        with saver.lease("t") as old, saver.lease("t", on_conflict="takeover"):
            lost = replace(Line(saver, "t").batch(1), fence=old.fence)

            with pytest.raises(LeaseLostError):
                saver.commit([Line(saver, "u").batch(1), lost])

        assert [*saver.namespaces()] == []

    def test_an_unknown_answer_to_a_conflict_is_refused(self, saver: TransactionalSaver) -> None:
        on_conflict: Any = "hope"

        with (
            pytest.raises(ConfigurationError, match="hope"),
            saver.lease("t", on_conflict=on_conflict),
        ):
            pytest.fail("the lease was given")

    def test_only_one_of_many_os_threads_gets_the_lease(self, saver: TransactionalSaver) -> None:
        count = 8
        together, done = threading.Barrier(count), threading.Barrier(count)
        got: list[str] = []

        def run() -> None:
            together.wait(_PATIENCE)
            try:
                with saver.lease("t"):
                    got.append("lease")
                    done.wait(_PATIENCE)
            except ThreadBusyError:
                got.append("busy")
                done.wait(_PATIENCE)

        runs = [threading.Thread(target=run) for _ in range(count)]
        for each in runs:
            each.start()
        for each in runs:
            each.join(_PATIENCE)

        assert ["busy"] * (count - 1) + ["lease"] == sorted(got)

    def test_many_os_threads_commit_at_once(self, saver: TransactionalSaver) -> None:
        count, steps = 8, 20

        def run(name: str) -> None:
            line = Line(saver, name)
            for number in range(1, steps + 1):
                line.commit(number, {"a": (name, number)}, {"d": (number,)})

        runs = [threading.Thread(target=run, args=(f"t{number}",)) for number in range(count)]
        for each in runs:
            each.start()
        for each in runs:
            each.join(_PATIENCE)

        for number in range(count):
            saved = Line(saver, f"t{number}").load()
            assert (f"t{number}", steps) == saved.checkpoint.values["a"]
            assert tuple((n,) for n in range(1, steps + 1)) == saved.deltas["d"].writes
