"""Policies decide and never act, so tables cover them."""

import math
import pickle
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from flowpregel import errors
from flowpregel.policies import (
    CachePolicy,
    RetryPolicy,
    TimeoutPolicy,
    default_retry_on,
)


class HTTPError(OSError):
    """As HTTP clients raise it: an error with the response that caused it."""

    def __init__(self, status: Any) -> None:
        self.response = SimpleNamespace(status_code=status)


class BrokenHTTPError(Exception):
    response = None


class TestDefaultRetryOn:
    @pytest.mark.parametrize(
        "error",
        [
            ConnectionError(),
            ConnectionResetError(),
            BrokenPipeError(),
            HTTPError(500),
            HTTPError(503),
            HTTPError(599),
            BrokenHTTPError(),
            Exception("of a kind nobody knows"),
            AssertionError(),
            EOFError(),
            errors.NodeTimeoutError("n", 1.0, "run", 0.5),
            errors.NodeCancelledError("n"),
            errors.WorkerDiedError("t", 1, "SIGKILL"),
        ],
        ids=repr,
    )
    def test_what_may_pass_is_tried_again(self, error: BaseException) -> None:
        assert default_retry_on(error)

    @pytest.mark.parametrize(
        "error",
        [
            ValueError(),
            TypeError(),
            ZeroDivisionError(),
            ModuleNotFoundError(),
            KeyError(),
            UnboundLocalError(),
            SyntaxError(),
            RecursionError(),
            NotImplementedError(),
            ReferenceError(),
            StopIteration(),
            StopAsyncIteration(),
            FileNotFoundError(),
            TimeoutError(),
            HTTPError(404),
            HTTPError(600),
            HTTPError(None),
            errors.ConfigurationError(),
            errors.InvalidUpdateError(),
            errors.TaskSerializationError("t", "its result", "result.lock", "no"),
            errors.StoreFullError(),
            errors.GraphInterrupt(),
            KeyboardInterrupt(),
            SystemExit(1),
        ],
        ids=repr,
    )
    def test_what_cannot_pass_is_not(self, error: BaseException) -> None:
        assert not default_retry_on(error)


class TestRetryPolicy:
    @pytest.mark.parametrize(
        ("attempt", "wait"),
        [(1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (5, 3.0), (6, None), (7, None)],
    )
    def test_waits_grow_to_the_longest_until_attempts_are_spent(
        self, attempt: int, wait: float | None
    ) -> None:
        policy = RetryPolicy(max_interval=3.0, max_attempts=6, jitter=False)

        assert policy.delay(attempt, jitter=0.9) == wait

    @pytest.mark.parametrize(
        ("initial", "jitter", "wait"),
        [(4.0, 0.0, 4.0), (4.0, 0.5, 4.5), (0.01, 0.5, 0.015), (0.0, 0.9, 0.0)],
    )
    def test_jitter_adds_a_second_at_most_and_never_more_than_the_wait(
        self, initial: float, jitter: float, wait: float
    ) -> None:
        assert RetryPolicy(initial_interval=initial).delay(1, jitter) == pytest.approx(
            wait
        )

    @pytest.mark.parametrize(("initial", "wait"), [(0.5, 128.0), (0, 0.0)])
    @pytest.mark.parametrize("factor", [2, 2.0])
    def test_waits_are_bounded_after_any_number_of_attempts(
        self, initial: float, wait: float, factor: float
    ) -> None:
        policy = RetryPolicy(
            initial_interval=initial,
            backoff_factor=factor,
            max_attempts=10**6,
            jitter=False,
        )

        assert policy.delay(99_999, jitter=0.0) == wait

    def test_one_attempt_is_none_again(self) -> None:
        assert RetryPolicy(max_attempts=1).delay(1, jitter=0.0) is None

    @pytest.mark.parametrize(
        ("retry_on", "error", "expected"),
        [
            (KeyError, KeyError(), True),
            (LookupError, KeyError(), True),
            (KeyError, ValueError(), False),
            ([KeyError, ValueError], ValueError(), True),
            ((KeyError,), ValueError(), False),
            ([], ValueError(), False),
            (lambda error: "again" in str(error), ValueError("again"), True),
            (lambda error: "again" in str(error), ValueError("no"), False),
            (default_retry_on, ConnectionError(), True),
        ],
    )
    def test_it_is_meant_for_the_errors_it_names(
        self, retry_on: Any, error: BaseException, expected: bool
    ) -> None:
        assert RetryPolicy(retry_on=retry_on).matches(error) is expected

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (MemoryError(), True),
            (errors.WorkerDiedError("t", 1, errors.OUT_OF_MEMORY), True),
            (errors.WorkerDiedError("t", 1, "killed by SIGSEGV"), False),
            (ValueError(), False),
        ],
        ids=repr,
    )
    def test_with_on_memory_it_is_meant_for_attempts_without_memory(
        self, error: BaseException, expected: bool
    ) -> None:
        assert RetryPolicy(retry_on=(), on_memory="alone").matches(error) is expected
        assert RetryPolicy(retry_on=(), on_memory=1).matches(error) is expected
        assert not RetryPolicy(retry_on=()).matches(error)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("max_attempts", 0),
            ("max_attempts", True),
            ("max_attempts", 1.5),
            ("initial_interval", -0.1),
            ("initial_interval", math.nan),
            ("initial_interval", "1"),
            ("max_interval", -1),
            ("max_interval", math.inf),
            ("backoff_factor", 0.9),
            ("backoff_factor", math.nan),
            ("backoff_factor", None),
            ("max_worker_deaths", 0),
            ("on_memory", "more"),
            ("on_memory", 0.5),
            ("on_memory", True),
            ("retry_on", int),
            ("retry_on", [KeyError, "ValueError"]),
            ("retry_on", {KeyError}),
            ("retry_on", None),
        ],
    )
    def test_what_cannot_work_is_refused_by_name(self, field: str, value: Any) -> None:
        with pytest.raises(errors.ConfigurationError, match=f"{field} is .*; use"):
            RetryPolicy(**{field: value})


