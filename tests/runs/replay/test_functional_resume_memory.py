"""What a run that goes on holds of what its tasks had returned: one result at a
time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowpregel.errors import ReplayMismatchError
from flowpregel.func import entrypoint, task
from flowpregel.policies import RetryPolicy
from tests.runs.crashes import Once
from tests.runs.notes import Notes
from tests.runs.stores import finish, start

_COUNT, _SIZE = 600, 40_000

_RESUMED = """
    import tracemalloc
    from flowpregel.func import entrypoint, task

    ran, down = [], [True]

    @task
    def large(n):
        ran.append(n)
        return n.to_bytes(2, "big") * (size // 2)

    @entrypoint(checkpointer=path, executor="threads")
    def flow(count):
        total = 0
        for first in range(0, count, 30):
            for future in [large(n) for n in range(first, first + 30)]:
                total += len(future.result())
            del future
        if down:
            raise OSError("crash")
        return total

    count, size = int(sys.argv[2]), int(sys.argv[3])
    try:
        flow.invoke(count, thread_id="1")
    except OSError:
        down.clear()
    tracemalloc.start()
    how = dict(resume="auto") if sys.argv[4] == "auto" else {}
    total = flow.invoke(count if how else None, thread_id="1", **how)
    print(len(ran), total, tracemalloc.get_traced_memory()[1])
"""


@pytest.mark.parametrize("how", ["None", "auto"])
def test_results_are_read_when_their_calls_are_replayed(
    tmp_path: Path, how: str
) -> None:
    """24 MB were recorded; thirty of the results are held at once."""
    process = start(_RESUMED, tmp_path / "store", _COUNT, _SIZE, how)

    ran, total, peak = map(int, finish(process).split())

    assert (_COUNT, _COUNT * _SIZE) == (ran, total)
    assert peak < _COUNT * _SIZE / 5


@task
def echo(value: Any) -> Any:
    return value


def _crashed(path: Path, values: list[Any]) -> Any:
    """Return a workflow whose calls have all finished, and which then crashed."""
    crash = Once(OSError("crash"))

    @entrypoint(checkpointer=path, executor="threads")
    def flow(_: int) -> Any:
        results = [echo(value).result() for value in values]
        crash()
        return results

    with pytest.raises(OSError, match="crash"):
        flow.invoke(1, thread_id="1")
    return flow


def test_results_of_any_type_and_size_come_back(tmp_path: Path) -> None:
    """Also one that is kept in several chunks."""
    values = [None, (), "x", 2**80, {"a": (1, {2})}, b"z" * 3_000_000]

    assert values == _crashed(tmp_path / "store", values).invoke(None, thread_id="1")


def test_another_call_than_was_recorded_is_told(tmp_path: Path) -> None:
    """Its record is read to be compared."""
    values = [1, 2]
    flow = _crashed(tmp_path / "store", values)
    values[1] = 3

    with pytest.raises(ReplayMismatchError, match=r"echo\(2\).*\n.*echo\(3\)"):
        flow.invoke(None, thread_id="1")


def test_a_body_that_is_tried_again_reads_the_results_again(tmp_path: Path) -> None:
    """They are not held for it."""
    ran, crash, again = Notes(), Once(OSError("crash")), Once(LookupError("again"))
    policy = RetryPolicy(initial_interval=0, jitter=False, retry_on=LookupError)

    @task
    def note(n: int) -> int:
        ran.append(n)
        return n

    @entrypoint(
        checkpointer=tmp_path / "store", executor="threads", retry_policy=policy
    )
    def flow(n: int) -> int:
        total = sum(future.result() for future in note.map(range(n)))
        crash()
        again()
        return total

    with pytest.raises(OSError, match="crash"):
        flow.invoke(3, thread_id="1")

    assert 3 == flow.invoke(None, thread_id="1")
    assert [0, 1, 2] == sorted(ran)
