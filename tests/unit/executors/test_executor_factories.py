"""A function as `executor=`: when it is called, and what it may return."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flowpregel.errors import ConfigurationError, ExecutorUnavailableError
from flowpregel.executors.by_name import check_executor
from flowpregel.executors.local import ThreadExecutor
from flowpregel.func import entrypoint, task
from flowpregel.policies import RetryPolicy


class Recorder:
    """A factory that counts its calls, and keeps its executors."""

    def __init__(self, kind: Any = ThreadExecutor) -> None:
        self.kind = kind
        self.made: list[Any] = []

    def __call__(self) -> Any:
        """Make another executor."""
        self.made.append(self.kind(1))
        return self.made[-1]


class ClosableExecutor(ThreadExecutor):
    """OS threads that note that they were closed."""

    def close(self) -> None:
        """Take no more jobs."""
        self.is_closed = True
        super().close()


def flow_on(executor: Any) -> Any:
    """Return a flow whose tasks run on *executor*."""

    @task
    def double(number: int) -> int:
        return 2 * number

    @entrypoint(executor=executor)
    def flow(number: int) -> int:
        return double(number).result()

    return flow


def test_a_factory_is_called_by_the_first_run_that_needs_it() -> None:
    """All runs of the program share what it returned."""
    connect = Recorder()
    flow = flow_on(connect)
    other = flow_on(connect)
    assert [] == connect.made

    assert [2, 4, 6] == [flow.run(1), flow.run(2), other.run(3)]
    assert 1 == len(connect.made)


def test_a_factory_of_a_task_is_called_by_the_first_call() -> None:
    connect = Recorder()

    @task(executor=connect)
    def double(number: int) -> int:
        return 2 * number

    @entrypoint(executor="inline")
    def flow(number: int) -> int:
        return double(number).result() if number else 0

    assert 0 == flow.run(0)
    assert [] == connect.made
    assert 2 == flow.run(1)
    assert 1 == len(connect.made)


def test_a_factory_may_return_any_executor() -> None:
    connect = Recorder(ThreadPoolExecutor)

    assert [2, 4] == [*map(flow_on(connect).run, (1, 2))]
    assert 1 == len(connect.made)


def test_a_factory_is_called_again_after_its_executor_was_closed() -> None:
    """As a URL connects again."""
    connect = Recorder(ClosableExecutor)
    flow = flow_on(connect)

    assert 2 == flow.run(1)
    connect.made[0].close()
    assert 4 == flow.run(2)
    assert 2 == len(connect.made)


def test_a_factory_that_fails_is_named() -> None:
    """The error names the cause, and the next run asks again."""

    def connect() -> Any:
        raise OSError("no route to host")

    flow = flow_on(connect)

    with pytest.raises(
        ExecutorUnavailableError, match=r"connect.*OSError: no route to host"
    ):
        flow.run(1)


def test_a_factory_that_fails_is_called_once_in_a_run() -> None:
    """A connection that fails may take half a minute. The next run tries again."""
    calls: list[int] = []

    def connect() -> Any:
        calls.append(1)
        raise OSError("no route to the cluster")

    @task(retry_policy=RetryPolicy(max_attempts=2, initial_interval=0))
    def double(number: int) -> int:
        return 2 * number

    @entrypoint(executor=connect)
    def flow(count: int) -> list[str]:
        return [str(double(number).exception()) for number in range(count)]

    errors = flow.run(3)

    assert 3 * [errors[0]] == errors
    assert "no route to the cluster" in errors[0]
    assert 1 == len(calls)
    flow.run(1)
    assert 2 == len(calls)


def test_a_factory_that_returns_no_executor_is_named() -> None:
    flow = flow_on(lambda: 7)

    with pytest.raises(ConfigurationError, match=r"<lambda>: the function returned 7"):
        flow.run(1)


def test_a_factory_that_needs_arguments_is_refused_at_once() -> None:
    """Before any run, with what to pass."""

    def connect(address: str) -> Any:
        raise NotImplementedError(address)

    with pytest.raises(ConfigurationError, match=r"parameters \(address: .*partial"):
        check_executor(connect)

    assert check_executor(partial(connect, "tcp://scheduler:8786")) is not None


def test_what_is_no_executor_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigurationError, match="a function without parameters"):
        check_executor(7)


@pytest.mark.slow
def test_a_worker_that_calls_a_task_connects_nowhere(tmp_path: Path) -> None:
    """The factory is one of the program, whether by value or by name."""
    program = (
        "import os\n"
        "from flowpregel import entrypoint, task\n"
        "from flowpregel.executors import ProcessExecutor\n"
        "def connect():\n"
        "    with open('connections', 'a') as file:\n"
        "        print(os.getpid(), file=file)\n"
        "    return ProcessExecutor(2)\n"
        "@task(executor=connect)\n"
        "def inner(n):\n"
        "    return 2 * n\n"
        "@task(executor=connect)\n"
        "def outer(n):\n"
        "    return inner(n).result() + inner(n + 1).result()\n"
        "@entrypoint()\n"
        "def flow(n):\n"
        "    return outer(n).result() + outer(n).result()\n"
    )
    use = "if __name__ == '__main__':\n    assert 12 == flow.run(1), flow.run(1)\n"
    (tmp_path / "whole.py").write_text(program + use)
    (tmp_path / "parts.py").write_text(program)
    (tmp_path / "other.py").write_text("from parts import flow\n" + use)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}

    for name in ("whole.py", "other.py"):
        subprocess.run(
            [sys.executable, name], cwd=tmp_path, env=environment, check=True
        )

    assert 2 == len((tmp_path / "connections").read_text().split())
