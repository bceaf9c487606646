"""What a worker does with what it is sent: it runs in a fork, and the test is its
coordinator.
"""

from __future__ import annotations

import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core.records import (
    RETURN,
    Raised,
    Returned,
    Withdrawn,
    add_failed_calls,
)
from flowpregel.channels import LastValue
from flowpregel.context import RunInfo, get_store, get_stream_writer
from flowpregel.errors import TaskCancelled, TaskExitError, TaskSerializationError
from flowpregel.executors.processes.wire import messages, protocol, serialization
from flowpregel.func import task
from flowpregel.runtime import get_runtime, read_channels
from tests.descriptors import is_readable
from tests.unit.executors.driven_workers import (
    DrivenWorker,
    WorkerMaker,
    error_of,
    value,
    value_of,
)
from tests.unit.executors.quick_pools import LONG, job_of

# The test's own process has other OS threads, of which none matters in the fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


# ------------------------------------------------ how it starts and ends


def test_an_initializer_has_run_when_a_worker_is_ready(worker_of: WorkerMaker) -> None:
    """With its arguments."""
    initializer = pickle.dumps((os.putenv, ("MODEL", "loaded")))

    command = "import os; print(os.getenv('MODEL'))"
    worker = worker_of(initializer=initializer)
    assert b"loaded\n" == value(
        worker, subprocess.check_output, [sys.executable, "-c", command]
    )


@pytest.mark.parametrize(
    ("function", "kind"),
    [(int, ValueError), (sys.exit, SystemExit)],
    ids=["error", "exit"],
)
def test_an_initializer_that_fails_is_told_and_ends_the_worker(
    function: Any, kind: type[BaseException], worker_of: WorkerMaker
) -> None:
    """It is not ready."""
    worker = worker_of(is_ready=False, initializer=pickle.dumps((function, ("x",))))

    error = error_of(messages.unpack_outcome(worker.frame(protocol.FAILED).body))

    assert isinstance(error, kind)
    assert "in the pool's initializer" in error.__notes__
    assert 0 == worker.exit_code()


def test_a_worker_exits_when_it_is_told_to_stop(worker: DrivenWorker) -> None:
    """And not before."""
    assert 3 == value(worker, len, "abc")

    worker.send(protocol.STOP)

    assert 0 == worker.exit_code()


def test_a_worker_exits_when_its_coordinator_has_closed_the_link(
    worker: DrivenWorker,
) -> None:
    """Nobody has orders for it any more."""
    worker.link.shutdown(2)

    assert 0 == worker.exit_code()


def surroundings() -> dict[str, Any]:
    """Return what a task finds."""
    import multiprocessing

    os.kill(os.getpid(), signal.SIGINT)
    return {
        "group": os.getpgid(0) == os.getpid(),
        "stdin": sys.stdin.read(),
        "method": multiprocessing.get_start_method(),
        "levels": [logging.getLogger().level, logging.getLogger("quiet").level],
    }


def test_a_worker_is_alone_in_its_group_and_has_no_stdin(worker: DrivenWorker) -> None:
    """Ctrl-C is not its business, and the levels of loggers are the program's."""
    expected = {"group": True, "stdin": "", "method": "spawn", "levels": [10, 40]}

    assert expected == value(worker, surroundings)


# ------------------------------------------------ which tasks it runs


def test_a_task_is_measured(worker: DrivenWorker) -> None:
    """How long it took by the clock and by the CPU, when it began, and the memory."""
    before = time.time_ns()
    (number,) = worker.order(job_of(time.sleep, 0.02))

    _, frame = worker.end(number)

    span, failed_ids, _ = messages.unpack_head(frame.body)
    began, seconds, *_ = span
    cost = span.cost
    assert 0.02 <= seconds < LONG
    assert before <= began <= time.time_ns() - 20_000_000
    assert 0 <= cost.cpu < seconds  # it sleeps; what else the CPU does is the machine's
    assert 1 << 20 < cost.peak < 1 << 40
    assert b"" == failed_ids
    assert 0 == frame.flags


def test_tasks_without_a_token_are_not_run(worker: DrivenWorker) -> None:
    """They were taken back; those behind them that were not are run."""
    jobs = [job_of(str, n) for n in range(5)]

    numbers = worker.order(*jobs, tokens=(2, 4))

    for position in (0, 2, 4):
        assert str(position) == value_of(worker.end(numbers[position])[0])
    first, _ = worker.order(*jobs[:2])
    assert "0" == value_of(worker.end(first)[0])
    assert "late" == value(worker, str, "late")


