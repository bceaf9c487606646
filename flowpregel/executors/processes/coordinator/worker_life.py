"""The life of a worker, as a table of states and events: any other event is an error.

Theory of operation. A worker process starts, becomes ready, runs tasks one after
another, and ends. The coordinator gets its events from three sources: frames on the
link, its own decisions, and the kernel (a pidfd that becomes readable). Each event
changes the state, and the state decides what the pool may do with the worker::

    STARTING --READY--> IDLE --BEGAN--> BUSY --CALLED--> WAITING
                         ^  ^            | ^               |  |
                         |  '--EMPTIED---' '-----BEGAN-----'  |
                         '---------------EMPTIED--------------'
    IDLE --STOP_SENT--> STOPPING           any --KILLED--> STOPPING
                                           any --EXITED--> ENDED

* An IDLE worker gets tasks. A BUSY worker takes a CPU, and may get more tasks ahead of
  time. The task of a WAITING worker waits for its calls: the worker lends its CPU, and
  gets no tasks behind that task. A STOPPING worker gets no tasks, and is not counted in
  the pool's size.
* The tasks of a worker are a queue, of which the first task runs. The events BEGAN,
  CALLED and EMPTIED report the state of this queue after a change, so they may arrive
  in any of the states IDLE, BUSY and WAITING. They may also arrive in STOPPING and
  ENDED: the tasks of a killed worker are taken from it one by one.
* READY may arrive after the kill, if the worker had sent it before.
* STOP_SENT is an error in any state but IDLE: a worker with tasks must not be sent a
  stop, or a task would be lost silently.

A worker ends once. After EXITED, the events BEGAN, CALLED, EMPTIED and KILLED change
nothing; READY, STOP_SENT and a second EXITED are errors.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Final


# The table of states is read four times for each task that runs. So the states are
# integers, whose hashes are computed in C.
class WorkerState(IntEnum):
    """The state of a worker."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    WAITING = auto()
    """The running task waits for its calls."""
    STOPPING = auto()
    """The worker was sent the command to exit, or was killed, and gets no more
    tasks.
    """
    ENDED = auto()


class WorkerEvent(IntEnum):
    """An event in the life of a worker."""

    READY = auto()
    """The pool's initializer has run in the worker."""
    BEGAN = auto()
    """The first task of the worker's queue runs or will begin at once, and does not
    wait for calls.
    """
    CALLED = auto()
    """The running task waits for its calls."""
    EMPTIED = auto()
    """The worker's queue is empty."""
    STOP_SENT = auto()
    """The worker was sent the command to exit."""
    KILLED = auto()
    EXITED = auto()


class WorkerLifeError(Exception):
    """The error that an event cannot happen in the worker's state, which is a bug in
    the pool.
    """


class _Transitions(dict[tuple[WorkerState, WorkerEvent], WorkerState]):
    """A dict of the next states, by the present state and the event. A missing pair is
    an error.
    """

    def __missing__(self, key: tuple[WorkerState, WorkerEvent]) -> WorkerState:
        state, event = key
        raise WorkerLifeError(f"{event.name} cannot happen to a {state.name} worker")


def _transitions() -> _Transitions:
    """Return the table of transitions that the drawing in the module's docstring
    shows.
    """
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
"""The next state of a worker, by its state and the event.

Raises:
    WorkerLifeError: The event cannot happen in this state.
"""
