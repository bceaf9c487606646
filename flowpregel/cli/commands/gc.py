"""``flowpregel gc``: drop history that is not to be kept."""

from __future__ import annotations

import re

import click

from flowpregel.cli.options import json_option, store_option
from flowpregel.cli.output import size_of, tell, tell_json
from flowpregel.cli.stores import newest, writing
from flowpregel.errors import ConfigurationError

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_BYTES = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


@click.command()
@click.argument("threads", metavar="[THREAD]...", nargs=-1)
@click.option("--keep-last", type=click.IntRange(min=1), metavar="N", help="Keep so many.")
@click.option("--max-age", metavar="AGE", help="Keep what is younger: 90s, 30m, 12h, 7d, 4w.")
@click.option("--max-bytes", metavar="SIZE", help="Keep so much of each thread: 500k, 10M, 1G.")
@click.option("--compact", is_flag=True, help="Make the file smaller too; nobody may use it.")
@store_option
@json_option
def command(  # noqa: PLR0913 - one for each option of the command
    threads: tuple[str, ...],
    keep_last: int | None,
    max_age: str | None,
    max_bytes: str | None,
    compact: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Drop history that is not to be kept, of the threads named or of all.

    A checkpoint is dropped if any of the bounds says so. The newest of a
    thread, those that wait for an answer and those that are pinned stay.
    """
    from flowpregel.checkpoint.lmdb import Retention  # noqa: PLC0415 - keeps --help fast

    retention = Retention(
        keep_last=keep_last,
        max_age=None if max_age is None else quantity("--max-age", max_age, _SECONDS),
        max_bytes=None if max_bytes is None else int(quantity("--max-bytes", max_bytes, _BYTES)),
    )
    if retention == Retention() and not compact:
        raise ConfigurationError(
            "say what to keep: --keep-last, --max-age or --max-bytes; or --compact alone"
        )
    with writing(store) as saver:
        for thread in threads:
            newest(saver, thread)
        dropped = 0 if retention == Retention() else saver.sweep(retention, threads or None)
        if compact:
            saver.compact()
        size = saver.size()
    if as_json:
        tell_json({"dropped": dropped, "bytes": size})
    else:
        tell(f"dropped {dropped:,} checkpoints; the store takes up {size_of(size)}")


def quantity(option: str, text: str, units: dict[str, int]) -> float:
    """Return what ``12h`` or ``10M`` means.

    Raises:
        ConfigurationError: It means nothing.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]?)b?", text.strip().lower())
    if found is None or found[2] not in units:
        names = ", ".join(unit for unit in units if unit)
        raise ConfigurationError(f"{option} {text!r}: write a number and one of {names}")
    return float(found[1]) * units[found[2]]