def test_a_busy_worker_needs_a_token_for_the_first_as_well(
    worker: DrivenWorker,
) -> None:
    """It may be taken back while another runs."""
    jobs = [job_of(str, n) for n in range(2)]

    numbers = worker.order(*jobs, begins=None, tokens=(1,))

    assert "1" == value_of(worker.end(numbers[1])[0])


def test_the_running_task_is_in_the_status_of_its_worker(worker: DrivenWorker) -> None:
    """That can be read when the worker is gone."""
    numbers = worker.order(job_of(str), job_of(os._exit, 7), job_of(str), tokens=(1, 2))

    assert 7 == worker.exit_code()
    assert numbers[1] == worker.status[protocol.RUNNING]


# ------------------------------------------------ how tasks are stopped


def hang() -> None:
    """Emit that it has begun, and go on until it is stopped."""
    get_stream_writer()("begun")
    while True:
        time.sleep(0.001)


def test_a_task_that_is_stopped_ends_and_its_worker_goes_on(
    worker: DrivenWorker,
) -> None:
    """The end says that the signal has reached it."""
    (number,) = worker.order(job_of(hang))
    worker.frame(protocol.EMITTED)

    worker.stop(number)

    outcome, frame = worker.end(number)
    assert frame.flags & protocol.STOPPED
    assert isinstance(outcome, Withdrawn) or isinstance(
        error_of(outcome), TaskCancelled
    )
    (number,) = worker.order(job_of(len, ""))
    outcome, frame = worker.end(number)
    assert (0, 0) == (value_of(outcome), frame.flags)


def clean_up_when_stopped() -> None:
    """Hang; when it is stopped, ask the run's store, and emit the answer."""
    try:
        hang()
    finally:
        get_stream_writer()(ask("key"))


def test_a_task_that_is_stopped_may_clean_up(worker: DrivenWorker) -> None:
    """A second signal does not interrupt that."""
    run = RunInfo(run_id="run", store="the run's own")
    (number,) = worker.order(job_of(clean_up_when_stopped, run=run))
    worker.frame(protocol.EMITTED)

    worker.stop(number)
    (request,) = protocol.REQUEST.unpack_from(worker.frame(protocol.ASKED).body)
    worker.stop(number)
    answer = messages.pack_outcome(Returned(((RETURN, "cleaned up"),)), "")
    worker.send(protocol.ANSWER, request, answer)

    emitted = worker.frame(protocol.EMITTED)
    assert "cleaned up" == serialization.unpack(emitted.body)
    worker.end(number)


def test_a_task_that_was_stopped_before_it_began_does_not_begin(
    worker: DrivenWorker, tmp_path: Path
) -> None:
    """The signal came too early for it."""
    worker.status[protocol.UNWANTED] = 1

    (number,) = worker.order(job_of((tmp_path / "ran").touch))

    outcome, frame = worker.end(number)
    assert isinstance(outcome, Withdrawn)
    assert frame.flags & protocol.STOPPED
    assert not (tmp_path / "ran").exists()


def test_a_signal_that_is_meant_for_another_task_is_ignored(
    worker: DrivenWorker,
) -> None:
    """That one has ended."""
    (number,) = worker.order(job_of(hang))
    worker.frame(protocol.EMITTED)
    worker.stop(number + 1)

    worker.stop(number)

    assert worker.end(number)[1].flags & protocol.STOPPED


def test_a_signal_between_tasks_does_nothing(worker: DrivenWorker) -> None:
    """The worker lives."""
    for number in range(3):
        worker.stop(number)

        assert 0 == value(worker, len, "")


def start_and_hang(command: list[str]) -> None:
    """Start a process, and hang."""
    get_stream_writer()(subprocess.Popen(command, start_new_session=True).pid)
    hang()


def start(command: list[str]) -> int:
    """Start a process; return its pid."""
    return subprocess.Popen(command, start_new_session=True).pid


def test_what_a_stopped_task_has_started_ends_with_it(worker: DrivenWorker) -> None:
    """What another has started lives on."""
    command = ["sleep", "60"]
    # It was started only just before the task that is stopped has begun.
    other = os.pidfd_open(value(worker, start, command))
    (number,) = worker.order(job_of(start_and_hang, command))
    started = os.pidfd_open(serialization.unpack(worker.frame(protocol.EMITTED).body))
    worker.frame(protocol.EMITTED)

    worker.stop(number)
    worker.end(number)

    # It was killed before, but the kernel may need a moment to end it.
    assert is_readable(started, LONG)
    assert not is_readable(other, 0)
    signal.pidfd_send_signal(other, signal.SIGKILL)
    for process in (started, other):
        os.close(process)


