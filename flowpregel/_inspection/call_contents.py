"""Digests of the arguments and the results of calls, equal for equal content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flowpregel._core import records
from flowpregel._core.ids import text_digest
from flowpregel._core.records import Address
from flowpregel._inspection.call_rows import CallRow
from flowpregel._inspection.inert import InertCodec
from flowpregel._inspection.tasks import TaskRecords
from flowpregel.checkpoint.layout import WritesRecord, checkpoint_key, digest
from flowpregel.checkpoint.work import work_from

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver


class CallContent(NamedTuple):
    """The digests of a call's arguments and result. They do not depend on the run, so
    calls of two runs with equal content have equal digests.
    """

    arguments: str = ""
    """The digest of the arguments, or an empty string if it is not stored."""
    result: str = ""
    """The digest of the stored result of a call, or of the writes of a node; an empty
    string if neither is stored.
    """


class CallContents:
    """A reader of the digests of calls.

    Args:
        saver: The open store. The reader opens the store a second time, with a codec
            that runs none of the user's code.
    """

    def __init__(self, saver: DurableSaver) -> None:
        self._store, _ = saver.opened_to_look(InertCodec())
        self._tasks = TaskRecords(self._store)

    def close(self) -> None:
        """Close the store that this reader has opened."""
        self._store.close()

    def read(
        self,
        run_id: str,
        calls: Sequence[CallRow],
    ) -> dict[str, CallContent]:
        """Return the digests of calls by their ids.

        Args:
            run_id: The id of the thread.
            calls: Calls of the thread's last run.
        """
        prefixes: dict[str, bytes] = {}
        for namespace in self._tasks.tables.used(run_id):
            prefixes[namespace.namespace] = namespace.prefix
        keys: list[bytes] = []
        for call in calls:
            prefix = prefixes.get(call.namespace, b"")
            location = checkpoint_key(prefix, call.checkpoint_id)
            keys.append(location + digest(call.id))
        payloads = self._tasks.payloads(keys)
        contents: dict[str, CallContent] = {}
        for call, payload in zip(calls, payloads, strict=True):
            if payload is not None:
                record = self._tasks.record(payload)
                contents[call.id] = self._content(record)
        return contents

    def _content(self, record: WritesRecord) -> CallContent:
        """Return the digests of the task with this record."""
        arguments = ""
        results: list[str] = []
        for _, (name, data) in sorted(record.writes.items()):
            if name == records.CALLED:
                called = self._tasks.codec.decode(data, "a call")
                arguments = _digest_of_arguments(called)
            is_control = name in records.CONTROL_WRITES
            if name == records.RETURN or not is_control:
                results.append(name)
                results.append(bytes(data).hex())
        if not results:
            return CallContent(arguments)
        return CallContent(
            arguments=arguments,
            result=text_digest(*results),
        )


def _digest_of_arguments(called: Any) -> str:
    """Return the digest of the arguments in the key of a call, or an empty string if
    the key does not have the expected form, because another program has written it.
    """
    work = work_from(
        Address(""),
        step=0,
        task_id="",
        writes={records.CALLED: called},
        ran=None,
    )
    if work.call_key is None:
        return ""
    return work.call_key.arguments
