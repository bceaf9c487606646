"""Rules of what a saver may offer beside its contract: forgetting, copying, leases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core.records import Address, DeltaHistory
from flowpregel.checkpoint.base import BaseCheckpointSaver as Saver
from flowpregel.errors import ConfigurationError, LeaseLostError, ThreadBusyError
from flowpregel.testing.saver_hooks import SaverHooks, Timeline, ids, nth_id, writes

_PATIENCE = 20
"""Seconds until a rule that waits for an OS thread gives up."""

EVERY = (1, 2, 3, 4, 5, 6)
FORGET: dict[str, tuple[Callable[[Saver], None], tuple[int, ...], tuple[int, ...]]] = {
    "a thread": (lambda saver: saver.delete_thread("t"), (), EVERY),
    "all of a thread's history": (
        lambda saver: saver.prune(["t", "unknown"], strategy="delete"),
        (),
        EVERY,
    ),
    "all but the newest": (lambda saver: saver.prune(["t"]), (6,), EVERY),
    "the first runs": (
        lambda saver: saver.delete_for_runs(["r1", "r2", "r3"]),
        (4, 5, 6),
        (4, 5, 6),
    ),
    "a branch": (
        lambda saver: saver.delete_for_runs(["r6", "r1"]),
        (2, 3, 4, 5),
        (2, 3, 4, 5),
    ),
    "every run": (
        lambda saver: saver.delete_for_runs([f"r{n}" for n in EVERY]),
        (),
        (),
    ),
    "an unknown thread": (lambda saver: saver.delete_thread("unknown"), EVERY, EVERY),
    "unknown runs": (lambda saver: saver.delete_for_runs(["unknown"]), EVERY, EVERY),
    "an unknown history": (lambda saver: saver.prune(["unknown"]), EVERY, EVERY),
    "nothing": (lambda saver: saver.copy_thread("unknown", "new"), EVERY, EVERY),
}
"""How to forget what, and which checkpoints of ``t`` and of ``u`` are left."""


class ForgettingRules(SaverHooks):
    """What is forgotten or copied, and that all else reads as before."""

    @pytest.fixture
    def grown(self, saver: Saver) -> Saver:
        """A saver with two namespaces of ``t`` and one of ``u``, as `grow` makes
        them.
        """
        for place in (Address("t"), Address("t", "child"), Address("u")):
            grow(saver, place)
        return saver

    @pytest.mark.parametrize("what", FORGET)
    def test_what_is_left_reads_as_before(
        self, grown: Saver, what: str, tmp_path: Path
    ) -> None:
        forget, *left = FORGET[what]
        before = [everything(grown, thread_id) for thread_id in "tu"]

        forget(grown)
        grown = self.reopen(grown, tmp_path)

        for thread_id, numbers, known in zip("tu", left, before, strict=True):
            ids_left = {nth_id(number) for number in numbers}
            expected = {
                place: found for place, found in known.items() if place[1] in ids_left
            }
            assert expected == everything(grown, thread_id)
            assert bool(numbers) == bool([*grown.namespaces(thread_id)])
            if numbers:
                assert Timeline(grown, thread_id).load(numbers[-1]).is_latest

    def test_what_comes_again_has_none_of_its_old_writes(self, grown: Saver) -> None:
        grown.delete_for_runs(["r1"])
        grown.delete_thread("u")
        Timeline(grown, "t").commit(1)
        Timeline(grown, "u").commit(1)

        assert (
            Timeline(grown, "t").load(1).writes
            == Timeline(grown, "u").load().writes
            == ()
        )
        assert Timeline(grown, "u").load().checkpoint.values == {}

    def test_a_pruned_line_goes_on(self, saver: Saver) -> None:
        line = Timeline(saver, "t")
        line.commit(1, {"d": ["seed"]})
        for number in (2, 3):
            line.commit(number, None, {"d": (number,)})
            saver.prune(["t"])
        line.commit(4, {"a": 4})

        assert DeltaHistory(["seed"], ((2,), (3,))) == line.load().deltas["d"]

    def test_an_unknown_strategy_is_refused(self, grown: Saver) -> None:
        strategy: Any = "everything"

        with pytest.raises(ConfigurationError, match="everything"):
            grown.prune(["t"], strategy=strategy)
        assert len(ids(grown, "t")) == 6

    def test_a_copy_has_all_that_its_source_had(
        self, grown: Saver, tmp_path: Path
    ) -> None:
        before = everything(grown, "t")

        grown.copy_thread("t", "copy")
        assert before == everything(grown, "t")
        grown.delete_thread("t")
        grown = self.reopen(grown, tmp_path)

        assert before == everything(grown, "copy")
        assert Timeline(grown, "copy").load().address == Address("copy", "", nth_id(6))

    def test_a_copy_and_its_source_change_apart(self, grown: Saver) -> None:
        grown.copy_thread("u", "copy")
        before = everything(grown, "u")
        line, copy = Timeline(grown, "u"), Timeline(grown, "copy")
        line.versions = copy.versions = dict(line.load(6).checkpoint.channel_versions)
        batches: list[Any] = [
            each.batch(7, {"a": each.address}) for each in (line, copy)
        ]
        for batch in batches:  # of one version, which is known to both
            versions = batches[0].checkpoint.channel_versions
            batch.checkpoint = replace(batch.checkpoint, channel_versions=versions)
        grown.commit([writes("copy", 6, ("new", 1), task=9), batches[1]])
        assert before == everything(grown, "u")

        grown.commit([batches[0]])
        grown.prune(["u"])

        for each in (line, copy):
            saved = each.load()
            assert saved.checkpoint.values["a"] == each.address
            assert DeltaHistory(["snapshot"], ((3,), (6,))) == saved.deltas["d"]

    @pytest.mark.parametrize("target", ["u", "t"])
    def test_a_copy_onto_a_thread_that_has_checkpoints_is_refused(
        self, grown: Saver, target: str
    ) -> None:
        before = everything(grown, target)

        with pytest.raises(ConfigurationError, match=f"'{target}'"):
            grown.copy_thread("t", target)

        assert before == everything(grown, target)


class LeaseRules(SaverHooks):
    """A lease is held by one run, and a run that lost it is told so."""

    def test_a_second_run_of_a_thread_is_refused_by_name(self, saver: Saver) -> None:
        with (
            saver.lease("t", "ns"),
            pytest.raises(ThreadBusyError) as caught,
            saver.lease("t", "ns"),
        ):
            pytest.fail("the lease was given twice")

        assert (caught.value.thread_id, caught.value.namespace) == ("t", "ns")
        assert caught.value.owner

    def test_other_threads_and_namespaces_are_free(self, saver: Saver) -> None:
        with (
            saver.lease("t"),
            saver.lease("t", "ns") as child,
            saver.lease("u") as last,
        ):
            assert last.fence is not None
            saver.commit(
                [replace(Timeline(saver, "t", "ns").batch(1), fence=child.fence)]
            )

    def test_a_lease_is_free_again_when_its_run_ends(self, saver: Saver) -> None:
        with saver.lease("t") as first:
            pass
        with pytest.raises(RuntimeError, match="the run failed"), saver.lease("t"):
            raise RuntimeError("the run failed")
        with saver.lease("t") as last:
            assert first.fence is not None
            assert last.fence is not None
            assert first.fence < last.fence

    def test_a_lease_creates_no_thread(self, saver: Saver) -> None:
        with saver.lease("t"):
            assert [*saver.namespaces()] == []
        assert [*saver.namespaces()] == []

    def test_a_run_with_its_fence_commits(self, saver: Saver) -> None:
        line = Timeline(saver, "t")

        with saver.lease("t") as lease:
            saver.commit([replace(line.batch(1, {"a": 1}), fence=lease.fence)])
            saver.commit([replace(writes("t", 1, ("a", 2)), fence=lease.fence)])

        assert line.load().checkpoint.values == {"a": 1}

    def test_a_waiting_run_goes_on_when_the_first_has_ended(self, saver: Saver) -> None:
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

    def test_a_run_that_was_taken_over_keeps_nothing_more(self, saver: Saver) -> None:
        line = Timeline(saver, "t")
        with saver.lease("t") as old, saver.lease("t", on_conflict="takeover") as new:
            late = [
                Timeline(saver, "u").batch(1),
                replace(writes("t", 1, ("a", 0)), fence=old.fence),
                line.batch(1, {"a": 1}),
            ]

            with pytest.raises(LeaseLostError) as caught:
                saver.commit(late)

            assert caught.value.thread_id == "t"
            assert [*saver.namespaces()] == []
            saver.commit([replace(line.fork().batch(2, {"a": 2}), fence=new.fence)])
        assert line.load().checkpoint.values == {"a": 2}

    def test_a_lost_lease_stays_lost_and_its_end_frees_nothing(
        self, saver: Saver
    ) -> None:
        old = saver.lease("t")
        fence = old.__enter__().fence
        with saver.lease("t", on_conflict="takeover"):
            old.__exit__(None, None, None)

            with pytest.raises(ThreadBusyError), saver.lease("t"):
                pytest.fail("the lease was given twice")

        with pytest.raises(LeaseLostError):
            saver.commit([replace(Timeline(saver, "t").batch(1), fence=fence)])

    def test_a_deleted_thread_leaves_its_running_lease_alone(
        self, saver: Saver
    ) -> None:
        with saver.lease("t") as lease:
            saver.delete_thread("t")
            with pytest.raises(ThreadBusyError), saver.lease("t"):
                pytest.fail("the lease was given twice")
            saver.commit([replace(Timeline(saver, "t").batch(1), fence=lease.fence)])

        assert len(ids(saver, "t")) == 1

    def test_an_unknown_answer_to_a_conflict_is_refused(self, saver: Saver) -> None:
        answer: Any = "hope"

        with (
            pytest.raises(ConfigurationError, match="hope"),
            saver.lease("t", on_conflict=answer),
        ):
            pytest.fail("the lease was given")

    def test_only_one_of_many_os_threads_gets_the_lease(self, saver: Saver) -> None:
        tried = threading.Barrier(8)
        got: list[str] = []

        def run(_: int) -> None:
            try:
                with saver.lease("t"):
                    got.append("lease")
                    tried.wait(_PATIENCE)
            except ThreadBusyError:
                got.append("busy")
                tried.wait(_PATIENCE)

        in_os_threads(run)

        assert sorted(got) == ["busy"] * 7 + ["lease"]

    def test_many_os_threads_commit_at_once(self, saver: Saver) -> None:
        def run(index: int) -> None:
            line = Timeline(saver, f"t{index}")
            for number in range(1, 21):
                line.commit(number, {"a": (index, number)}, {"d": (number,)})

        in_os_threads(run)

        for index in range(8):
            saved = Timeline(saver, f"t{index}").load()
            assert (index, 20) == saved.checkpoint.values["a"]
            assert (
                tuple((number,) for number in range(1, 21)) == saved.deltas["d"].writes
            )


def grow(saver: Saver, place: Address) -> None:
    """Commit a line of five checkpoints with a snapshot at 2, and a fork, 6, from 3.

    Each is made by a run of its own and has a pending write.
    """
    line = Timeline(saver, place.thread_id, place.namespace)
    fork = line
    for number in EVERY:
        at = fork if number == 6 else line
        values = {"a": number} | ({"d": ["snapshot"]} if number == 2 else {})
        deltas = {} if number == 2 else {"d": (number,)}
        at.commit(number, values, deltas, metadata={"run_id": f"r{number}"})
        pending = writes(
            place.thread_id, number, ("a", number), namespace=place.namespace
        )
        saver.commit([pending])
        if number == 3:
            fork = line.fork()


def everything(saver: Saver, thread_id: str) -> dict[tuple[str, str], Any]:
    """Return all that is kept of a thread, by namespace and checkpoint id, without its
    name.
    """
    return {
        (place.namespace, saved.checkpoint.id): (
            saved.checkpoint,
            saved.writes,
            saved.deltas,
        )
        for place in saver.namespaces(thread_id)
        for saved in saver.history(place)
    }


def in_os_threads(run: Callable[[int], None]) -> None:
    """Call *run* with 0 to 7, each in an OS thread of its own."""
    threads = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(_PATIENCE)
