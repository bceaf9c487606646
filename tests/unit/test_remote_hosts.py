"""Which machine gets how many tasks, and which batches are given up."""

from __future__ import annotations

from concurrent.futures import Future
from math import inf

import pytest

from flowpregel.executors.cluster.remote_hosts import (
    RemoteBatch,
    RemoteHost,
    RemoteHosts,
)
from flowpregel.executors.processes.coordinator.assign import InFlight, TaskQueue
from flowpregel.executors.processes.wire.node_code import NodeCode
from tests.runs.pooling import job_of


def task_of(seconds: float, number: int) -> InFlight:
    """Return a task that is expected to take so long."""
    code = NodeCode(b"", b"", seconds)
    return InFlight(number, job_of(abs), None, code)


def queue_of(count: int, seconds: float) -> TaskQueue:
    """Return a queue of equal tasks."""
    queue = TaskQueue()
    for number in range(count):
        queue.add(task_of(seconds, number))
    return queue


def hosts_of(**sizes: int) -> RemoteHosts:
    """Return machines with so many slots, all heard of at second 100."""
    hosts = RemoteHosts()
    hosts.note_machines(sizes)
    for host in hosts.values():
        host.last_seen = 100.0
        for slot in range(sizes[host.address]):
            host.slots.active[slot] = float(slot)
    return hosts


def give(host: RemoteHost, number: int = 1) -> RemoteBatch:
    """Give a machine a batch of one task."""
    batch = RemoteBatch(number, host, [task_of(1.0, number)])
    host.batches[number] = batch
    return batch


def test_the_machine_with_the_least_to_do_for_its_size_is_next() -> None:
    """Not the one with the fewest batches."""
    hosts = hosts_of(small=1, large=4)
    give(hosts["small"], 1)
    give(hosts["large"], 2)

    assert hosts["large"] is hosts.next_for(queue_of(1, inf))


def test_only_short_tasks_go_ahead_of_time() -> None:
    """A long one waits where any machine can take it."""
    hosts = hosts_of(a=1)
    give(hosts["a"])

    assert hosts["a"] is hosts.next_for(queue_of(1, 0.05))
    assert hosts.next_for(queue_of(1, 30.0)) is None
    give(hosts["a"], 2)
    assert hosts.next_for(queue_of(1, 0.05)) is None


def test_nothing_goes_ahead_of_time_while_a_slot_is_leaving() -> None:
    """It would run in this slot, again and again, until the turns of the other slots of
    the machine end too.
    """
    hosts = hosts_of(a=2)
    give(hosts["a"], 1)
    give(hosts["a"], 2)
    hosts["a"].slots.leave(0.0)

    assert ([0], [1]) == (hosts["a"].slots.leaving, [*hosts["a"].slots.active])
    assert hosts.next_for(queue_of(1, 0.05)) is None
    del hosts["a"].batches[1]
    assert hosts.next_for(queue_of(1, 0.05)) is None
    hosts["a"].slots.remove(0)
    assert hosts["a"] is hosts.next_for(queue_of(1, 0.05))


def test_a_batch_whose_task_waits_for_others_takes_no_place() -> None:
    """Those that it waits for may need it."""
    hosts = hosts_of(a=1)
    batch = give(hosts["a"])
    batch.tasks[0].execution.calls.add(1)
    batch.callers.add(0)

    assert hosts["a"] is hosts.next_for(queue_of(1, inf))


@pytest.mark.parametrize(
    ("count", "seconds", "size"),
    [
        (100, inf, 1),
        (100, 0.005, 25),
        (1024, 1 / 1024, 204),
        (3, 1 / 1024, 3),
        (1000, 0.4, 1),
    ],
    ids=["unknown", "a share", "a fifth of a second", "not worth sharing", "long"],
)
def test_a_batch_keeps_a_place_busy_and_leaves_some_for_others(
    count: int, seconds: float, size: int
) -> None:
    """By measured run time."""
    queue = queue_of(count, seconds)

    assert size == hosts_of(a=1, b=1).batch_size(queue, queue.count)


def test_a_machine_that_the_engine_no_longer_lists_is_gone() -> None:
    """And the others stay."""
    hosts = hosts_of(a=1, b=1)
    gone = hosts["a"]

    assert [gone] == hosts.note_machines({"b": 1})
    assert {"b"} == hosts.keys()


def test_a_machine_is_not_gone_before_the_engine_lists_it() -> None:
    """A slot may begin there first."""
    hosts = hosts_of(a=1)
    new = hosts.setdefault("new", RemoteHost("new"))
    new.slots.active[1] = 0.0

    assert [] == hosts.note_machines({"a": 1})
    assert [] == hosts.note_machines({"a": 1, "new": 1})
    assert [new] == hosts.note_machines({"a": 1})


def test_a_silent_machine_gets_nothing_until_it_is_heard_of() -> None:
    """It is asked again."""
    hosts = hosts_of(a=1)
    batch = give(hosts["a"])
    hosts["a"].poll = Future()

    assert [] == hosts["a"].lost_batches(99.0)
    assert [batch] == hosts["a"].lost_batches(101.0)
    assert hosts.next_for(queue_of(1, inf)) is None
    assert hosts["a"].poll is None


def test_a_batch_that_the_engine_could_not_deliver_is_given_up() -> None:
    """That batch alone; the machine may go on with the others."""
    hosts = hosts_of(a=1)
    lost, _ = give(hosts["a"], 1), give(hosts["a"], 2)
    lost.failure = OSError()

    assert [lost] == hosts["a"].lost_batches(99.0)


def test_a_machine_without_slots_gets_no_batch() -> None:
    """Nor one whose slots are leaving."""
    hosts = hosts_of(a=1, b=0)
    assert hosts["a"] is hosts.next_for(queue_of(1, 0.01))
    hosts["a"].slots.leave(0.0)

    assert hosts.next_for(queue_of(1, 0.01)) is None
    assert 1 == hosts["a"].slots.count


def test_the_turn_of_each_slot_ends_for_itself() -> None:
    """The one that began last gets batches for longer."""
    slots = hosts_of(a=2)["a"].slots

    slots.leave(0.0)

    assert ([0], {1: 1.0}) == (slots.leaving, slots.active)


def test_the_last_slot_stays_while_a_task_waits_for_others() -> None:
    """The task needs it again afterwards."""
    host = hosts_of(a=2)["a"]
    assert 0 == host.needed_slots
    caller = give(host)
    caller.tasks[0].execution.calls.add(1)
    caller.callers.add(0)
    assert 1 == host.needed_slots


@pytest.mark.parametrize(
    ("count", "seconds", "batches"),
    [(0, 1.0, 0), (7, inf, 7), (7, 30.0, 7), (100, 0.01, 5), (1, 0.01, 1)],
)
def test_there_are_as_many_requests_as_batches(
    count: int, seconds: float, batches: int
) -> None:
    """Short tasks go together."""
    queue = queue_of(count, seconds)
    assert batches == hosts_of(a=1).batch_count(queue, count)


def test_a_machine_learns_of_an_unused_buffer_with_the_next_poll() -> None:
    """No message is sent for it, and none about what the machine never had."""
    host = hosts_of(a=1)["a"]
    host.memory.sent.update((1, 2))
    host.memory.forget(1)
    host.memory.forget(3)
    host.memory.drop(7)

    assert [] == host.commands
    host.commands.append(("end", 0, 0))
    expected = [("end", 0, 0), ("forget", 0, 0, 1), ("drop", 0, 0, 7)]
    assert expected == host.take_commands()
    assert [] == host.take_commands()
    assert {2} == host.memory.sent