def import_slowly(folder: str) -> str:
    """Import a module that takes its time, and hang."""
    sys.path.insert(0, folder)
    import slowly_imported  # type: ignore[import-not-found]

    get_stream_writer()(slowly_imported.state)
    hang()
    return ""


def test_a_task_that_imports_is_stopped_when_the_module_is_whole(
    worker: DrivenWorker, tmp_path: Path
) -> None:
    """Half a module would be there for all later tasks."""
    read, write = (tmp_path / name for name in ("read", "write"))
    os.mkfifo(read)
    os.mkfifo(write)
    text = (
        f"state = 'half'\nopen({str(write)!r}, "
        f"'w').close()\nopen({str(read)!r}).read()\n"
    )
    (tmp_path / "slowly_imported.py").write_text(f"{text}state = 'whole'\n")
    (number,) = worker.order(job_of(import_slowly, str(tmp_path)))
    write.open().close()

    worker.stop(number)
    read.open("w").close()

    frame = worker.frame()
    if frame.kind == protocol.EMITTED:
        assert "whole" == serialization.unpack(frame.body)
        frames = [worker.frame()]
        while frames[-1].kind != protocol.ENDED:
            frames.append(worker.frame())
        frame = frames[-1]
    assert (protocol.ENDED, protocol.STOPPED) == (frame.kind, frame.flags)
    assert "whole" == value(worker, state_of_module)


def state_of_module() -> str:
    """Return how far a module was imported."""
    return str(sys.modules["slowly_imported"].state)


def is_told_of_its_end() -> bool:
    """Return whether the run is to end."""
    return bool(get_runtime().stopping)


@pytest.mark.parametrize("is_ending", [True, False])
def test_a_task_can_see_that_its_run_is_to_end(
    is_ending: bool, worker: DrivenWorker
) -> None:
    """If it is its own."""
    worker.status[protocol.ENDING] = 1 if is_ending else 7

    assert is_ending == value(worker, is_told_of_its_end)


def fork_and_wait() -> int:
    """Fork a process that leaves the task as well; return its exit code."""
    pid = os.fork()
    if pid == 0:
        return -1
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


class Forking:
    """Forks where it is unpickled, and is the exit code of the fork."""

    def __reduce__(self) -> Any:
        return fork_and_wait, ()


def test_a_fork_that_comes_out_of_its_task_just_ends(worker: DrivenWorker) -> None:
    """It sends nothing, and has not failed; wherever it was made."""
    assert 0 == value(worker, fork_and_wait)
    assert 0 == value(worker, abs, Forking())


def fork_and_stop_that() -> int:
    """Have a fork signalled as this task would be; return its exit code."""
    ask("key")
    pid = os.fork()
    if pid == 0:
        try:
            signal.raise_signal(protocol.STOP_SIGNAL)
        except TaskCancelled:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def test_a_fork_is_not_stopped_by_a_signal_for_its_task(worker: DrivenWorker) -> None:
    """The task's code is to raise in the worker alone."""
    run = RunInfo(run_id="run", store="the run's own")
    (number,) = worker.order(job_of(fork_and_stop_that, run=run))
    (request,) = protocol.REQUEST.unpack_from(worker.frame(protocol.ASKED).body)
    worker.status[protocol.UNWANTED] = number
    answer = messages.pack_outcome(Returned(((RETURN, None),)), "")

    worker.send(protocol.ANSWER, request, answer)

    assert 0 == value_of(worker.end(number)[0])


# ------------------------------------------------ what goes wrong


class Unreadable:
    """Cannot be unpickled."""

    def __reduce__(self) -> Any:
        return int, ("x",)


def test_an_input_that_cannot_be_read_fails_its_task(worker: DrivenWorker) -> None:
    """Its error says that it was the input, and where."""
    (number,) = worker.order(job_of(len, Unreadable()))

    error = error_of(worker.end(number)[0])

    assert isinstance(error, TaskSerializationError)
    assert "input" in str(error)
    assert "(in the worker)" in str(error)
    assert isinstance(error.__cause__, ValueError)


def exit_now() -> None:
    """Try to end the program."""
    sys.exit(3)


