"""The life of a worker, as a table of states and events: any other event is an error.

Theory of operation. A worker process starts, gets ready, runs tasks one after another,
and ends. The coordinator learns of that from three sources: frames on the link, its own
decisions, and the kernel (a pidfd that becomes readable). Each of them is an event, and
the state decides what the pool may do with the worker::

    STARTING --READY--> IDLE --BEGAN--> BUSY --CALLED--> WAITING
                         ^  ^            | ^               |  |
                         |  '--EMPTIED---' '----RESUMED----'  |
                         '---------------EMPTIED--------------'
    IDLE --STOP_SENT--> STOPPING           any --KILLED--> STOPPING
                                           any --EXITED--> ENDED

* An IDLE worker gets tasks. A BUSY one gets more, ahead of time, and its CPU is taken.
  A WAITING one runs a task that waits for tasks that it called: it lends its CPU, and
  gets nothing behind that task. A STOPPING one gets nothing, and does not count.
* The tasks of a worker are a queue of which the first one runs. So whether a worker is
  IDLE, BUSY or WAITING follows from that queue, and the three events about it may
  arrive in any of the three states. They may also arrive in the last two: the tasks of
  a worker that was killed are taken from it one by one.
* READY may arrive after the kill: the worker had sent it before.
* Only a worker without a task is sent a stop: STOP_SENT is an error in any state but
  IDLE, because a task would be lost silently.

A worker ends once. What arrives after EXITED changes nothing, but EXITED itself, READY
and STOP_SENT cannot arrive then.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class WorkerState(Enum):
    """The state of a worker."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    WAITING = auto()
    """The task waits for calls."""
    STOPPING = auto()
    """It was sent a stop, or killed: it gets no more tasks."""
    ENDED = auto()


class WorkerEvent(Enum):
    """An event in the life of a worker."""

    READY = auto()
    """The initializer has run."""
    BEGAN = auto()
    """It has a task that waits for no calls, and runs it or is about to."""
    CALLED = auto()
    """The task that it runs waits for calls."""
    EMPTIED = auto()
    """It has no task any more."""
    STOP_SENT = auto()
    """It was told to exit."""
    KILLED = auto()
    EXITED = auto()


class WorkerLifeError(Exception):
    """An event that cannot happen in the state of the worker: an error in the pool."""


class _Transitions(dict[tuple[WorkerState, WorkerEvent], WorkerState]):
    """The next state by state and event."""

    def __missing__(self, key: tuple[WorkerState, WorkerEvent]) -> WorkerState:
        state, event = key
        raise WorkerLifeError(f"{event.name} cannot happen to a {state.name} worker")


def _transitions() -> _Transitions:
    """Return the table that is drawn above."""
    table = _Transitions()
    table[WorkerState.STARTING, WorkerEvent.READY] = WorkerState.IDLE
    table[WorkerState.STOPPING, WorkerEvent.READY] = WorkerState.STOPPING
    table[WorkerState.IDLE, WorkerEvent.STOP_SENT] = WorkerState.STOPPING
    for state in (WorkerState.IDLE, WorkerState.BUSY, WorkerState.WAITING):
        table[state, WorkerEvent.BEGAN] = WorkerState.BUSY
        table[state, WorkerEvent.CALLED] = WorkerState.WAITING
        table[state, WorkerEvent.EMPTIED] = WorkerState.IDLE
    for state in (WorkerState.STOPPING, WorkerState.ENDED):
        for event in (WorkerEvent.BEGAN, WorkerEvent.CALLED, WorkerEvent.EMPTIED):
            table[state, event] = state
    for state in WorkerState:
        if state is not WorkerState.ENDED:
            table[state, WorkerEvent.KILLED] = WorkerState.STOPPING
            table[state, WorkerEvent.EXITED] = WorkerState.ENDED
    table[WorkerState.ENDED, WorkerEvent.KILLED] = WorkerState.ENDED
    return table


NEXT_STATE: Final = _transitions()
"""The next state of a worker, by its state and what happens to it.

Raises:
    WorkerLifeError: That cannot happen in this state.
"""
