"""Tasks in a worker that are like one before them: made of what was sent of them briefly."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import repeat
from typing import Any, TypeAlias

from flowpregel._core.records import Node
from flowpregel.context import NOTHING_REPORTED, Scope
from flowpregel.executors.base import Job
from flowpregel.executors.processes import messages, serialization
from flowpregel.executors.processes.brief import space_of
from flowpregel.executors.processes.ends import TaskRunClient, WorkerRunClient
from flowpregel.runinfo import RunInfo

NewRun: TypeAlias = Callable[[], RunInfo]
Own: TypeAlias = tuple[int, str, str, tuple[Any, ...], "First"]
"""What a task has alone: its number, its id, its path and its arguments; and what it is like."""


class First:
    """A task that others are like.

    Args:
        order: What was sent of it: the digest of its node, and its parcel.
    """

    def __init__(self, order: bytes) -> None:
        self._order = order
        self._job: Job | None = None
        self._run: NewRun
        self.digest = order[: serialization.DIGEST_SIZE]
        """Names the node of all of them."""
        self.node: Node | None = None
        """That node, once it is known."""

    def others(self, data: bytes | memoryview) -> Iterator[Own]:
        """Return what was sent of those that are like it."""
        values = iter(pickle.loads(data))
        return zip(values, values, values, values, repeat(self), strict=False)

    def job_like(self, own: Own, store: Any, runs: Mapping[int, NewRun]) -> Job:
        """Return the job of one of the others, whose `LateScope` tells what it may know.

        It is one object for all of them, each in its turn, and its info is that of the first.

        Args:
            own: What was sent of it.
            store: What stands for the run's store, if it has one.
            runs: Makes what was sent ahead, by number.

        Raises:
            BaseException: Whatever the unpickling of a part raises.
        """
        job = self._job
        if job is None:
            assert self.node is not None
            content = serialization.unpack(self._order, None, serialization.DIGEST_SIZE)
            job = messages.job_of(content, self.node, store, runs[content[0]]())
            self._job, self._run = job, runs[content[0]]
        job.input.args = own[3]
        return job

    def complete(self, scope: Scope, own: Own) -> None:
        """Give the *scope* of one of the others what it does not have yet, but for its ends."""
        job = self._job
        assert job is not None
        _, task_id, path, _, _ = own
        space, has_id = space_of(job.info)
        scope.store, scope.control = job.store, job.control
        scope.channels, scope.managed = job.channels, job.managed
        scope.info = replace(
            job.info,
            task_id=task_id,
            namespace=space + task_id if has_id else space,
            path=path,
            run=self._run(),
        )


class LateScope(Scope):
    """What an attempt of a task that is like another can reach: made when it is looked at.

    Few tasks look, and to make it takes as long as all the rest.

    Args:
        own: What was sent of the task.
        ends: Those of its worker.
    """

    __slots__ = ("_of_worker", "_own")

    def __init__(self, own: Own, ends: WorkerRunClient) -> None:
        self._own, self._of_worker = own, ends
        self.asked, self.question, self.writes, self.reported = 0, None, [], NOTHING_REPORTED

    def __getattr__(self, name: str) -> Any:
        # Asked for what is not there yet.
        own = self._own
        own[-1].complete(self, own)
        self.ends = TaskRunClient(self._of_worker, own[0])
        return object.__getattribute__(self, name)
