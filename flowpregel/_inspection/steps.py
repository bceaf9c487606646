"""The supersteps of a thread, described by the checkpoints at their ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from flowpregel._core.records import DRAWING, RUN_TASK_ID, Address, Saved
from flowpregel._inspection.preview import (
    PreviewLimits,
    by_public_name,
    channel_values,
    one_line,
)
from flowpregel._text import size_text
from flowpregel.checkpoint.base import QUEUE
from flowpregel.checkpoint.labels import INPUT, METADATA
from flowpregel.checkpoint.layout import (
    STORED,
    WritesRecord,
    checkpoint_key,
    digest,
)
from flowpregel.checkpoint.queue import QueuePosition
from flowpregel.checkpoint.reader import Reader

if TYPE_CHECKING:
    from flowpregel.checkpoint.layout import CheckpointRecord, NamespaceRecord
    from flowpregel.checkpoint.tables import Tables

_INPUT_LIMITS = PreviewLimits(
    depth=2,
    count=5,
    size=30,
    total=15,
)
_LARGEST_INPUT = 100_000
"""The size, in bytes, of the largest input that is decoded for a list of runs."""
_MOST_SEARCHED = 200
"""The greatest number of checkpoints that are read to find the beginning of a run."""


class StepRow(NamedTuple):
    """A superstep, described by the checkpoint at its end."""

    checkpoint_id: str
    """The id of the checkpoint."""
    step: int
    """The number of the superstep."""
    source: str
    """The origin of the checkpoint: ``input``, ``loop``, ``update`` or ``fork``."""
    at: int
    """The time of the checkpoint, in wall-clock nanoseconds."""
    changed: tuple[str, ...]
    """The names of the channels that the superstep changed, sorted."""
    was_enqueued: bool = False
    """True for the input of a run that was enqueued, and began some time later."""


class RunBeginning(NamedTuple):
    """The first checkpoint of a run."""

    at: int
    """The time of the checkpoint, in wall-clock nanoseconds."""
    was_enqueued: bool
    """True if the run was enqueued then, and began some time later."""
    input: str
    """The input of the run as a short text. If the run was resumed with another input,
    it is the newest one.
    """


class StepValues(NamedTuple):
    """The values of the channels after a superstep, and before it.

    The values were decoded without the user's code. The value of a `DeltaChannel` is
    shown as the last snapshot and the later writes, because only the flow has the
    function that combines them.
    """

    before: Mapping[str, Any]
    """The values before the superstep, by channel."""
    after: Mapping[str, Any]
    """The values after the superstep, by channel."""
    changed: tuple[str, ...]
    """The names of the channels that the superstep changed, sorted."""


class StepReader:
    """A reader of the checkpoints of a thread's outermost namespace.

    Args:
        tables: The tables of a store whose codec runs none of the user's code.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._reader = Reader(tables)
        # A keyframe is an earlier checkpoint with the channels that have not changed.
        # Only the input of a run may be in a keyframe, which `_input_data` then reads.
        self._newest_first = tables.newest_first_without_keyframes

    def rows(
        self,
        namespace: NamespaceRecord,
        most: int,
        *,
        of_last_run: bool,
    ) -> list[StepRow]:
        """Return the newest supersteps, the newest first.

        Args:
            namespace: The outermost namespace of the thread.
            most: The greatest number of supersteps to return.
            of_last_run: True to end with the input of the last run.
        """

        def newest(transaction: Any) -> list[StepRow]:
            """Return the newest supersteps within *transaction*."""
            records = self._newest_first(transaction, namespace)
            rows: list[StepRow] = []
            for checkpoint_id, record in islice(records, most):
                row = StepRow(
                    checkpoint_id=checkpoint_id,
                    step=record.step,
                    source=record.source,
                    at=record.at,
                    changed=_public_names(record.changed),
                    was_enqueued=self._was_enqueued(record),
                )
                rows.append(row)
                if of_last_run and record.source == "input":
                    break
            return rows

        rows: list[StepRow] = self._tables.read(newest)
        return rows

    def drawing(self, namespace: NamespaceRecord) -> dict[str, Any] | None:
        """Return the drawing of the graph that made the newest checkpoint, or None if
        it is not stored.
        """

        def find(transaction: Any) -> str:
            """Return the stored drawing within *transaction*, or an empty string."""
            records = self._newest_first(transaction, namespace)
            for _, record in islice(records, 1):
                data = record.metadata.get(DRAWING)
                if data is not None:
                    digest = self._tables.codec.decode(data, METADATA)
                    return self._tables.source(transaction, str(digest))
            return ""

        text: str = self._tables.read(find)
        try:
            outline = json.loads(text)
        except ValueError:
            return None
        return outline if isinstance(outline, dict) else None

    def values(self, address: Address) -> StepValues | None:
        """Return the values before and after the superstep that ends at a checkpoint.

        None is returned if there is no such checkpoint.
        """
        saved = self._saved(address)
        if saved is None:
            return None
        before: Mapping[str, Any] = {}
        parent_id = saved.checkpoint.parent_id
        if parent_id is not None:
            parent = self._saved(Address(address.thread_id, "", parent_id))
            before = {} if parent is None else by_public_name(channel_values(parent))
        return StepValues(
            before=before,
            after=by_public_name(channel_values(saved)),
            changed=_public_names(saved.checkpoint.changed),
        )

    def beginning(self, namespace: NamespaceRecord) -> RunBeginning | None:
        """Return the beginning of the last run, or None if the run's first checkpoint
        is not among the newest checkpoints, which are searched.
        """

        def find(transaction: Any) -> tuple[CheckpointRecord, bytes] | None:
            """Return the first checkpoint, and the input in its encoded form."""
            records = self._newest_first(transaction, namespace)
            for checkpoint_id, record in islice(records, _MOST_SEARCHED):
                if record.source == "input":
                    adopted = self._adopted_input_data(
                        transaction, namespace, checkpoint_id
                    )
                    data = adopted or self._input_data(transaction, namespace, record)
                    return record, data
            return None

        first: tuple[CheckpointRecord, bytes] | None = self._tables.read(find)
        if first is None:
            return None
        record, data = first
        text = ""
        if len(data) > _LARGEST_INPUT:
            text = f"({size_text(len(data))})"
        elif data:
            run_input = self._tables.codec.decode(data, "the input of a run")
            text = one_line(run_input, _INPUT_LIMITS)
        return RunBeginning(
            at=record.at,
            was_enqueued=self._was_enqueued(record),
            input=text,
        )

    def _was_enqueued(self, record: CheckpointRecord) -> bool:
        """Return whether a checkpoint is that of a run which has not begun."""
        data = record.metadata.get(QUEUE)
        if data is None:
            return False
        position = self._tables.codec.decode(data, METADATA)
        return QueuePosition.of({QUEUE: position}) is not None

    def _adopted_input_data(
        self,
        transaction: Any,
        namespace: NamespaceRecord,
        checkpoint_id: str,
    ) -> bytes | None:
        """Return the encoded input that a resumed run of a workflow got in place of the
        first one, or None if there is none.

        The resumed run has stored it as a write on the run's first checkpoint.

        Args:
            transaction: An open transaction.
            namespace: The namespace of the run.
            checkpoint_id: The id of the run's first checkpoint.
        """
        key = checkpoint_key(namespace.prefix, checkpoint_id) + digest(RUN_TASK_ID)
        data = self._tables.writes.get(transaction, key)
        if data is None:
            return None
        record = WritesRecord(*self._tables.fields_of(data))
        newest: bytes | None = None
        for position in sorted(record.writes):
            channel, value = record.writes[position]
            if channel == INPUT:
                newest = value
        return newest

    def _input_data(
        self,
        transaction: Any,
        namespace: NamespaceRecord,
        record: CheckpointRecord,
    ) -> bytes:
        """Return the encoded input of a run, or nothing if it is not stored.

        Args:
            transaction: An open transaction.
            namespace: The namespace of the run.
            record: The run's first checkpoint. It may lack channels that are stored
                only in an earlier checkpoint (the keyframe).
        """
        prefix = namespace.prefix
        record = self._tables.with_channels(transaction, prefix, record)
        location = record.places.get(INPUT)
        if location == STORED:
            version = record.channel_versions.get(INPUT)
            return self._tables.value(transaction, prefix, INPUT, version)
        return location if isinstance(location, bytes) else b""

    def _saved(self, address: Address) -> Saved | None:
        """Return the checkpoint at *address*, without task writes."""
        find = partial(self._reader.find, address=address, tasks=False)
        copied = self._tables.read(find)
        return None if copied is None else self._reader.decoded(copied)


def _public_names(channels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the public names of channels, sorted, without flowpregel's internal
    channels.
    """
    return tuple(by_public_name(dict.fromkeys(channels)))
