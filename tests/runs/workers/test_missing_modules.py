"""Modules of the program that the machines of a cluster lack: a cluster of one machine,
whose workers cannot import what a test has loaded from a file.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError, ExecutorUnavailableError
from flowpregel.executors.cluster import ClusterExecutor
from flowpregel.executors.cluster.shipping import module_names
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.func import entrypoint
from tests.runs.workers.test_cluster_machines import ThisMachine

pytestmark = pytest.mark.slow

HELPERS = """
import numpy
FACTOR = 10
def scaled(number):
    return FACTOR * number
"""
JOBS = """
import dataclasses
import enum
import only_here_helpers
from only_here_helpers import scaled
from flowpregel import task

class Colour(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Point:
    x: int
    colour: Colour = Colour.RED

class TooLarge(ValueError):
    pass

@task
def child(point):
    return Point(scaled(point.x))

@task
def parent(point):
    return child(point).result().x + only_here_helpers.scaled(1)

@task
def refuse(point):
    raise TooLarge(point.x)

@task
def size(point, data):
    return len(data)

def plain(number):
    return scaled(number)
"""


def module_of(name: str, text: str, folder: Path) -> ModuleType:
    """Load a module from a file in a folder that no path names."""
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Any]:
    """A module that imports another one; no worker finds either."""
    module_of("only_here_helpers", HELPERS, tmp_path)
    yield module_of("only_here_jobs", JOBS, tmp_path)
    del sys.modules["only_here_jobs"]
    del sys.modules["only_here_helpers"]


@pytest.fixture
def executor() -> Iterator[Any]:
    """An executor on a machine that lacks the modules."""
    with ClusterExecutor(ThisMachine()) as executor:
        yield executor


def flow_of(executor: Any, task: Any) -> Any:
    """Return a flow that calls *task*."""

    @entrypoint(executor=executor, checkpointer=InMemorySaver())
    def flow(arguments: list[Any]) -> Any:
        return task(*arguments).result()

    return flow


def test_a_task_of_a_missing_module_is_sent_by_value(
    jobs: Any, executor: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With the modules that it needs, and so are the tasks that it calls."""
    with caplog.at_level(logging.WARNING, "flowpregel"):
        assert 60 == flow_of(executor, jobs.parent).run([jobs.Point(5)], id="a")

    messages = [record.getMessage() for record in caplog.records]
    for name in ("only_here_jobs", "only_here_helpers"):
        assert 1 == sum(f"lack the module {name!r}" in text for text in messages)


def test_classes_of_a_missing_module_come_back_as_themselves(
    jobs: Any, executor: Any
) -> None:
    """Members of an enumeration and errors, too."""
    point = flow_of(executor, jobs.child).run([jobs.Point(5)], id="a")

    assert jobs.Point(50) == point
    assert point.colour is jobs.Colour.RED
    with pytest.raises(jobs.TooLarge, match="5"):
        flow_of(executor, jobs.refuse).run([jobs.Point(5)], id="b")


def test_a_large_value_is_sent_again_with_a_task(jobs: Any, executor: Any) -> None:
    """The machine has it already, but not the code."""
    flow = flow_of(executor, jobs.size)

    assert 1 << 20 == flow.run([jobs.Point(5), bytearray(1 << 20)], id="a")


def test_a_plain_function_of_a_missing_module_is_sent_by_value(
    jobs: Any, executor: Any
) -> None:
    """Several at once, of which each is sent again."""
    futures = [executor.submit(jobs.plain, number) for number in range(20)]

    assert [*range(0, 200, 10)] == [future.result(60) for future in futures]


def test_modules_that_are_shipped_are_never_missed(jobs: Any) -> None:
    """One batch is all that the machine gets; another executor sends names."""
    pool = ThisMachine()
    with (
        ClusterExecutor(pool, ship=[jobs, "only_here_helpers"]) as executor,
        ProcessExecutor(1) as local,
    ):
        assert 10 == executor.submit(jobs.plain, 1).result(60)
        batches = pool.batches
        with pytest.raises(Exception, match="No module named 'only_here"):
            local.submit(jobs.plain, 1).result(60)

    assert 1 == batches


def test_an_installed_module_that_is_missing_is_not_sent(
    jobs: Any, executor: Any, tmp_path: Path
) -> None:
    """It may have files and C code; the error advises what to do."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    module_of("only_here_installed", "def plain(n):\n    return n\n", folder)
    installed = sys.modules.pop("only_here_installed")
    sys.modules["only_here_installed"] = installed
    try:
        with pytest.raises(
            ExecutorUnavailableError, match=r"lacks the module 'only_here_inst.*ship="
        ):
            executor.submit(installed.plain, 1).result(60)
    finally:
        del sys.modules["only_here_installed"]


def test_a_module_to_ship_must_exist() -> None:
    """A name that is misspelled would be found on the machines only."""
    with pytest.raises(ConfigurationError, match="no module 'only_hear'"):
        module_names(["json", "only_hear"])
    with pytest.raises(ConfigurationError, match=r"use a list, \['json'\]"):
        module_names("json")
