"""The life of a worker: which events may happen in which state."""

from __future__ import annotations

import pytest

from flowpregel.executors.processes.coordinator.worker_life import (
    NEXT_STATE,
    WorkerEvent,
    WorkerLifeError,
    WorkerState,
)

LIVES = {
    "works and is told to stop": (
        "READY IDLE, BEGAN BUSY, BEGAN BUSY, EMPTIED IDLE, STOP_SENT STOPPING, "
        "EXITED ENDED"
    ),
    "calls other tasks": (
        "READY IDLE, BEGAN BUSY, CALLED WAITING, CALLED WAITING, BEGAN BUSY, "
        "CALLED WAITING, EMPTIED IDLE"
    ),
    "never gets ready": "KILLED STOPPING, EXITED ENDED",
    "gets ready as it is killed": "KILLED STOPPING, READY STOPPING, EXITED ENDED",
    "dies with two tasks": "READY IDLE, BEGAN BUSY, EXITED ENDED, BEGAN ENDED, "
    "EMPTIED ENDED",
    "is killed while its task waits": (
        "READY IDLE, BEGAN BUSY, CALLED WAITING, KILLED STOPPING, CALLED STOPPING, "
        "EXITED ENDED, KILLED ENDED"
    ),
}
IMPOSSIBLE = {
    "STARTING": "BEGAN CALLED EMPTIED STOP_SENT",
    "IDLE": "READY",
    "BUSY": "READY STOP_SENT",
    "WAITING": "READY STOP_SENT",
    "STOPPING": "STOP_SENT",
    "ENDED": "READY STOP_SENT EXITED",
}


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_a_worker_lives(life: str) -> None:
    """Each event leads to the state beside it."""
    state = WorkerState.STARTING
    for step in life.split(", "):
        event, expected = step.split()
        state = NEXT_STATE[state, WorkerEvent[event]]
        assert WorkerState[expected] is state


@pytest.mark.parametrize("state", WorkerState, ids=lambda state: state.name)
def test_anything_else_is_an_error(state: WorkerState) -> None:
    """The table has no entry for it, so that the mistake is found where it is made."""
    impossible = IMPOSSIBLE[state.name].split()
    for event in WorkerEvent:
        if event.name not in impossible:
            assert NEXT_STATE[state, event] in WorkerState
            continue
        error = f"{event.name} cannot happen to a {state.name} worker"
        with pytest.raises(WorkerLifeError, match=error):
            NEXT_STATE[state, event]
