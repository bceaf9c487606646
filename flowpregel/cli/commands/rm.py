"""``flowpregel rm``: delete threads."""

from __future__ import annotations

import sys

import click

from flowpregel.cli.options import json_option, store_option
from flowpregel.cli.output import tell, tell_json
from flowpregel.cli.stores import newest, writing
from flowpregel.errors import ConfigurationError


@click.command()
@click.argument("threads", metavar="THREAD...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
@json_option
def command(threads: tuple[str, ...], yes: bool, store: str | None, as_json: bool) -> None:
    """Delete threads, with all their history.

    A thread that a run holds is refused; none is deleted if one is not there.
    """
    with writing(store) as saver:
        for thread in threads:
            newest(saver, thread)
        if not yes:
            _ask(threads, saver.path)
        for thread in threads:
            with saver.lease(thread):
                saver.delete_thread(thread)
    if as_json:
        tell_json({"deleted": [*threads]})
    else:
        tell(f"deleted: {', '.join(threads)}")


def _ask(threads: tuple[str, ...], path: str) -> None:
    if not sys.stdin.isatty():
        raise ConfigurationError("nobody can be asked here: pass --yes to delete")
    click.confirm(f"Delete {', '.join(threads)} from {path}?", abort=True, err=True)
