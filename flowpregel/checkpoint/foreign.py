"""LangGraph's savers as ours: ``as_saver(SqliteSaver(...))``.

Nothing here needs LangGraph to be installed; whoever has one of its savers has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from flowpregel._core.commands import Interrupt, Send
from flowpregel._core.records import Version
from flowpregel.checkpoint.base import (
    BaseCheckpointSaver,
    CheckpointDict,
    CheckpointTuple,
    Config,
)
from flowpregel.errors import ConfigurationError
from flowpregel.policies import TimeoutPolicy

_REQUIRED = ("get_tuple", "list", "put", "put_writes")


def as_saver(candidate: Any) -> BaseCheckpointSaver:
    """Return *candidate* as a saver that flowpregel can use.

    Args:
        candidate: One of our savers, which is returned as it is, or an object with
            the methods ``get_tuple``, ``list``, ``put`` and ``put_writes`` of a
            LangGraph saver.

    Raises:
        ConfigurationError: It is neither.

    Example:
        >>> from flowpregel.checkpoint.memory import InMemorySaver
        >>> type(as_saver(InMemorySaver())).__name__
        'InMemorySaver'
    """
    if isinstance(candidate, BaseCheckpointSaver):
        return candidate
    missing = [name for name in _REQUIRED if not callable(getattr(candidate, name, None))]
    if missing:
        raise ConfigurationError(
            f"{candidate!r} cannot keep checkpoints: it has no {', '.join(missing)}; "
            "pass a path, an InMemorySaver, an LMDBSaver or a LangGraph saver"
        )
    return ForeignSaver(candidate)


class ForeignSaver(BaseCheckpointSaver):
    """A LangGraph saver as ours.

    It keeps what its own serializer keeps: LangGraph's turns a tuple into a list and
    an exception into a text. A `Send` and an `Interrupt` are kept as LangGraph's, so
    that its programs can read them, and come back as ours.

    Args:
        saver: The saver to use; closing it is left to its owner.
    """

    def __init__(self, saver: Any) -> None:
        self.saver = saver

    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        found = self.saver.get_tuple(config)
        return None if found is None else _ours(found)

    def list(
        self,
        config: Config | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        for found in self.saver.list(config, filter=filter, before=before, limit=limit):
            yield _ours(found)

    def put(
        self,
        config: Config,
        checkpoint: CheckpointDict,
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Version],
    ) -> Config:
        values = {name: _to_foreign(value) for name, value in checkpoint["channel_values"].items()}
        foreign: CheckpointDict = {**checkpoint, "channel_values": values}
        stored: Config = self.saver.put(config, foreign, dict(metadata), dict(new_versions))
        return stored

    def put_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        foreign = [(channel, _to_foreign(value)) for channel, value in writes]
        self.saver.put_writes(config, foreign, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        self.saver.delete_thread(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.saver.delete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.saver.copy_thread(source_thread_id, target_thread_id)

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: Literal["keep_latest", "delete"] = "keep_latest",
    ) -> None:
        self.saver.prune(thread_ids, strategy=strategy)

    def get_next_version(self, current: Version | None, channel: Any = None) -> Version:
        version: Version = self.saver.get_next_version(current, channel)
        return version


def _ours(found: Any) -> CheckpointTuple:
    """Return LangGraph's tuple as ours, with our own records in it."""
    values = found.checkpoint.get("channel_values") or {}
    checkpoint = {
        **found.checkpoint,
        "channel_values": {name: _from_foreign(value) for name, value in values.items()},
    }
    return CheckpointTuple(
        config=found.config,
        checkpoint=cast(CheckpointDict, checkpoint),
        metadata=dict(found.metadata or {}),
        parent_config=found.parent_config,
        pending_writes=[
            (task_id, channel, _from_foreign(value))
            for task_id, channel, value in found.pending_writes or ()
        ],
    )


def _to_foreign(value: Any) -> Any:
    """Return *value* with our `Send` and `Interrupt`, also in a sequence, as LangGraph's."""
    if type(value) in (list, tuple):
        return type(value)(_to_foreign(item) for item in value)
    if isinstance(value, Interrupt):
        from langgraph import types  # noqa: PLC0415 - only who has its savers has it

        return types.Interrupt(value=value.value, id=value.id)
    if isinstance(value, Send):
        from langgraph import types  # noqa: PLC0415 - only who has its savers has it

        limit = value.timeout
        timeout = None if limit is None else types.TimeoutPolicy(**vars(limit))
        return types.Send(value.node, value.arg, timeout=timeout)
    return value


def _from_foreign(value: Any) -> Any:
    """Return *value* with LangGraph's records, also in a sequence, as ours."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(_from_foreign(item) for item in value)
    # By name: a saver of LangGraph does without the module that defines them.
    if kind.__module__ != "langgraph.types":
        return value
    if kind.__name__ == "Interrupt":
        return Interrupt(value.value, value.id)
    if kind.__name__ == "Send":
        limit = getattr(value, "timeout", None)
        if limit is None:
            return Send(value.node, value.arg)
        return Send(
            value.node,
            value.arg,
            timeout=TimeoutPolicy(
                run_timeout=limit.run_timeout,
                idle_timeout=limit.idle_timeout,
                refresh_on=limit.refresh_on,
            ),
        )
    return value
