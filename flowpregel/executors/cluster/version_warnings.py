"""Warnings about machines whose packages have other versions than those of the program.

::

    coordinator                                   machine
    -----------                                   -------
    the packages that the program
    has imported                   ----------->   the versions of those that
    one warning for the machine    <-----------   are installed

The comparison is made after the handshake, and no task waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from flowpregel._loggers import worker_log
from flowpregel.executors.cluster.engine import ClusterEngine
from flowpregel.executors.cluster.machine_calls import MachineCalls
from flowpregel.executors.cluster.package_versions import (
    imported_packages,
    package_differences,
    read_contents,
)
from flowpregel.executors.cluster.remote_hosts import RemoteHost


class VersionWarnings:
    """A comparison of this program's packages with those of machines, which logs the
    differences.

    Args:
        engine: The engine of the machines.
        calls: The object for requests to machines.
    """

    def __init__(self, engine: ClusterEngine, calls: MachineCalls) -> None:
        self._engine = engine
        self._calls = calls

    def compare(self, host: RemoteHost) -> None:
        """Log a warning if *host* can get no tasks. Otherwise request its package
        versions, and log a warning if they differ from the program's.
        """
        if host.refusal:
            worker_log.warning(
                "the machine %s gets no tasks: %s",
                host.label,
                host.refusal,
            )
            return
        if host.report.is_compared:
            return
        host.report.is_compared = True
        names = list(imported_packages())
        self._calls.ask(
            partial(self._on_answer, host),
            self._engine.call,
            host.address,
            "inspect",
            names,
            (),
        )

    def _on_answer(self, host: RemoteHost, answer: Future[Sequence[bytes]]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return  # The machine is lost. Its polls fail too, and report the loss.
        contents = read_contents(answer.result()[0])
        differences = package_differences(imported_packages(), contents.packages)
        if differences:
            worker_log.warning(
                "the machine %s has other versions of packages than this program: %s; "
                "install the same versions if tasks use these packages",
                host.label,
                ", ".join(differences),
            )
