"""A run that waits for a time or for a signal: through kills, and beside other work."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime, timedelta, timezone
from datetime import time as TimeOfDay
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowpregel import _clock, asleep, signal, sleep
from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.checkpoint.work import work_of
from flowpregel.errors import ConfigurationError, UnansweredError
from flowpregel.func import Flow, entrypoint, task
from flowpregel.runtime import pauses
from tests.runs.functional.flows import run


@pytest.fixture(params=["memory", "LMDB"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return a saver of each kind."""
    made = (
        InMemorySaver() if request.param == "memory" else LMDBSaver(tmp_path / "store")
    )
    with made as saver:
        yield saver


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the clock that sleeps look at; each look moves it by its `tick`."""
    clock = SimpleNamespace(now=1_000_000.0, tick=0)

    def look() -> float:
        clock.now += clock.tick
        return clock.now

    source = _clock.SystemClock()
    source.wall = look
    monkeypatch.setattr(_clock, "present", source)
    monkeypatch.setattr(_clock, "_LONGEST", 0.001)
    return clock


@pytest.fixture
def pausing() -> Any:
    """Have runs stop where they would wait."""
    token = pauses.set(True)
    yield
    pauses.reset(token)


def nap(saver: Any) -> Flow[[float], list[float]]:
    """Return a workflow that sleeps between two looks at the clock."""

    @entrypoint(checkpointer=saver, executor="inline")
    def flow(seconds: float) -> list[float]:
        sleep(seconds)
        return [_clock.wall(), seconds]

    return flow


# ---------------------------------------------------------------- sleep


@pytest.mark.usefixtures("pausing")
def test_a_run_that_goes_on_sleeps_for_what_is_left(
    saver: Any, clock: SimpleNamespace
) -> None:
    """When it ends is recorded when it begins, whatever comes between."""
    flow = nap(saver)
    for now in (0, 60, 119):
        clock.now = 1_000_000 + now
        with pytest.raises(UnansweredError) as raised:
            flow.run(120, id="a")
        (question,) = raised.value.interrupts
        assert question.value == {"sleeps_until": "1970-01-12T13:48:40+00:00"}

    clock.now = 1_000_120

    assert [1_000_120, 120] == flow.run(120, id="a")


@pytest.mark.usefixtures("pausing")
def test_the_nth_sleep_of_a_body_is_the_nth_whatever_time_it_computes(
    saver: Any, clock: SimpleNamespace
) -> None:
    """As everybody writes it: an hour from now, twice. What was recorded first
    counts.
    """

    @entrypoint(checkpointer=saver, executor="inline")
    def flow(_: int) -> list[float]:
        ends = []
        for _ in range(2):
            now = datetime.fromtimestamp(_clock.wall(), UTC)
            sleep(until=now + timedelta(hours=1))
            ends.append(_clock.wall())
        return ends

    first, second = "1970-01-12T14:46:40+00:00", "1970-01-12T15:48:20+00:00"
    for now, end in ((0, first), (60, first), (3700, second), (7000, second)):
        clock.now = 1_000_000 + now
        with pytest.raises(UnansweredError, match=end.replace("+", r"\+")):
            flow.run(1, id="a")

    clock.now = 1_000_000 + 3700 + 3600

    assert [clock.now, clock.now] == flow.run(1, id="a")


@pytest.mark.usefixtures("pausing")
@pytest.mark.parametrize(
    ("until", "shown"),
    [
        (TimeOfDay(14, tzinfo=UTC), "1970-01-12T14:00:00+00:00"),
        (TimeOfDay(13, 46, 40, tzinfo=UTC), "1970-01-13T13:46:40+00:00"),
        (TimeOfDay(2, tzinfo=UTC), "1970-01-13T02:00:00+00:00"),
        (
            TimeOfDay(1, 30, tzinfo=timezone(timedelta(hours=9))),
            "1970-01-12T16:30:00+00:00",
        ),
        (datetime(1970, 2, 1, tzinfo=UTC), "1970-02-01T00:00:00+00:00"),
        (1_000_100, "1970-01-12T13:48:20+00:00"),
    ],
)
def test_it_sleeps_until_a_time_or_the_next_time_of_day(
    until: Any, shown: str, saver: Any, clock: SimpleNamespace
) -> None:
    """A time of day that it is now, or that is over today, is meant for tomorrow."""

    @entrypoint(checkpointer=saver, executor="inline")
    def flow(_: int) -> float:
        sleep(until=until)
        return _clock.wall()

    with pytest.raises(UnansweredError) as raised:
        flow.run(1, id="a")

    (question,) = raised.value.interrupts
    assert question.value == {"sleeps_until": shown}
    clock.now = datetime.fromisoformat(shown).timestamp()
    assert clock.now == flow.run(1, id="a")


@pytest.mark.usefixtures("pausing")
@pytest.mark.skipif(not hasattr(time, "tzset"), reason="this system has no tzset")
def test_a_time_of_day_without_a_zone_is_local(
    saver: Any, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also across the night in which clocks are put forward, which has 23 hours."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        clock.now = datetime(2027, 3, 27, 12, tzinfo=UTC).timestamp()

        @entrypoint(checkpointer=saver, executor="inline")
        def flow(_: int) -> None:
            sleep(until=TimeOfDay(6))

        with pytest.raises(UnansweredError, match=r"2027-03-28T04:00:00\+00:00"):
            flow.run(1, id="a")
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.usefixtures("pausing")
def test_its_calls_are_shown_with_times_that_people_read(
    saver: Any, clock: SimpleNamespace
) -> None:
    """Seconds since the epoch are for programs."""

    @entrypoint(checkpointer=saver, executor="inline")
    def flow(until: datetime) -> None:
        sleep(until=until)

    with pytest.raises(UnansweredError):
        flow.run(datetime(1970, 2, 1, 12, tzinfo=UTC), id="a")

    saved = saver.load(Address("a"))
    shown = [
        "sleep(until=1970-02-01T12:00:00+00:00)",
        "sleep until(1970-02-01T12:00:00+00:00)",
    ]
    assert shown == [work.name for work in work_of(saved) if work.is_call]


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_it_sleeps_in_the_process_that_drives_the_run(
    executor: str, clock: Any
) -> None:
    """Also where the task that sleeps runs in a worker, whose clock nobody changed."""

    @task
    def sleeper() -> int:
        sleep(3600)
        return 1

    @entrypoint(executor=executor)
    def flow(n: int) -> int:
        futures = [sleeper(), sleeper()]
        clock.now += 3600
        return n + sum(future.result() for future in futures)

    handle = flow.start(1)
    while handle.status == "running":
        clock.now += 3600
        time.sleep(0.01)

    assert 3 == handle.result(60)


def test_a_coroutine_sleeps_beside_others(drive: Any, clock: SimpleNamespace) -> None:
    """Nothing keeps the event loop."""
    clock.tick = 1
    until = datetime.fromtimestamp(clock.now + 5, UTC)

    @entrypoint(executor="inline")
    async def flow(n: int) -> int:
        await asyncio.gather(asleep(5), asleep(until=until), asleep(until=clock.now))
        return n

    assert 1 == run(drive, flow, 1)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, r"sleep\(None\): use seconds, or until="),
        ({"seconds": "5"}, r"sleep\('5'\): use seconds"),
        ({"seconds": 5, "until": 7.0}, "takes seconds, or until, not both"),
        (
            {"until": "02:00"},
            r"sleep\(until='02:00'\): use a datetime, a datetime.time",
        ),
    ],
)
def test_a_sleep_without_an_end_is_refused(asked: dict[str, Any], told: str) -> None:
    """The message says what to give."""

    @entrypoint(executor="inline")
    def flow(_: int) -> None:
        sleep(**asked)

    with pytest.raises(ConfigurationError, match=told):
        flow.run(1)


def test_it_is_for_runs_alone() -> None:
    """Elsewhere there is `time.sleep`."""
    with pytest.raises(RuntimeError, match="outside of a run"):
        sleep(1)


# ---------------------------------------------------------------- signals


def receiver(saver: Any, count: int) -> Flow[[int], list[Any]]:
    """Return a workflow that waits for signals, beside a task."""

    @task
    def double(n: int) -> int:
        return 2 * n

    @entrypoint(checkpointer=saver, executor="threads")
    def flow(n: int) -> list[Any]:
        first = signal("go")
        return [
            double(n).result(),
            first.result(),
            *[signal("go").result() for _ in range(1, count)],
        ]

    return flow


def test_each_value_is_received_once_in_order(saver: Any) -> None:
    """Those that came before the run, and those that come while it waits."""
    flow = receiver(saver, 3)
    flow.signal("a", "go", "first")
    flow.signal("b", "go", "of another run")
    flow.signal("a", "stop", "of another name")
    handle = flow.start(2, id="a")
    flow.signal("a", "go", {"second": 2})
    flow.signal("a", "go")

    assert [4, "first", {"second": 2}, None] == handle.result(60)
    assert [4, "first", {"second": 2}, None] == flow.run(2, id="a")


@pytest.mark.usefixtures("pausing")
def test_what_was_received_is_received_again_if_that_was_not_recorded(
    saver: Any,
) -> None:
    """As after a kill in between: the same call asks, and gets what it got."""
    saver.send_signal("a", "go", 1)
    saver.send_signal("a", "go", 2)

    assert (1,) == saver.receive_signal("a", "go", "call 1")
    assert (2,) == saver.receive_signal("a", "go", "call 2")
    assert (1,) == saver.receive_signal("a", "go", "call 1")
    assert saver.receive_signal("a", "go", "call 3") is None


def test_signals_go_with_their_thread(saver: Any) -> None:
    """A new run of the same id does not get what was sent to the old one."""
    saver.send_signal("a", "go", 1)
    saver.send_signal("b", "go", 2)
    saver.delete_thread("a")

    assert saver.receive_signal("a", "go", "call 1") is None
    assert (2,) == saver.receive_signal("b", "go", "call 1")


def test_large_values_and_many_are_kept_in_order(saver: Any) -> None:
    """A value may be larger than a record."""
    values = [number.to_bytes(2, "big") * 700_000 for number in range(3)]
    for value in values:
        saver.send_signal("a", "go", value)

    assert values == [saver.receive_signal("a", "go", f"call {n}")[0] for n in range(3)]


def test_without_a_checkpointer_nobody_can_send_one() -> None:
    """Both ends say so."""
    flow = receiver(None, 1)

    with pytest.raises(ConfigurationError, match="this workflow has no checkpointer"):
        flow.signal("a", "go", 1)
    with pytest.raises(
        ConfigurationError, match="no checkpointer to keep the values sent"
    ):
        flow.run(1)


# ---------------------------------------------------------------- kills


PROGRAM = """
    import sys
    from flowpregel import entrypoint, signal, sleep, task

    @task
    def note(n):
        with open(sys.argv[1] + "/ran", "a") as file:
            file.write(f"{n} ")
        return n

    @entrypoint(checkpointer=sys.argv[1] + "/store", executor="threads")
    def flow(seconds):
        first = note(1).result()
        waits = signal("go")
        sleep(seconds)
        return [first, waits.result(), note(2).result()]

    if __name__ == "__main__":
        print(flow.run(float(sys.argv[2]), id="a", adopt=True), flush=True)
