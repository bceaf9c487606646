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
    """Return machines of these sizes, all heard of at second 100."""
    hosts = RemoteHosts()
    hosts.lost(sizes, 0.0)
    for host in hosts.values():
        host.last_seen = 100.0
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


def test_a_batch_whose_task_waits_for_others_takes_no_place() -> None:
    """Those that it waits for may need it."""
    hosts = hosts_of(a=1)
    give(hosts["a"]).tasks[0].execution.calls.add(1)

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


def test_what_a_machine_that_is_gone_had_is_given_up() -> None:
    """And the others keep theirs."""
    hosts = hosts_of(a=1, b=1)
    lost, kept = give(hosts["a"], 1), give(hosts["b"], 2)

    assert [lost] == hosts.lost({"b": 1}, 99.0)
    assert kept in hosts["b"].batches.values()
    assert {"b"} == hosts.keys()


def test_a_silent_machine_gets_nothing_until_it_is_heard_of() -> None:
    """It is asked again."""
    hosts = hosts_of(a=1)
    batch = give(hosts["a"])
    hosts["a"].poll = Future()

    assert [] == hosts.lost({"a": 1}, 99.0)
    assert [batch] == hosts.lost({"a": 1}, 101.0)
    assert hosts.next_for(queue_of(1, inf)) is None
    assert hosts["a"].poll is None


def test_what_the_engine_has_given_up_is_given_up() -> None:
    """That batch alone; the machine may go on with the others."""
    hosts = hosts_of(a=1)
    lost, _ = give(hosts["a"], 1), give(hosts["a"], 2)
    lost.failure = OSError()

    assert [lost] == hosts.lost({"a": 1}, 99.0)


def test_nothing_is_given_up_while_the_engine_cannot_be_asked() -> None:
    """The machines may be well."""
    hosts = hosts_of(a=1)
    give(hosts["a"])

    assert [] == hosts.lost(None, 1000.0)


def test_a_batch_that_does_not_begin_is_taken_back_for_a_machine_with_room() -> None:
    """Not before its time, nor if the machine has begun it, nor without such room."""
    hosts = hosts_of(a=1, b=1)
    late, begun = give(hosts["a"], 1), give(hosts["a"], 2)
    late.due = begun.due = 5.0
    hosts["a"].note_begun([2, 3])

    assert [] == hosts.waiting_batches(4.9)
    assert [late] == hosts.waiting_batches(5.0)
    give(hosts["b"], 3)
    assert [] == hosts.waiting_batches(5.0)


def test_a_machine_that_others_use_gets_tasks_last() -> None:
    """Until it has begun a batch."""
    hosts = hosts_of(a=4, b=1)
    batch = give(hosts["a"])
    hosts["a"].is_busy = True

    assert hosts["b"] is hosts.next_for(queue_of(1, inf))
    give(hosts["b"], 2)
    assert hosts["a"] is hosts.next_for(queue_of(1, inf))
    hosts["a"].note_begun([batch.id])
    assert not hosts["a"].is_busy
