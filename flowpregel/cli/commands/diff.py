"""``flowpregel diff``: what changed between two checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flowpregel.cli.options import (
    all_option,
    full_option,
    json_option,
    store_option,
    thread_argument,
)
from flowpregel.cli.output import tell, tell_json
from flowpregel.cli.points import find
from flowpregel.cli.preview import FULL, Limits, one_line, plain
from flowpregel.cli.stores import reading
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel._core.records import Saved


@click.command()
@thread_argument
@click.argument("old", required=False)
@click.argument("new", required=False)
@full_option
@all_option
@store_option
@json_option
def command(  # noqa: PLR0913 - one for each option of the command
    thread: str,
    old: str | None,
    new: str | None,
    full: bool,
    show_all: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Show what changed between two checkpoints.

    OLD and NEW are steps, ids or their beginnings; by default the newest and
    its parent.
    """
    with reading(store) as saver:
        later = find(saver, thread, new)
        if old is None and later.checkpoint.parent_id is None:
            raise ConfigurationError(
                f"checkpoint {later.checkpoint.id} has no parent: name the one to compare with"
            )
        earlier = find(saver, thread, old or later.checkpoint.parent_id)
    changes = changes_of(earlier, later, show_all=show_all)
    limits = FULL if full else Limits()
    if as_json:
        tell_json(
            {
                "old": earlier.checkpoint.id,
                "new": later.checkpoint.id,
                "changes": {
                    name: {side: plain(value, limits) for side, value in sides.items()}
                    for name, sides in changes.items()
                },
            }
        )
        return
    for name, sides in changes.items():
        for side, sign in (("old", "-"), ("new", "+")):
            if side in sides:
                tell(f"{sign} {name}: {one_line(sides[side], limits)}")


def changes_of(old: Saved, new: Saved, *, show_all: bool) -> dict[str, dict[str, Any]]:
    """Return, for each channel that differs, what each side holds; empty sides are left out."""
    from flowpregel.cli.status import values_of  # noqa: PLC0415 - keeps --help fast

    before, after = values_of(old, show_all=show_all), values_of(new, show_all=show_all)
    changes = {}
    for name in sorted(before.keys() | after.keys()):
        sides = {
            side: held[name] for side, held in (("old", before), ("new", after)) if name in held
        }
        # By what is shown: `==` of a user's class may raise, or be no bool.
        if len(sides) == 1 or plain(before[name], FULL) != plain(after[name], FULL):
            changes[name] = sides
    return changes
