"""Rates by cost, corrected by ``runtime.spent``, of one program or of a store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import timedelta
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel import InMemorySaver, entrypoint, get_runtime, task
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import ConfigurationError, ResourcesError
from flowpregel.executors.rates import LOCAL_RATES, RateLog, TokenRates, rates_of
from flowpregel.func import Flow
from flowpregel.testing.clock import SkippingClock
from tests.runs.rate_flows import spend

MINUTE = 60.0


@given(
    st.lists(
        st.tuples(
            st.integers(1, 5), st.integers(0, 40), st.integers(0, 7), st.booleans()
        ),
        max_size=60,
    )
)
def test_no_period_has_more_tokens_than_the_rate(
    bookings: list[tuple[int, int, int, bool]],
) -> None:
    """Whenever the tokens are booked, for now or later, and through the records of a
    store.
    """
    log, now = RateLog(), 1_000.0
    booked: list[tuple[float, float]] = []
    for tokens, passed, part, can_wait in bookings:
        now += passed + part / 8
        log = RateLog.of(log.encoded())
        if can_wait:
            booked.append((log.book(tokens, (5, 60), now), tokens))
        elif log.book_now(tokens, (5, 60), now):
            booked.append((now, tokens))

    assert booked == sorted(booked, key=lambda entry: entry[0])
    for end, _ in booked:
        assert sum(tokens for at, tokens in booked if end - 60 < at <= end) <= 5


def test_tokens_that_were_given_back_can_be_booked() -> None:
    """And those that were spent in addition cannot."""
    log = RateLog()
    first = log.book(6, (10, 60), 100.0)
    log.correct(first, -4, 60)
    assert log.book(8, (10, 60), 101.0) == 101.0
    log.correct(101.0, 5, 60)
    assert log.book(1, (10, 60), 102.0) == 161.0


@task(rate="100/min", cost=len, executor="inline")
def ask(text: str) -> int:
    """Return the cost."""
    return len(text)


def seconds_of(clock: SkippingClock, flow: Flow[Any, Any], *arguments: Any) -> float:
    """Return the seconds of *clock* that a run takes."""
    begin = clock.now
    flow.run(*arguments)
    return (clock.now - begin) / timedelta(seconds=1)


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_calls_wait_until_their_cost_fits(
    flowpregel_clock: SkippingClock, executor: str
) -> None:
    """On every executor; the function of the cost may be a lambda."""

    @task(rate="100/min", cost=lambda text: len(text), executor=executor)
    def ask_here(text: str) -> int:
        return len(text)

    @entrypoint
    def flow(texts: list[str]) -> list[int]:
        return [future.result() for future in ask_here.map(texts)]

    seconds = seconds_of(flowpregel_clock, flow, ["x" * 60, "x" * 40, "x" * 90])

    assert MINUTE <= seconds < 2 * MINUTE


def test_a_cost_over_the_rate_is_an_error_at_once() -> None:
    """It would wait for ever."""
    flow = entrypoint(lambda text: ask(text).result())

    with pytest.raises(ResourcesError, match="101") as raised:
        flow.invoke("x" * 101)

    assert (raised.value.requested, raised.value.available) == (101, 100)


@pytest.mark.parametrize("cost", [-1, float("nan"), None, "many", True])
def test_a_cost_must_be_a_number(cost: Any) -> None:
    """Of 0 or more."""
    asking = ask.with_options(cost=lambda text: cost, name="asking")

    with pytest.raises(ConfigurationError, match="cost"):
        entrypoint(lambda text: asking(text).result()).invoke("x")


def test_a_function_of_the_cost_may_fail() -> None:
    """The call fails with its error, and waits for nothing."""
    failing = ask.with_options(cost=lambda text: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        entrypoint(lambda text: failing(text).result()).invoke("x")


@pytest.mark.parametrize("options", [{"cost": len}, {"rate": "1/s", "cost": 5}])
def test_a_cost_needs_a_rate(options: dict[str, Any]) -> None:
    """And it is a function."""
    with pytest.raises(ConfigurationError, match="cost="):
        task(**options)(len)


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
@pytest.mark.parametrize(("spent", "least"), [(10, 0), (100, MINUTE)])
def test_what_a_call_has_spent_counts(
    flowpregel_clock: SkippingClock, executor: str, spent: float, least: float
) -> None:
    """Less than promised, so that the next call starts at once, or more."""

    @task(rate="100/min", cost=lambda _: 50, executor=executor, name=f"a {spent}")
    def correct(spent: float) -> None:
        get_runtime().spent(spent)

    @entrypoint
    def flow(spent: float) -> None:
        correct(spent).result()
        correct.with_options(cost=lambda _: 50)(spent).result()

    seconds = seconds_of(flowpregel_clock, flow, spent)

    assert least <= seconds < least + MINUTE


# ------------------------------------------------ programs

DAY = 86_400.0


@pytest.fixture(params=["LMDB", "SQLite", "PostgreSQL"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The location of a store."""
    match request.param:
        case "LMDB":
            return str(tmp_path / "store")
        case "SQLite":
            return f"sqlite:///{tmp_path}/store.db"
    return str(request.getfixturevalue("postgres_url"))


def test_programs_of_a_store_share_a_rate(
    store: str, flowpregel_clock: SkippingClock
) -> None:
    """The tokens of one that was killed stay spent until the period has passed."""
    words = [sys.executable, "-m", "tests.runs.rate_flows", store, "killed", "4"]
    program = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == "spent 4\n"
        program.kill()
    flow = spend.copy({"checkpointer": store})

    assert seconds_of(flowpregel_clock, flow, [2]) < DAY / 2
    assert DAY / 2 < seconds_of(flowpregel_clock, flow, [2]) < 1.5 * DAY


