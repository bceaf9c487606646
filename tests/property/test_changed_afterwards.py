"""Programs that change all they were given or returned: no record notices.

A batch is encoded when the run hands it over. What a background writer commits at the
very latest is that batch when the program has ended, so that is what is committed here,
into a new saver.
"""

from __future__ import annotations

import operator
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowpregel import END, START, Send, StateGraph, interrupt
from flowpregel._core.records import Batch
from flowpregel.channels import DeltaChannel
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.checkpoint.records import EncodedBatch
from flowpregel.context import get_stream_writer
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.func import entrypoint, task
from flowpregel.types import Command, RetryPolicy
from tests.runs.conftest import Drive
from tests.runs.spoiled_flows import leave, record, spoil

pytestmark = pytest.mark.slow

AT_ONCE = RetryPolicy(initial_interval=0.0, retry_on=OSError)
Change = Callable[[Any], None]
values = st.recursive(
    st.integers(0, 9),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner)
    ),
    max_leaves=4,
).map(lambda value: {"of": [value]})
"""Values that can be changed in more than one place."""
drives = st.booleans().map(Drive)
durabilities = st.sampled_from(["sync", "async", "exit"])
few = settings(max_examples=max(10, settings.default.max_examples // 8))
fewest = settings(max_examples=max(5, settings.default.max_examples // 20))


class CopyingSaver(InMemorySaver):
    """Is done with a batch when it is handed over: it copies it."""

    commits_at_once = False  # so that `async` has a background writer

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Batch] = []

    def prepare(self, batch: Batch) -> Batch:
        """Return a copy of *batch*."""
        self.batches.append(pickle.loads(pickle.dumps(batch)))
        return self.batches[-1]


class LatestSaver(LMDBSaver):
    """Keeps what it is to commit, and copies of what was in it when it was handed
    over.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.batches: list[Batch] = []
        self.copies: list[Batch] = []

    def prepare(self, batch: Batch) -> EncodedBatch:
        """Return *batch* encoded, and keep it too."""
        prepared = super().prepare(batch)
        if prepared is not batch:
            self.copies.append(pickle.loads(pickle.dumps(batch)))
            self.batches.append(prepared)
        return prepared


def commit(saver: BaseCheckpointSaver, batches: Sequence[Batch]) -> None:
    """Commit what a process left that is gone, and its lease with it."""
    saver.commit([replace(batch, fence=None) for batch in batches])


def to_the_end(
    drive: Drive, app: Any, given: Any, durability: str, change: Change
) -> None:
    """Run *app*, answer whatever it asks, and change all that comes and goes."""
    while True:
        result = drive.invoke(
            app, given, thread_id="t", run_id="r", durability=durability
        )
        change(given.resume if isinstance(given, Command) else given)
        questions = result.get("__interrupt__") if isinstance(result, dict) else None
        if not questions:
            change(result)
            return
        given = Command(
            resume={each.id: {"answer": deepcopy(each.value)} for each in questions}
        )
        change([each.value for each in questions])


# ---------------------------------------------------------------- functional

actions = st.lists(
    st.tuples(
        st.sampled_from(
            ["wait", "gather", "map", "nest", "fail", "ask", "emit", "trip"]
        ),
        values,
    ),
    min_size=1,
    max_size=5,
)


class Actions:
    """What a body may do with two values that are alike; yields what it got.

    Args:
        change: What it does with all that it meets.
    """

    def __init__(self, change: Change) -> None:
        @task
        def give_back(value: Any) -> Any:
            result = {"copy": deepcopy(value)}
            change(value)
            return result

        @task
        def nested(value: Any) -> Any:
            inner = give_back(value).result()
            result = [deepcopy(inner), 1]
            change(inner)
            return result

        self.give_back, self.nested = give_back, nested
        self.tripped = False

    def wait(self, first: Any, _: Any) -> Iterator[Any]:
        yield give_same(first).result()

    def gather(self, first: Any, second: Any) -> Iterator[Any]:
        futures = [
            self.give_back(first),
            give_same(second),
            self.give_back({"one": [1]}),
        ]
        yield from (future.result() for future in futures)

    def map(self, first: Any, second: Any) -> Iterator[Any]:
        futures = self.give_back.map([first, second, [3]], chunksize=2)
        yield from (future.result() for future in futures)

    def nest(self, first: Any, _: Any) -> Iterator[Any]:
        yield self.nested(first).result()

    def ask(self, first: Any, _: Any) -> Iterator[Any]:
        yield interrupt(first)

    def emit(self, first: Any, second: Any) -> Iterator[Any]:
        get_stream_writer()(first)
        yield second

    def trip(self, *_: Any) -> Iterator[Any]:
        if not self.tripped:
            self.tripped = True
            raise OSError("once")
        yield "tripped"

    def fail(self, first: Any, _: Any) -> Iterator[Any]:
        try:
            fail_with(first).result()
        except LookupError as error:
            yield error.args[0]


@task
def give_same(value: Any) -> Any:
    """Return the very object that was given."""
    return value


@task
def fail_with(value: Any) -> Any:
    """Fail with an error that holds what was given."""
    raise LookupError(value)


def functional(
    plan: Sequence[tuple[str, Any]], saver: Any, executor: Any, change: Change
) -> Any:
    """Make an entrypoint that does what *plan* says, and changes all that it meets."""
    actions = Actions(change)

    # The tasks change their arguments on purpose.
    @entrypoint(
        checkpointer=saver,
        executor=executor,
        retry_policy=AT_ONCE,
        check_mutations=False,
    )
    def flow(given: Any, *, previous: Any = None) -> Any:
        seen = [repr(given), repr(previous)]
        change([given, previous])
        for action, value in plan:
            first, second = deepcopy(value), deepcopy(value)
            for result in getattr(actions, action)(first, second):
                seen.append(repr(result))
                change(result)
            change([first, second])
        saved = {"seen": seen}
        return entrypoint.final(value=[saved, seen], save=saved)

    return flow


Make = Callable[[Any, Change], Any]


def check_every_resume(drive: Drive, make: Make, given: Any, durability: str) -> None:
    """See that a run that changes things leaves what one does that changes nothing.

    And that it ends like that one when it is resumed from whatever a kill has left of
    it.
    """
    undisturbed, saver = CopyingSaver(), CopyingSaver()
    to_the_end(drive, make(undisturbed, leave), deepcopy(given), durability, leave)
    to_the_end(drive, make(saver, spoil), deepcopy(given), durability, spoil)
    expected = [*record(undisturbed)]

    assert expected == [*record(saver)]
    for count in range(1, len(saver.batches) + 1):
        left = CopyingSaver()
        commit(left, saver.batches[:count])
        begun = [*record(left)]
        to_the_end(
            drive,
            make(left, spoil),
            None if begun else deepcopy(given),
            durability,
            spoil,
        )
        assert expected == [*record(left)], count


@few
@given(actions, values, st.sampled_from(["inline", "threads"]), drives, durabilities)
def test_a_body_that_changes_what_it_gets_records_and_resumes_as_one_that_does_not(
    plan: list[tuple[str, Any]],
    given: Any,
    executor: str,
    drive: Drive,
    durability: str,
) -> None:
    """Its input, arguments, results, failures, questions, answers; in a second attempt
    too.
    """

    def make(saver: Any, change: Change) -> Any:
        return functional(plan, saver, executor, change)

    check_every_resume(drive, make, given, durability)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """Two workers."""
    with ProcessExecutor(2) as executor:
        yield executor


@fewest
@given(plan=actions, given=values, drive=drives, durability=durabilities)
def test_so_does_one_whose_tasks_run_in_worker_processes(
    plan: list[tuple[str, Any]],
    given: Any,
    drive: Drive,
    durability: str,
    pool: ProcessExecutor,
) -> None:
    """The same programs."""

    def make(saver: Any, change: Change) -> Any:
        return functional(plan, saver, pool, change)

    check_every_resume(drive, make, given, durability)


# ---------------------------------------------------------------- graphs


def _extend(value: list[Any], writes: list[Any]) -> list[Any]:
    return [*value, *chain.from_iterable(writes)]


class State(TypedDict, total=False):
    """What the nodes of a graph share: one key for each way to fold writes."""

    last: Any
    other: Any
    added: Annotated[list[Any], operator.add]
    deltas: Annotated[list[Any], DeltaChannel(_extend)]


nodes = st.lists(
    st.tuples(
        st.lists(
            st.sampled_from(["last", "other", "added", "deltas"]),
            unique=True,
            max_size=3,
        ),
        st.sampled_from(["dict", "command", "send"]),
        st.sampled_from(["", "", "asks", "emits"]),
        values,
    ),
    min_size=2,
    max_size=4,
)


class Nodes:
    """Makes the nodes of a graph, and knows what they returned.

    Args:
        change: What they do with all that they meet.
    """

    def __init__(self, change: Change) -> None:
        self.change = change
        self.returned: list[Any] = []
        self.given_away: list[tuple[str, str]] = []
        """The channel and the text of each write when it was returned."""

    def node(self, index: int, plan: tuple[Any, ...]) -> Callable[[Any], Any]:
        """Return the node that does what *plan* says."""
        keys, form, more, value = plan

        def run(state: Any) -> Any:
            saw = repr(sorted(state.items()))
            self.change([{**state}, *self.returned])
            mine = deepcopy(value)
            if more == "asks":
                saw += repr(interrupt(mine))
            elif more == "emits":
                get_stream_writer()(mine)
            lists = {"added", "deltas"}
            update = {
                key: [mine, saw] if key in lists else {"saw": saw, "v": mine}
                for key in keys
            }
            self.returned.append(update)
            self.given_away += [(key, repr(each)) for key, each in update.items()]
            if form == "dict":
                return update
            argument = {"sent": [index, mine]}
            self.returned.append(argument)
            return Command(
                update=update, goto=[Send("extra", argument)] * (form == "send")
            )

        return run

    def extra(self, sent: Any) -> Any:
        """Write what it was sent."""
        update = {"added": [repr(sent)]}
        self.change(sent)
        self.returned.append(update)
        self.given_away.append(("added", repr(update["added"])))
        return update


def graph(
    plans: Sequence[tuple[Any, ...]], saver: Any, executor: Any, nodes: Nodes
) -> Any:
    """Make a chain of nodes, which may send things to one more."""
    built = StateGraph(State)
    built.add_node("extra", nodes.extra)
    for index, plan in enumerate(plans):
        built.add_node(f"n{index}", nodes.node(index, plan))
        built.add_edge(f"n{index - 1}" if index else START, f"n{index}")
    built.add_edge(f"n{len(plans) - 1}", END)
    return built.compile(checkpointer=saver, executor=executor)


GIVEN = {"last": {"given": [0]}, "added": [["given"]], "deltas": [{"given": [0]}]}


@fewest
@given(plans=nodes, drive=drives, durability=durabilities)
def test_nodes_in_worker_processes_that_change_their_state_record_and_resume_as_ever(
    plans: list[tuple[Any, ...]], drive: Drive, durability: str, pool: ProcessExecutor
) -> None:
    """What they get and return are copies."""

    def make(saver: Any, change: Change) -> Any:
        return graph(plans, saver, pool, Nodes(change))

    check_every_resume(drive, make, GIVEN, durability)


@few
@given(nodes, st.sampled_from(["inline", "threads"]), drives, durabilities)
def test_nodes_that_share_the_state_with_the_run_record_what_they_returned_at_the_time(
    plans: list[tuple[Any, ...]], executor: str, drive: Drive, durability: str
) -> None:
    """As in LangGraph, the nodes after them see what they changed in it; no record
    does.
    """
    if executor == "threads":
        # What two nodes change that run side by side is a race of theirs.
        plans = [(keys, "command", more, value) for keys, _, more, value in plans]
    nodes, undisturbed = Nodes(spoil), InMemorySaver()
    with tempfile.TemporaryDirectory() as folder:
        with LatestSaver(Path(folder) / "store") as saver:
            app = graph(plans, saver, executor, nodes)
            to_the_end(drive, app, deepcopy(GIVEN), durability, spoil)
        with LMDBSaver(Path(folder) / "late") as late:
            commit(late, saver.batches)
            found = [*record(late)]
    commit(undisturbed, saver.copies)

    assert [*record(undisturbed)] == found
    if durability == "exit":
        return  # it keeps the state alone, as it is at the end
    returned = [
        *nodes.given_away,
        *((key, repr(value)) for key, value in GIVEN.items()),
    ]
    writes = [
        write
        for batch in saver.copies
        for each in batch.writes
        for write in each.writes
    ]
    for channel, value in writes:
        assert channel not in GIVEN or (channel, repr(value)) in returned