class TestTimeoutPolicy:
    @pytest.mark.parametrize("field", ["run_timeout", "idle_timeout"])
    @pytest.mark.parametrize(
        ("given", "seconds"),
        [(2, 2.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), (None, None)],
    )
    def test_times_become_seconds(
        self, field: str, given: Any, seconds: float | None
    ) -> None:
        assert getattr(TimeoutPolicy(**{field: given}), field) == seconds

    @pytest.mark.parametrize("field", ["run_timeout", "idle_timeout"])
    @pytest.mark.parametrize(
        "value", [0, -1, timedelta(0), math.nan, math.inf, True, "1"]
    )
    def test_what_is_no_time_is_refused_by_name(self, field: str, value: Any) -> None:
        with pytest.raises(
            errors.ConfigurationError, match=f"{field} must be greater than 0"
        ):
            TimeoutPolicy(**{field: value})

    def test_signs_of_life_are_of_two_kinds(self) -> None:
        assert TimeoutPolicy(refresh_on="heartbeat").refresh_on == "heartbeat"
        with pytest.raises(
            errors.ConfigurationError, match="refresh_on is 'never'; use"
        ):
            TimeoutPolicy(refresh_on="never")  # type: ignore[arg-type]

    def test_none_and_policies_are_taken_as_they_are(self) -> None:
        policy = TimeoutPolicy(idle_timeout=1)

        assert TimeoutPolicy.coerce(None) is None
        assert TimeoutPolicy.coerce(policy) is policy

    @pytest.mark.parametrize("value", [2, 2.0, timedelta(seconds=2)])
    def test_plain_seconds_limit_the_run(self, value: Any) -> None:
        assert TimeoutPolicy.coerce(value) == TimeoutPolicy(run_timeout=2.0)

    @pytest.mark.parametrize("value", ["2", True, [2]])
    def test_anything_else_is_refused(self, value: Any) -> None:
        with pytest.raises(errors.ConfigurationError, match="a timeout is seconds"):
            TimeoutPolicy.coerce(value)

    @pytest.mark.parametrize(
        ("run", "idle", "limit"),
        [
            (5.0, None, (105.0, "run", 5.0)),
            (None, 2.0, (103.0, "idle", 2.0)),
            (5.0, 2.0, (103.0, "idle", 2.0)),
            (2.0, 5.0, (102.0, "run", 2.0)),
            (3.0, 2.0, (103.0, "run", 3.0)),
            (None, None, (math.inf, "run", math.inf)),
        ],
    )
    def test_the_limit_that_is_reached_first_counts(
        self, run: float | None, idle: float | None, limit: tuple[float, str, float]
    ) -> None:
        """The attempt began at 100, and was alive at 101. If both are reached at once,
        it is that of the whole attempt.
        """
        policy = TimeoutPolicy(run_timeout=run, idle_timeout=idle)

        assert limit == policy.next_limit(100.0, 101.0)

    def test_a_limit_says_which_timeout_was_exceeded(self) -> None:
        limit = TimeoutPolicy(idle_timeout=2).next_limit(100.0, 101.0)

        error = limit.error("n", 2.5)

        assert ("n", 2.5, "idle", 2.0) == (
            error.node,
            error.elapsed,
            error.kind,
            error.limit,
        )


class TestCachePolicy:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"ttl": 0}, "ttl must be greater than 0"),
            ({"ttl": -1.0}, "ttl must be greater than 0"),
            ({"ttl": True}, "ttl must be greater than 0"),
            ({"ttl": "1"}, "ttl must be greater than 0"),
            ({"key_func": "key"}, "key_func is 'key'"),
        ],
    )
    def test_what_cannot_work_is_refused_by_name(
        self, settings: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(errors.ConfigurationError, match=message):
            CachePolicy(**settings)

    def test_it_may_live_for_ever_under_a_key_of_its_own(self) -> None:
        assert CachePolicy() == CachePolicy(key_func=None, ttl=None)
        assert CachePolicy(key_func=repr, ttl=1.5).ttl == 1.5


@pytest.mark.parametrize(
    "policy",
    [RetryPolicy(), TimeoutPolicy(run_timeout=1), CachePolicy(ttl=1)],
    ids=lambda policy: type(policy).__name__,
)
def test_policies_travel_to_workers(policy: Any) -> None:
    assert pickle.loads(pickle.dumps(policy)) == policy
