"""The fixtures and helpers of the saver contract: a saver, and its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flowpregel._core.records import (
    Address,
    Batch,
    Checkpoint,
    Delta,
    Saved,
    Source,
    TaskWrites,
    Version,
    Write,
)
from flowpregel.checkpoint.base import BaseCheckpointSaver as Saver


def nth_id(number: int) -> str:
    """Return the checkpoint id with this number: a UUID of the kind that runs use. Ids
    sort in the order of their numbers.
    """
    return f"1f0a0000-0000-6000-8000-{number:012x}"


def nth_task_id(number: int) -> str:
    """Return the task id with this number."""
    return f"a0000000-0000-5000-8000-{number:012x}"


class Timeline:
    """A line of checkpoints in one thread and namespace, as a run commits them.

    The versions of channels and the newest checkpoint are tracked, so that a test
    passes only the changes of each checkpoint. `fork` starts another line from the
    newest checkpoint of this line.
    """

    clock: ClassVar[int] = 1_700_000_000_000_000_000

    def __init__(self, saver: Saver, thread_id: str, namespace: str = "") -> None:
        self.saver = saver
        self.address: Address = Address(thread_id, namespace)
        self.versions: dict[str, Version] = {}
        self.head: str | None = None
        self.step: int = -1

    def batch(
        self,
        number: int,
        values: Mapping[str, Any] | None = None,
        deltas: Mapping[str, tuple[Any, ...]] | None = None,
        *,
        emptied: tuple[str, ...] = (),
        source: Source = "loop",
        metadata: Mapping[str, Any] | None = None,
    ) -> Batch:
        """Return a batch with the next checkpoint, which becomes the head of the line.

        Args:
            number: The number of the checkpoint's id.
            values: The new values of channels.
            deltas: The new writes of channels that store deltas.
            emptied: The channels that have no value any more.
            source: The origin of the checkpoint, such as ``"input"`` or ``"loop"``.
            metadata: The metadata to store with the checkpoint, or None for none.
        """
        values = values or {}
        deltas = deltas or {}
        changed = (*values, *deltas, *emptied)
        before = dict(self.versions)
        Timeline.clock += 1_000
        self.versions.update(dict.fromkeys(changed, Timeline.clock))
        checkpoint = Checkpoint(
            id=nth_id(number),
            parent_id=self.head,
            at=Timeline.clock,
            step=self.step,
            source=source,
            channel_versions=dict(self.versions),
            versions_seen={"node": dict(before)},
            changed=changed,
            updated_channels=changed,
            values=values,
            deltas={
                name: Delta(before.get(name), writes) for name, writes in deltas.items()
            },
            metadata=metadata or {},
        )
        self.head = checkpoint.id
        self.step += 1
        return Batch(address=self.address, checkpoint=checkpoint)

    def commit(self, number: int, *args: Any, **kwargs: Any) -> None:
        """Commit the next checkpoint, with the arguments of `batch`."""
        self.saver.commit([self.batch(number, *args, **kwargs)])

    def fork(self) -> Timeline:
        """Return a separate line that continues from the head of this line."""
        twin = Timeline(self.saver, self.address.thread_id, self.address.namespace)
        twin.versions = dict(self.versions)
        twin.head = self.head
        twin.step = self.step
        return twin

    def load(self, number: int | None = None) -> Saved:
        """Return a checkpoint of this thread and namespace, the newest by default.

        Raises:
            AssertionError: The saver does not have this checkpoint.
        """
        checkpoint_id = None if number is None else nth_id(number)
        address = replace(self.address, checkpoint_id=checkpoint_id)
        saved = self.saver.load(address)
        assert saved is not None, f"checkpoint {number} of {self.address} is not there"
        return saved


def ids(saver: Saver, thread_id: str, namespace: str = "") -> list[str]:
    """Return the checkpoint ids of a thread and namespace, newest first."""
    history = saver.history(Address(thread_id, namespace))
    return [saved.checkpoint.id for saved in history]


def writes(
    thread_id: str,
    number: int,
    *pairs: Write,
    task: int = 1,
    path: str = "p",
    namespace: str = "",
) -> Batch:
    """Return a batch with the pending writes of a task.

    Args:
        thread_id: The id of the thread.
        number: The number of the checkpoint from which the task started.
        pairs: The channel and the value of each write.
        task: The number of the task.
        path: The path of the task, which determines its order in the superstep.
        namespace: The namespace of the checkpoint.
    """
    pending = TaskWrites(nth_id(number), nth_task_id(task), path, pairs)
    return Batch(
        address=Address(thread_id, namespace),
        writes=(pending,),
    )


class SaverHooks:
    """The methods that a subclass defines, and the fixtures that all rules use."""

    def make_saver(self, folder: Path) -> Saver:
        """Return a new, empty saver, which may store its data in *folder*."""
        raise NotImplementedError(
            f"{type(self).__name__} must define make_saver(folder)"
        )

    def reopen(self, saver: Saver, folder: Path) -> Saver:
        """Return a saver with the contents of *saver*, read from disk.

        An implementation may close *saver* first. The default implementation is for a
        saver without files on disk, and returns *saver* itself.

        Args:
            saver: The open saver.
            folder: The folder that `make_saver` got.
        """
        return saver

    @pytest.fixture
    def saver(self, tmp_path: Path) -> Iterator[Saver]:
        """A new, empty saver, closed afterwards.

        Args:
            tmp_path: The folder of the test.
        """
        saver = self.make_saver(tmp_path)
        yield saver
        saver.close()

    @pytest.fixture
    def line(self, saver: Saver) -> Timeline:
        """An empty line of checkpoints in the thread ``t``.

        Args:
            saver: The saver under test.
        """
        return Timeline(saver, "t")