def test_two_programs_take_turns(tmp_path: Path) -> None:
    """Each books for its next call only, so the other does not starve."""
    savers = [LMDBSaver(tmp_path), LMDBSaver(tmp_path)]
    first, second = map(rates_of, savers)
    assert first is not second
    starts: list[float | None] = []
    rate = ("6/day of it", "6/day")
    for number in range(3):
        for rates in (first, second):
            known = threading.Event()
            rates.try_start(f"{number}", rate, 6, known.set)
            assert known.wait(60)
            starts.append(rates.try_start(f"{number}", rate, 6, known.set))

    assert starts[0] is None
    later = [start for start in starts[1:] if start is not None]
    assert [DAY] * 4 == [pytest.approx(b - a, abs=300) for a, b in pairwise(later)]


class CountingStore:
    """The record of a rate, which counts its changes and may hold them up."""

    def __init__(self) -> None:
        self.changes = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self._record: bytes | None = None
        self._lock = threading.Lock()

    def change(self, _: str, work: Any) -> Any:
        """Change the record once that is allowed."""
        assert self.go_on.wait(60)
        with self._lock:
            self.changes += 1
            self._record, result = work(self._record)
        return result


RATE = ("100/day of it", "100/day")
AHEAD = {f"ahead {number}": 1.0 for number in range(9)}


def book(rates: TokenRates, task_id: str, ahead: dict[str, float]) -> float | None:
    """Book a call, and return what it gets once its time is known."""
    known = threading.Event()
    if rates.try_start(task_id, RATE, 1, known.set, ahead) is not None:
        assert known.wait(60)
    return rates.try_start(task_id, RATE, 1, known.set)


def test_calls_that_can_start_now_are_booked_together() -> None:
    """Up to a twentieth of the rate, behind the first of them."""
    store = CountingStore()
    rates = TokenRates(store.change)

    assert book(rates, "first", AHEAD) is None

    started = [task_id for task_id in AHEAD if not rates.must_ask(task_id)]
    assert [*AHEAD][:5] == started
    assert [None] * 5 == [book(rates, task_id, {}) for task_id in started]
    assert 1 == store.changes


def test_a_kill_wastes_a_twentieth_of_the_rate_at_most() -> None:
    """The rest is there for the next program."""
    store = CountingStore()
    book(TokenRates(store.change), "killed", AHEAD)
    rates = TokenRates(store.change)

    starts = [book(rates, str(number), {}) for number in range(95)]

    assert [None] * 94 == starts[:94]
    assert starts[94] is not None


def test_a_call_that_must_wait_books_for_itself_alone() -> None:
    """So programs take turns."""
    store = CountingStore()
    rates = TokenRates(store.change)
    known = threading.Event()
    rates.try_start("all", RATE, 100, known.set)
    assert known.wait(60)

    assert book(rates, "first", AHEAD) is not None

    assert all(map(rates.must_ask, AHEAD))


def test_a_call_that_is_forgotten_while_it_is_booked_gives_its_tokens_back() -> None:
    """Once, and also if it is behind another one."""
    store = CountingStore()
    rates = TokenRates(store.change)
    store.go_on.clear()
    known = threading.Event()
    assert rates.try_start("first", RATE, 1, known.set, AHEAD) is not None
    for task_id in [*AHEAD][:3]:
        rates.forget(task_id)

    store.go_on.set()
    assert known.wait(60)

    assert 4 == store.changes
    others = TokenRates(store.change)
    assert [None] * 97 == [book(others, str(number), {}) for number in range(97)]
    assert book(others, "one more", {}) is not None


def test_calls_of_a_run_share_a_write() -> None:
    """If they wait at the same time."""
    store = CountingStore()

    class CountingSaver(InMemorySaver):
        def change_rate(self, name: str, change: Any) -> Any:
            return store.change(name, change)

    @task(rate="2000/day")
    async def look_up(number: int) -> int:
        return number

    @entrypoint(checkpointer=CountingSaver())
    async def look_up_all(count: int) -> int:
        store.go_on.clear()
        futures = [look_up(number) for number in range(count)]
        store.go_on.set()
        return sum([await future for future in futures])

    assert 2016 == asyncio.run(look_up_all.arun(64))
    assert store.changes <= 4


def start_a_call() -> None:
    """Start a call, in a fork."""
    assert LOCAL_RATES.try_start("in a fork", ("a rate", "1/day"), 1, print) is None


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_does_not_wait_for_a_call_of_its_parent() -> None:
    """Which books at the moment of the fork."""
    fork = get_context("fork").Process(target=start_a_call)

    with LOCAL_RATES._lock:  # noqa: SLF001 - another call holds it for no time
        holder = threading.Thread(target=fork.start)
        holder.start()
        holder.join()
    fork.join(60)

    assert fork.exitcode == 0
    fork.close()


def test_a_store_that_fails_fails_the_call(tmp_path: Path) -> None:
    """The rate cannot be kept without it."""

    class FailingSaver(InMemorySaver):
        def change_rate(self, name: str, change: Any) -> Any:
            raise OSError(name)

    flow = spend.copy({"checkpointer": FailingSaver()})

    with pytest.raises(OSError, match="6/day of"):
        flow.run([1], id="a")