"""


def recorded_calls(store: Path) -> list[str | None]:
    """Return the calls of run *a* that another process has recorded by now."""
    if not (store / "data.mdb").exists():
        return []
    with LMDBSaver(store, readonly=True) as saver:
        saved = saver.load(Address("a"))
        return [] if saved is None else [work.name for work in work_of(saved)]


@pytest.mark.slow
def test_what_waits_survives_kills(tmp_path: Path) -> None:
    """Killed while it sleeps and while it waits, it goes on; nothing runs twice."""
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(PROGRAM), "utf-8")

    def started() -> subprocess.Popen[str]:
        command = [sys.executable, str(file), str(tmp_path), "600"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    killed = started()
    while "sleep(600.0)" not in recorded_calls(tmp_path / "store"):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    with LMDBSaver(tmp_path / "store") as saver:
        saver.send_signal("a", "go", "sent while nothing ran")
    shifted = f"""
        import time, runpy, sys
        really = time.time
        time.time = lambda: really() + 700
        sys.argv = {[str(file), str(tmp_path), "600"]!r}
        runpy.run_path(sys.argv[0], run_name="__main__")
    """

    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(shifted)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert "[1, 'sent while nothing ran', 2]\n" == ended.stdout, ended.stderr
    assert "1 2 " == (tmp_path / "ran").read_text()


def test_two_processes_send_beside_each_other_and_lose_nothing(tmp_path: Path) -> None:
    """Each value has a place of its own."""
    code = """
        import sys
        from flowpregel.checkpoint.lmdb import LMDBSaver
        with LMDBSaver(sys.argv[1]) as saver:
            for number in range(20):
                saver.send_signal("a", "go", (sys.argv[2], number))
    """
    path = str(tmp_path / "store")
    with LMDBSaver(path) as saver:
        senders = [
            subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), path, name])
            for name in ("one", "two")
        ]
        assert [0, 0] == [sender.wait(60) for sender in senders]
        got = [saver.receive_signal("a", "go", f"call {n}")[0] for n in range(40)]  # type: ignore[index]

    assert sorted(got) == sorted(
        (name, n) for name in ("one", "two") for n in range(20)
    )
    assert [n for name, n in got if name == "one"] == [*range(20)]