def test_a_task_that_tries_to_exit_fails_and_its_worker_goes_on(
    worker: DrivenWorker,
) -> None:
    """It is not the task's process."""
    (number,) = worker.order(job_of(exit_now))

    assert isinstance(error_of(worker.end(number)[0]), TaskExitError)
    assert 0 == value(worker, len, "")


def raise_in_a_moment() -> None:
    """Have a handler raise as soon as the task has ended."""
    signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, 1e-4)


def fail(*_: Any) -> None:
    """Raise."""
    raise OSError("from a handler")


def test_a_handler_that_raises_when_its_task_has_ended_costs_nobody_else(
    worker: DrivenWorker,
) -> None:
    """That is not its task any more."""
    (number,) = worker.order(job_of(raise_in_a_moment))
    outcome, _ = worker.end(number)
    assert isinstance(outcome, Returned | Raised)

    assert 0 == value(worker, len, "")


def lower_a_limit() -> None:
    """Lower a limit for good."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (soft - 1, hard - 1 if hard > 0 else soft - 1)
    )


def test_a_worker_that_was_changed_for_good_begins_no_more_tasks(
    worker: DrivenWorker,
) -> None:
    """It says so, and refuses what it was to begin without a token."""
    if os.geteuid() == 0:
        function: Callable[[], object] = become_another_user
    else:
        function = lower_a_limit
    numbers = worker.order(job_of(function), job_of(str), tokens=(1,))
    worker.end(numbers[0])

    worker.frame(protocol.SPOILED)

    (number,) = worker.order(job_of(str))
    assert number == worker.frame(protocol.REFUSED).number


def become_another_user() -> None:
    """Give up what only root may do, for good."""
    os.setgid(1)
    os.setuid(1)


def change_folder(folder: str) -> None:
    """Change the working directory."""
    os.chdir(folder)


def test_a_change_that_can_be_taken_back_is(
    worker: DrivenWorker, tmp_path: Path
) -> None:
    """The next task finds the process as it was."""
    value(worker, change_folder, str(tmp_path))

    assert os.getcwd() == value(worker, os.getcwd)


# ------------------------------------------------ what a task sends


def emit_and_beat() -> None:
    """Send two signs of life."""
    get_stream_writer()({"n": 1})
    get_runtime().heartbeat()


def test_a_task_emits_and_beats_under_its_number(worker: DrivenWorker) -> None:
    """In that order."""
    (number,) = worker.order(job_of(emit_and_beat))

    emitted, beat = worker.frame(protocol.EMITTED), worker.frame(protocol.BEAT)

    assert (number, number) == (emitted.number, beat.number)
    assert {"n": 1} == serialization.unpack(emitted.body)


def ask(name: str) -> Any:
    """Ask the run's store."""
    return get_store().get(("a",), name)


def save(state: Any) -> str:
    """Save *state*."""
    get_runtime().save(state)
    return "saved"


def read_text(name: str) -> Any:
    """Read a channel that the node has not declared."""
    return read_channels(name)


@pytest.mark.parametrize(
    ("function", "kind", "content"),
    [
        (ask, protocol.ASKED, ("get", (("a",), "key"), {})),
        (save, protocol.SAVED, "key"),
        (read_text, protocol.CHANNELS, ("key",)),
    ],
)
def test_a_request_waits_for_its_answer(
    function: Any, kind: int, content: Any, worker: DrivenWorker
) -> None:
    """Which comes under the number of the request."""
    run = RunInfo(run_id="run", store="the run's own")
    (number,) = worker.order(job_of(function, "key", run=run))
    frame = worker.frame(kind)
    (request,) = protocol.REQUEST.unpack_from(frame.body)
    assert number == frame.number
    assert content == serialization.unpack(frame.body, None, protocol.REQUEST.size)
    channel = LastValue(str)
    channel.update(["answer"])
    result = ({"key": channel}, {}) if kind == protocol.CHANNELS else "answer"
    answer = messages.pack_outcome(Returned(((RETURN, result),)), "")

    worker.send(protocol.ANSWER, request, answer)

    assert value_of(worker.end(number)[0]) in ("answer", "saved")


def test_a_plain_function_has_nothing_to_save_for(worker: DrivenWorker) -> None:
    """It has one attempt."""
    assert "saved" == value(worker, save, 1, run=RunInfo())


def work(n: int) -> int:
    """Return twice a number."""
    return 2 * n


work_task = task(work)


def call_twice(catch: bool) -> list[int]:
    """Make two calls, the second of which fails; catch that if *catch*."""
    first, second = work_task(1), work_task(2)
    try:
        second.result()
    except ValueError:
        if not catch:
            raise
    return [first.result()]


