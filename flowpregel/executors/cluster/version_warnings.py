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

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from flowpregel._tracebacks import users_line
from flowpregel.executors.cluster.engine import ClusterEngine
from flowpregel.executors.cluster.machine_calls import MachineCalls
from flowpregel.executors.cluster.package_versions import (
    imported_packages,
    package_differences,
    read_contents,
)
from flowpregel.executors.cluster.remote_hosts import RemoteHost
from flowpregel.executors.processes.coordinator.side_threads import OutputThread


class VersionWarnings:
    """A comparison of this program's packages with those of machines, which reports the
    differences.

    Args:
        engine: The engine of the machines.
        calls: The object for requests to machines.
        output: The thread on which messages are logged and notices given.
    """

    def __init__(
        self,
        engine: ClusterEngine,
        calls: MachineCalls,
        output: OutputThread,
    ) -> None:
        self._engine = engine
        self._calls = calls
        self._output = output
        self._refused: set[str] = set()
        """The addresses of the machines about which it was already reported that they
        get no tasks.
        """
        self._started_at = users_line()

    def compare(self, host: RemoteHost) -> None:
        """Log a warning and give a notice if *host* can get no tasks. Otherwise request
        its package versions, and log a warning if they differ from the program's.
        """
        if host.refusal:
            self._report_refusal(host)
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

    def _report_refusal(self, host: RemoteHost) -> None:
        """Report once that a machine gets no tasks."""
        if host.address in self._refused:
            return
        self._refused.add(host.address)
        text = f"the machine {host.label} gets no tasks: {host.refusal}"
        self._output.log(logging.WARNING, "%s", text)
        # A notice is given in addition to the log. If other machines get the tasks, the
        # user of a program without logging would not learn why this machine gets none.
        self._output.give_notice(text, self._started_at)

    def _on_answer(self, host: RemoteHost, answer: Future[Sequence[bytes]]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return  # The machine is lost. Its polls fail too, and report that.
        contents = read_contents(answer.result()[0])
        differences = package_differences(imported_packages(), contents.packages)
        if differences:
            self._output.log(
                logging.WARNING,
                "the machine %s has other versions of packages than this program: %s; "
                "install the same versions if tasks use these packages",
                host.label,
                ", ".join(differences),
            )
