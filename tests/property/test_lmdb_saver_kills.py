"""`LMDBSaver` does what plain dicts do although processes that commit to it are killed.

A commit is made by a process that is killed (SIGKILL) before one of its calls to the
disk, or in the middle of a write. All of it is there then, or nothing.
"""

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from flowpregel._core.records import Address, Batch, TaskWrites
from flowpregel.checkpoint.lmdb import LMDBSaver
from tests.disk import workloads
from tests.disk.nursery import KILL, TEAR, Nursery
from tests.property import saver_model
from tests.property.machines import LMDBMachine
from tests.property.saver_model import ModelThreadData
from tests.runs.stores import step
from tests.strategies import example_count

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("store_key")]

_places = st.tuples(
    st.sampled_from(saver_model.THREADS), st.sampled_from(saver_model.NAMESPACES)
)
_changes = st.dictionaries(
    st.sampled_from(saver_model.CHANNELS),
    st.tuples(st.just("value"), st.integers(0, 9))
    | st.tuples(st.just("delta"), st.lists(st.integers(0, 9), max_size=2).map(tuple)),
    max_size=3,
)


class KilledMachine(LMDBMachine):
    """A saver whose commits are made by processes that may be killed."""

    nursery: Nursery

    @rule(
        places=st.lists(_places, min_size=1, max_size=3),
        changes=_changes,
        with_writes=st.booleans(),
        call=st.integers(1, 7),
        act=st.sampled_from([KILL, TEAR]),
    )
    def commit_and_be_killed(self, places, changes, with_writes, call, act):
        """Commit to several places at once in another process, which dies on the
        way.
        """
        before = copy.deepcopy(self.model)
        batches = []
        for place in places:
            known = self.model.get(place, ModelThreadData()).checkpoints
            parent = max(known, default=None)
            batch = self._checkpoint(place, parent, changes, "r1")
            if with_writes and parent is not None:
                written = TaskWrites(parent, "task 1", "path of task 1", (("a", 1),))
                self.model[place].note(written)
                batch = replace(batch, writes=(written,))
            batches.append(batch)
        path = self.saver.path
        self.saver.close()
        ended = self.nursery.run(
            workloads.commit_batches,
            path,
            batches,
            folder=path,
            act=act,
            first=call,
            last=call,
        )
        self.saver = LMDBSaver(path)
        assert ended.killed or ended.status == 0, ended
        newest = batches[-1]
        assert newest.checkpoint is not None
        place = newest.address.thread_id, newest.address.namespace
        is_there = self.saver.load(Address(*place, newest.checkpoint.id)) is not None
        if not is_there:
            assert ended.killed
            self.model = before


@pytest.fixture(scope="module", autouse=True)
def _nursery(tmp_path_factory):
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        KilledMachine.nursery = nursery
        yield


TestKilledSaverModel = KilledMachine.TestCase
TestKilledSaverModel.settings = settings(
    max_examples=example_count(10, 15), stateful_step_count=20, deadline=None
)


def test_a_kill_meets_a_commit_before_and_after_it_counts(tmp_path):
    """Of the calls that a commit makes, the last one decides: both outcomes are met
    above.
    """
    path = str(tmp_path / "store")
    outcomes = set()
    for call in range(1, 30):
        shutil.rmtree(path, ignore_errors=True)
        with LMDBSaver(path):
            pass
        batch = Batch(address=Address("t"), checkpoint=step(0))
        ended = KilledMachine.nursery.run(
            workloads.commit_batches,
            path,
            [batch],
            folder=path,
            act=KILL,
            first=call,
            last=call,
        )
        with LMDBSaver(path) as saver:
            outcomes.add((ended.killed, saver.load(Address("t")) is not None))

    assert {(True, False), (False, True)} <= outcomes
    assert (False, False) not in outcomes
    assert Path(path).exists()