def call_with_a_call() -> int:
    """Pass one call's future to another; return its result."""
    return work_task(work_task(1)).result()


def test_a_call_may_be_given_the_future_of_another(worker: DrivenWorker) -> None:
    """It is made when that has ended."""
    (number,) = worker.order(job_of(call_with_a_call))
    arguments = []
    for result in (2, 4):
        call = worker.frame(protocol.CALLED)
        (request,) = protocol.REQUEST.unpack_from(call.body)
        content = serialization.unpack(call.body, None, protocol.REQUEST.size)
        arguments.append(content[1].args)
        answer = messages.pack_outcome(Returned(((RETURN, result),)), "work")
        worker.send(protocol.ANSWER, request, answer)

    assert 4 == value_of(worker.end(number)[0])
    assert [(1,), (2,)] == arguments


@pytest.mark.parametrize("catch", [True, False])
def test_a_caller_gets_the_outcomes_of_its_calls_in_any_order(
    catch: bool, worker: DrivenWorker
) -> None:
    """Its end has the failures that it has seen."""
    (number,) = worker.order(job_of(call_twice, catch))
    calls = [worker.frame(protocol.CALLED) for _ in range(2)]
    requests = [protocol.REQUEST.unpack_from(call.body)[0] for call in calls]
    arguments = [
        serialization.unpack(call.body, None, protocol.REQUEST.size)[1]
        for call in calls
    ]
    error = ValueError("no luck")
    add_failed_calls(error, ("second",))

    worker.send(
        protocol.ANSWER, requests[1], messages.pack_outcome(Raised(error), "work")
    )
    if catch:
        done = messages.pack_outcome(Returned(((RETURN, 20),)), "work")
        worker.send(protocol.ANSWER, requests[0], done)

    outcome, frame = worker.end(number)
    head = messages.unpack_head(frame.body)
    assert [(1,), (2,)] == [given.args for given in arguments]
    assert protocol.CAUGHT == frame.flags
    assert b"second" == head.failed_ids
    assert [20] == value_of(outcome) if catch else "no luck" == str(error_of(outcome))


def look_too_early() -> None:
    """Look at a call that has not ended, and no more when it has failed."""
    future = work_task(1)
    try:
        future.exception(0)
    except TimeoutError:
        get_stream_writer()("looked")
    while not future.done():
        time.sleep(0.001)


def test_a_failure_that_came_after_its_caller_had_looked_was_not_seen(
    worker: DrivenWorker,
) -> None:
    """To look again is what would have shown it."""
    (number,) = worker.order(job_of(look_too_early))
    (request,) = protocol.REQUEST.unpack_from(worker.frame(protocol.CALLED).body)
    worker.frame(protocol.EMITTED)
    error = ValueError("no luck")
    add_failed_calls(error, ("first",))

    worker.send(protocol.ANSWER, request, messages.pack_outcome(Raised(error), "work"))

    _, frame = worker.end(number)
    head = messages.unpack_head(frame.body)
    assert b"" == head.failed_ids


# ------------------------------------------------ large results


@pytest.mark.parametrize(("size", "is_shared"), [(900_000, True), (1_100_000, False)])
def test_results_are_shared_in_half_of_the_memory_for_that(
    size: int, is_shared: bool, worker_of: WorkerMaker
) -> None:
    """The other half is for inputs; what has no room goes over the link."""
    worker = worker_of(size=1, shared_limit=1 << 21)
    worker.order(job_of(bytes, size))

    frame = worker.frame(protocol.ENDED)

    assert is_shared == (len(frame.body) < size)


def test_the_memory_of_a_result_that_nobody_reads_is_used_again(
    worker_of: WorkerMaker,
) -> None:
    """The coordinator says when."""
    worker = worker_of(size=1, shared_limit=1 << 21)
    size = 900_000
    refs = list[serialization.BufferRef]()
    is_shared = []
    for _ in range(4):
        worker.order(job_of(bytes, size))
        body = worker.frame(protocol.ENDED).body
        is_shared.append(len(body) < size)
        if is_shared == [True, False]:
            worker.send(protocol.FREED, 0, refs[0].id.to_bytes(8, "little"))
        if not refs:
            at = messages.unpack_head(body).size + 1
            serialization.read_message(
                body, lambda ref: refs.append(ref) or memoryview(b""), at
            )

    assert [True, False, True, False] == is_shared
