"""The commands that maintain a store.

These are: fork, rm, gc, rename, verify, backup, encrypt.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from flowpregel._inspection.inert import InertCodec
from flowpregel._interrupts import defer_interrupts
from flowpregel._stores import store_plugin_at
from flowpregel._text import in_one_line, size_text
from flowpregel.checkpoint.base import FLOW, FOLDER
from flowpregel.cli import console, targets
from flowpregel.errors import ConfigurationError
from flowpregel.storage.renames import importable
from flowpregel.units import bytes_of

_AGE = "Keep checkpoints that are younger: 90s, 30m, 12h, 7d, 4w."


@console.thread_command("fork")
@click.argument("new_thread")
@click.option(
    "--at",
    "checkpoint",
    metavar="CHECKPOINT",
    help="Fork at this checkpoint.",
)
@click.option(
    "--flow",
    metavar="MODULE:FLOW",
    help="The flow, for --at; by default the recorded one.",
)
def fork_command(
    thread: str,
    new_thread: str,
    checkpoint: str | None,
    flow: str | None,
    store: str | None,
) -> None:
    """Copy a thread, with its history, to NEW_THREAD.

    With --at, the copy resumes after that checkpoint.
    """
    app = None
    if checkpoint is not None:
        app = targets.flow_of_thread(thread, flow, store)
    with targets.open_to_write(store) as saver:
        source = targets.find_checkpoint(saver, thread, checkpoint).checkpoint
        if saver.thread(new_thread) is not None:
            raise ConfigurationError(
                f"there is a thread {new_thread!r} already: pass another NEW_THREAD"
            )
        saver.copy_thread(thread, new_thread)
        if app is not None:
            labels: dict[str, Any] = {}
            for label in (FLOW, FOLDER):
                if label in source.metadata:
                    labels[label] = source.metadata[label]
            app.copy({"checkpointer": saver}).update_state(
                thread_id=new_thread,
                checkpoint_id=source.id,
                as_node="__copy__",
                metadata=labels,
            )
        newest = targets.newest_checkpoint(saver, new_thread).checkpoint
    position = f"step {newest.step}" if newest.step >= 0 else "its input"
    console.print_result(
        {
            "thread_id": new_thread,
            "checkpoint": newest.id,
            "step": newest.step,
        },
        f"thread {in_one_line(new_thread)} is at {position}, checkpoint {newest.id}",
    )


@console.store_command("rm")
@click.argument("threads", metavar="THREAD...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm_command(threads: tuple[str, ...], yes: bool, store: str | None) -> None:
    """Delete threads, with all their history.

    A thread that a run holds is refused. If one thread does not exist, none is deleted.
    Output files, and the files of stored values (flowpregel.stored), stay: each thread
    has a folder with its stored values, which you can delete.
    """
    names = ", ".join(map(in_one_line, threads))
    with targets.open_to_write(store) as saver:
        for thread in threads:
            targets.newest_checkpoint(saver, thread)
        if not yes:
            if not sys.stdin.isatty():
                raise ConfigurationError(
                    "cannot ask for confirmation here: pass --yes to delete"
                )
            click.confirm(
                f"Delete {names} from {saver.path}?",
                abort=True,
                err=True,
            )
        for thread in threads:
            # No run may hold the thread.
            with defer_interrupts(), saver.lease_to_delete(thread):
                saver.delete_thread(thread)
    console.print_result({"deleted": list(threads)}, f"deleted: {names}")


@console.store_command("gc")
@click.argument("threads", metavar="[THREAD]...", nargs=-1)
@click.option(
    "--keep-last",
    type=console.COUNT,
    metavar="N",
    help="Keep N checkpoints.",
)
@click.option(
    "--max-age",
    metavar="AGE",
    callback=console.duration,
    help=_AGE,
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    help="Keep this much of a thread: 500k, 10M, 1G.",
)
@click.option(
    "--compact",
    is_flag=True,
    help="Also shrink the file; no other process may use the store.",
)
def gc_command(
    threads: tuple[str, ...],
    compact: bool,
    store: str | None,
    max_bytes: str | None,
    **bounds: Any,
) -> None:
    """Drop old history of the threads, or of all threads.

    A checkpoint that is over any of the bounds is dropped. The newest of a thread,
    those that wait for an answer and those that are pinned stay.
    """
    from flowpregel.checkpoint.retention import (  # noqa: PLC0415 - fast --help
        Retention,
    )

    size = None if max_bytes is None else bytes_of(max_bytes)
    retention = Retention(max_bytes=size, **bounds)
    has_bounds = retention != Retention()
    if not has_bounds and not compact:
        raise ConfigurationError(
            "choose what to keep: --keep-last, --max-age or --max-bytes; or "
            "--compact alone"
        )
    dropped = 0
    with targets.open_to_write(store) as saver:
        for thread in threads:
            targets.newest_checkpoint(saver, thread)
        if has_bounds:
            dropped = saver.sweep(retention, threads or None)
        if compact:
            saver.compact()
        store_size = saver.size()
    console.print_result(
        {"dropped": dropped, "bytes": store_size},
        f"dropped {dropped:,} checkpoints; the store uses {size_text(store_size)}",
    )


@click.command("rename")
@click.argument("old")
@click.argument("new")
@click.argument("store", envvar="FLOWPREGEL_STORE")
@click.option(
    "--unchecked",
    is_flag=True,
    help="Do not import NEW and OLD to check them.",
)
def rename_command(old: str, new: str, store: str, unchecked: bool) -> None:
    """Let recorded values find a class that was moved or renamed.

    It may also be a function or a module. OLD and NEW are full names, such as
    mypkg.old.C. The store records the new name; no value is written again. A program
    that has the store open uses the new name when it opens the store again.
    """
    if not unchecked:
        _check_names(old, new)
    with targets.open_to_write(store) as saver:
        saver.rename(old, new)
    console.print_result({"old": old, "new": new}, f"renamed: {old} is {new}")


rename_command.params += [console.TRUST_OPTION, console.AS_JSON]


def _check_names(old: str, new: str) -> None:
    """Check the two names of a `rename`.

    Raises:
        ConfigurationError: The new name cannot be imported, or the old name is still
            in use.
    """
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    new_value = importable(new)
    old_value = importable(old)
    if new_value is None:
        raise ConfigurationError(
            f"{new} cannot be imported here: check the name, or pass --unchecked"
        )
    if old_value is not None and old_value is not new_value:
        raise ConfigurationError(
            f"{old} still exists and is not {new}, so values that name it would be "
            "ambiguous; give it another name first, or pass "
            "StoreOptions(renamed=...) in the program"
        )


@console.store_command("verify")
def verify_command(store: str | None) -> console.Code:
    """Read everything in a store, and list what is damaged.

    Nothing is decoded. In a folder that can be written, the pages of the file are
    checked too, and writers have to wait.
    """
    # No other process may write while the pages are checked. Only a process that has
    # the store open for writing can ensure this.
    path = targets.existing_store(store)
    if store_plugin_at(path).is_lockable(path):
        opened_store = targets.open_to_write(store, InertCodec())
    else:
        opened_store = targets.open_to_read(store)
    with opened_store as saver:
        verification = saver.verify()
    problems = list(verification.problems)
    verdict = "all is well" if verification.ok else f"{len(problems)} problems"
    lines = [*problems, f"{verification.records:,} records read: {verdict}"]
    console.print_result(
        {
            "ok": verification.ok,
            "records": verification.records,
            "problems": problems,
        },
        "\n".join(lines),
    )
    return console.Code.OK if verification.ok else console.Code.STORE


@console.store_command("backup")
@click.argument("path")
def backup_command(path: str, store: str | None) -> None:
    """Copy a store, which may be in use, into the new folder PATH."""
    with targets.open_to_read(store) as saver:
        saver.backup(path)
    console.print_result({"path": os.path.realpath(path)}, f"copied to {path}")


@console.store_command("encrypt")
@click.argument("file", metavar="[KEYFILE]", required=False)
@click.option("--off", is_flag=True, help="Decrypt it.")
def encrypt_command(file: str | None, off: bool, store: str | None) -> None:
    """Encrypt all of a store, change its key, or decrypt it.

    The key is that in KEYFILE; --off decrypts. The file holds 16, 24 or 32 random
    bytes. If the store is encrypted now, its key is in the file that
    FLOWPREGEL_ENCRYPTION_KEY_FILE names. No other process may use the store at the same
    time, and there must be room for a second file; for a database of SQLite, for two.
    """
    if (file is None) is not off:
        raise ConfigurationError("give either the file of the new key, or --off")
    key = None if file is None else targets.read_key(file)
    with targets.open_to_write(store) as saver:
        saver.change_keys(encryption_key=key)
    if off:
        text = "decrypted"
    else:
        text = f"encrypted; from now on set {targets.KEY_FILE}={file}"
    console.print_result({"encrypted": not off}, text)
