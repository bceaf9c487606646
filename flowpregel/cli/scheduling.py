"""The command ``schedule``, and the schedules that ``work`` follows.

The store has the workflows whose schedules are followed, each with the last due time
that was handled. A process of ``work`` enqueues a run for each due time after that, and
then records the last of these due times. Another process may do the same at the same
time: the id of the run contains the due time, so both enqueue the same run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from flowpregel import _clock
from flowpregel._inspection.inert import InertCodec
from flowpregel._text import in_one_line
from flowpregel.checkpoint.base import FLOW
from flowpregel.checkpoint.scheduled import ScheduledFlow
from flowpregel.cli import console, targets
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver

_COLUMNS = ("FLOW", "DUE", "RUN")
_WRONG_CLOCK: Final = 86_400.0
"""Seconds by which the last due time may be in the future. If it is further away, the
clock was wrong when the time was handled, and the schedule begins again now.
"""


@console.store_command("schedule")
@click.argument("flows", metavar="[MODULE:FLOW]...", nargs=-1)
@click.option("--remove", is_flag=True, help="End these schedules.")
@click.option(
    "--count",
    type=console.COUNT,
    metavar="N",
    default=3,
    show_default=True,
    help="Show the next N times of each flow.",
)
def schedule_command(
    flows: tuple[str, ...],
    remove: bool,
    count: int,
    store: str | None,
) -> None:
    """Let `work` follow the schedules of flows, and list these.

    A flow has a schedule by @entrypoint(cron="0 3 * * *") or @entrypoint(every="1h").
    MODULE:FLOW is added to the schedules of the store, and all schedules are listed
    with their next times. Without MODULE:FLOW the command only lists them.
    """
    if remove and not flows:
        raise ConfigurationError("which schedule? pass --remove MODULE:FLOW")
    loaded = [] if remove else [_scheduled_flow(flow) for flow in flows]
    with _open_schedules(store, writes=bool(flows)) as saver:
        if remove:
            _remove(saver, flows)
        elif loaded:
            _add(saver, loaded)
        schedules = saver.schedules()
    records = [*_next_runs(schedules, count)]
    rows = [(record["flow"], record["due"], record["id"]) for record in records]
    console.print_result(records, console.make_table(_COLUMNS, rows))


def _open_schedules(
    store: str | None,
    *,
    writes: bool,
) -> DurableSaver:
    """Open a store to change the schedules, or to list them."""
    if writes:
        return targets.open_to_write(store, InertCodec())
    return targets.open_to_read(store)


def _add(
    saver: DurableSaver,
    loaded: Collection[Any],
) -> None:
    """Add workflows to the schedules of a store, unless they are there already."""
    now = _clock.wall()

    def change(
        flows: dict[str, ScheduledFlow],
    ) -> None:
        for flow in loaded:
            name = flow.once.flow
            since = now
            if name in flows:
                since = flows[name].since
            flows[name] = ScheduledFlow(since, flow.once.folder)

    saver.change_schedules(change)


def _remove(
    saver: DurableSaver,
    names: Collection[str],
) -> None:
    """Remove workflows from the schedules of a store.

    Raises:
        ConfigurationError: One of them is not among the schedules.
    """
    known = saver.schedules()
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"{saver.path} has no schedule of {name!r}; it has: "
                f"{', '.join(sorted(known)) or 'none'}"
            )

    def change(
        flows: dict[str, ScheduledFlow],
    ) -> None:
        for name in names:
            flows.pop(name, None)

    saver.change_schedules(change)


def _next_runs(
    schedules: Mapping[str, ScheduledFlow],
    count: int,
) -> Iterator[dict[str, Any]]:
    """Yield the next runs of scheduled workflows, for JSON."""
    from flowpregel.pregel.schedule import (  # noqa: PLC0415 - keeps --help fast
        scheduled_run_id,
    )

    now = datetime.fromtimestamp(_clock.wall(), UTC)
    for name, scheduled in sorted(schedules.items()):
        flow = _scheduled_flow(name, scheduled.folder)
        for due in flow.schedule.next_times(now, count):
            yield {
                "flow": name,
                "due": due.isoformat(),
                "id": scheduled_run_id(name, due),
            }


def _scheduled_flow(
    name: str,
    folder: str = "",
) -> Any:
    """Import a workflow with a schedule.

    Raises:
        ConfigurationError: The workflow cannot be imported, or has no schedule.
    """
    flow = targets.load_flow(name, folder)
    if getattr(flow, "schedule", None) is None:
        raise ConfigurationError(
            f"{name} has no schedule: write @entrypoint(cron='0 3 * * *') or "
            "@entrypoint(every='1h')"
        )
    return flow


@dataclass(slots=True)
class ScheduleFollower:
    """The schedules that a process of ``work`` follows.

    Args:
        saver: The store, open to enqueue runs.
        flows: The names of the flows that are followed; empty for all.
    """

    saver: DurableSaver
    flows: Collection[str] = ()
    delayed_until: float = 0.0
    """The time at which the last of the enqueued runs begins, with its jitter, in
    seconds since the epoch.
    """
    _loaded: dict[str, Any] = field(default_factory=dict)
    """The imported workflows by name, with None for a workflow that cannot be used."""

    def enqueue_due(
        self,
        now: float,
    ) -> int:
        """Enqueue the runs that are due, and return their number.

        Args:
            now: The present time, in seconds since the epoch.
        """
        count = 0
        paused = self.saver.paused()
        for name, scheduled in self.saver.schedules().items():
            is_ours = not self.flows or name in self.flows
            # The schedule of a paused flow is skipped. When the pause has ended,
            # `enqueue_due` catches up on the missed times.
            if is_ours and not paused.reason("", {FLOW: name}):
                count += self._enqueue_runs(name, scheduled, now)
        return count

    def _enqueue_runs(
        self,
        name: str,
        scheduled: ScheduledFlow,
        now: float,
    ) -> int:
        """Enqueue the due runs of a workflow, and return their number."""
        if scheduled.since > now + _WRONG_CLOCK:
            self._move_mark(name, scheduled, now)
            return 0
        flow = self._flow(name, scheduled.folder)
        if flow is None:
            return 0
        since = datetime.fromtimestamp(scheduled.since, UTC)
        moment = datetime.fromtimestamp(now, UTC)
        due_times = flow.schedule.due_times(since, moment)
        for due in due_times:
            if not self._enqueue(flow, name, due):
                return 0
            self._move_mark(name, scheduled, due.timestamp())
        return len(due_times)

    def _enqueue(
        self,
        flow: Any,
        name: str,
        due: datetime,
    ) -> bool:
        """Enqueue the run that is due at a time, and return whether it is stored."""
        from flowpregel.pregel.schedule import (  # noqa: PLC0415 - keeps --help fast
            scheduled_run_id,
        )

        run_id = scheduled_run_id(name, due)
        enqueued = flow.copy({"checkpointer": self.saver})
        begin = due + flow.schedule.delay(run_id)
        try:
            enqueued.enqueue(
                due,
                id=run_id,
                not_before=begin,
            )
        except Exception as error:  # noqa: BLE001 - other schedules are followed
            text = f"{type(error).__name__}: {error}"
            console.print_note(f"error: {in_one_line(run_id)}: {text}")
            return True
        self.delayed_until = max(self.delayed_until, begin.timestamp())
        # A run with this id may not be stored: another process may have been killed
        # while it enqueued the run.
        return self.saver.glance(run_id) is not None

    def _move_mark(
        self,
        name: str,
        before: ScheduledFlow,
        handled: float,
    ) -> None:
        """Record that the due times up to *handled* have been handled. If another
        process has recorded a later time since the schedule was read, keep that time.
        """

        def change(
            flows: dict[str, ScheduledFlow],
        ) -> None:
            present = flows.get(name)
            is_reset = handled < before.since and present == before
            if present is not None and (is_reset or handled > present.since):
                flows[name] = present._replace(since=handled)

        self.saver.change_schedules(change)

    def _flow(
        self,
        name: str,
        folder: str,
    ) -> Any:
        """Return a scheduled workflow. If it cannot be used, print a note once, and
        return None.
        """
        if name not in self._loaded:
            try:
                self._loaded[name] = _scheduled_flow(name, folder)
            except Exception as error:  # noqa: BLE001 - the user's module may raise any
                text = f"{type(error).__name__}: {error}"
                console.print_note(f"error: the schedule of {name}: {text}")
                self._loaded[name] = None
        return self._loaded[name]
