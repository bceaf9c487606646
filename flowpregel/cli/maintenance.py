"""The commands that look after a store: fork, rm, gc, rename, verify, backup, encrypt,
doctor.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import click

from flowpregel._interrupts import held
from flowpregel._lmdb.renames import importable
from flowpregel._urls import is_url
from flowpregel.checkpoint.base import FLOW, FOLDER
from flowpregel.cli import console, targets
from flowpregel.errors import ConfigurationError, FlowPregelError, StoreError
from flowpregel.policies import bytes_of
from flowpregel.watching.inert import InertCodec

_AGE = "Keep what is younger: 90s, 30m, 12h, 7d, 4w."
_NEEDED = ("flowpregel", "cloudpickle", "lmdb", "loky", "structlog")
_EXTRAS = (
    "click",
    "rich",
    "cryptography",
    "zstandard",
    "numpy",
    "langgraph",
    "psycopg",
)
_SHM = "/dev/shm"
_LEAST_SHM = 64 << 20
_LEAST_DISK = 256 << 20


@console.thread_command()
@click.argument("new_thread")
@click.option(
    "--at", "checkpoint", metavar="CHECKPOINT", help="Go on from this checkpoint."
)
@click.option(
    "--flow", metavar="MODULE:FLOW", help="With --at; by default the recorded one."
)
def fork(
    thread: str,
    new_thread: str,
    checkpoint: str | None,
    flow: str | None,
    store: str | None,
) -> None:
    """Copy a thread, with its history, to NEW_THREAD.

    With --at, what the copy does next is what came after that checkpoint.
    """
    app = None if checkpoint is None else targets.flow_of(thread, flow, store)
    with targets.writing(store) as saver:
        start = targets.find_checkpoint(saver, thread, checkpoint).checkpoint
        labels = {k: v for k, v in start.metadata.items() if k in (FLOW, FOLDER)}
        saver.copy_thread(thread, new_thread)
        if app is not None:
            app.copy({"checkpointer": saver}).update_state(
                thread_id=new_thread,
                checkpoint_id=start.id,
                as_node="__copy__",
                metadata=labels,
            )
        made = targets.newest(saver, new_thread).checkpoint
    where = f"step {made.step}" if made.step >= 0 else "its input"
    console.print_result(
        {"thread_id": new_thread, "checkpoint": made.id, "step": made.step},
        f"thread {new_thread} stands at {where}, checkpoint {made.id}",
    )


@console.store_command()
@click.argument("threads", metavar="THREAD...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm(threads: tuple[str, ...], yes: bool, store: str | None) -> None:
    """Delete threads, with all their history.

    A thread that a run holds is refused; none is deleted if one is not there.
    """
    names = ", ".join(threads)
    with targets.writing(store) as saver:
        for thread in threads:
            targets.newest(saver, thread)
        if not yes:
            if not sys.stdin.isatty():
                raise ConfigurationError(
                    "nobody can be asked here: pass --yes to delete"
                )
            click.confirm(f"Delete {names} from {saver.path}?", abort=True, err=True)
        for thread in threads:
            with held(), saver.lease(thread):
                saver.delete_thread(thread)
    console.print_result({"deleted": [*threads]}, f"deleted: {names}")


@console.store_command()
@click.argument("threads", metavar="[THREAD]...", nargs=-1)
@click.option(
    "--keep-last", type=console.COUNT, metavar="N", help="Keep N checkpoints."
)
@click.option("--max-age", metavar="AGE", callback=console.duration, help=_AGE)
@click.option(
    "--max-bytes", metavar="SIZE", help="Keep this much of a thread: 500k, 10M, 1G."
)
@click.option(
    "--compact", is_flag=True, help="Make the file smaller too; nobody may use it."
)
def gc(
    threads: tuple[str, ...],
    compact: bool,
    store: str | None,
    max_bytes: str | None,
    **bounds: Any,
) -> None:
    """Drop history that is not to be kept.

    It is that of the threads named, or of all. A checkpoint that is over any of the
    bounds is dropped. The newest of a thread, those that wait for an answer and those
    that are pinned stay.
    """
    from flowpregel.checkpoint.lmdb import Retention  # noqa: PLC0415 - keeps --help fast

    retention = Retention(
        max_bytes=None if max_bytes is None else bytes_of(max_bytes), **bounds
    )
    if retention == Retention() and not compact:
        raise ConfigurationError(
            "say what to keep: --keep-last, --max-age or --max-bytes; or --compact "
            "alone"
        )
    with targets.writing(store) as saver:
        for thread in threads:
            targets.newest(saver, thread)
        dropped = (
            0 if retention == Retention() else saver.sweep(retention, threads or None)
        )
        if compact:
            saver.compact()
        left = saver.size()
    console.print_result(
        {"dropped": dropped, "bytes": left},
        f"dropped {dropped:,} checkpoints; the store takes up {console.size_of(left)}",
    )


@click.command
@click.argument("old")
@click.argument("new")
@click.argument("store", envvar="FLOWPREGEL_STORE")
@click.option(
    "--unchecked", is_flag=True, help="Do not import NEW and OLD to check them."
)
def rename(old: str, new: str, store: str, unchecked: bool) -> None:
    """Let recorded values find a class, a function or a module that was moved or
    renamed.

    OLD and NEW are full names, such as mypkg.old.C. The name is kept in the store; no
    value is written anew. A program that has the store open sees it when it opens it
    again.
    """
    if not unchecked:
        _check_names(old, new)
    with targets.writing(store) as saver:
        saver.rename(old, new)
    console.print_result({"old": old, "new": new}, f"renamed: {old} is {new}")


rename.params += [console.TRUST, console.AS_JSON]


def _check_names(old: str, new: str) -> None:
    """Refuse a new name under which nothing is found, and an old one that is in use."""
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)
    found, former = importable(new), importable(old)
    if found is None:
        raise ConfigurationError(
            f"{new} cannot be imported here: check the name, or pass --unchecked"
        )
    if former is not None and former is not found:
        raise ConfigurationError(
            f"there is still a {old}, which is not {new}: what values mean by it could "
            "not be "
            "told; give it another name first, or pass StoreOptions(renamed=...) in "
            "the program"
        )


@console.store_command()
def verify(store: str | None) -> console.Code:
    """Read everything in a store, and list what is damaged.

    Nothing is decoded. In a folder that can be written, the pages of the file
    are checked too, and writers wait meanwhile.
    """
    # Nobody may write while the pages are checked, which only a writer can ensure.
    can_write = os.access(targets.existing(store), os.W_OK)
    with (
        targets.writing(store, InertCodec())
        if can_write
        else targets.reading(store) as saver
    ):
        found = saver.verify()
    what = "all is well" if found.ok else f"{len(found.problems)} problems"
    console.print_result(
        {"ok": found.ok, "records": found.records, "problems": [*found.problems]},
        "\n".join([*found.problems, f"{found.records:,} records read: {what}"]),
    )
    return console.Code.OK if found.ok else console.Code.STORE


@console.store_command()
@click.argument("path")
def backup(path: str, store: str | None) -> None:
    """Copy a store, which may be in use, into the new folder PATH."""
    with targets.reading(store) as saver:
        saver.backup(path)
    console.print_result({"path": os.path.realpath(path)}, f"copied to {path}")


@console.store_command()
@click.argument("file", metavar="[KEYFILE]", required=False)
@click.option("--off", is_flag=True, help="Decrypt it.")
def encrypt(file: str | None, off: bool, store: str | None) -> None:
    """Encrypt all of a store, change its key, or decrypt it.

    The key is that in KEYFILE; --off decrypts. The file holds 16, 24 or 32 random
    bytes. If the store is encrypted now, its key is in the file that
    FLOWPREGEL_ENCRYPTION_KEY_FILE names. Nobody may use it meanwhile, and there must
    be room for a second file.
    """
    if (file is None) is not off:
        raise ConfigurationError("give either the file of the new key, or --off")
    key = None if file is None else targets.key_in(file)
    with targets.writing(store) as saver:
        saver.change_keys(encryption_key=key)
    text = (
        "decrypted" if off else f"encrypted; from now on set {targets.KEY_FILE}={file}"
    )
    console.print_result({"encrypted": not off}, text)


@console.store_command()
def doctor(store: str | None) -> console.Code:
    """Check this machine, and a store's folder if one is named.

    Exits with 0 if all is well, 4 if the store's folder is not, 1 if anything
    else is not.
    """
    of_machine = [*check_machine()]
    of_store = [] if store is None else [*check_store(store)]
    rows = [*of_machine, *of_store]
    shown = [(row["check"], "ok" if row["ok"] else "BAD", row["found"]) for row in rows]
    console.print_result(rows, console.table(("CHECK", "", "FOUND"), shown))
    if not all(row["ok"] for row in of_store):
        return console.Code.STORE
    return (
        console.Code.OK if all(row["ok"] for row in of_machine) else console.Code.FAILED
    )


def check_machine() -> Iterator[dict[str, Any]]:
    """Check Python, the packages, the cores and the shared memory."""
    from importlib import metadata  # noqa: PLC0415 - keeps --help fast

    python = (
        f"{platform.python_implementation()} {platform.python_version()} on "
        f"{sys.platform}"
    )
    yield _row("python", sys.version_info >= (3, 11), python)
    there = {each.name: each.version for each in metadata.distributions()}
    for name in _NEEDED:
        found = there.get(name, "is not installed: pip install flowpregel")
        yield _row(name, name in there, found)
    extras = [f"{name} {there[name]}" for name in _EXTRAS if name in there]
    yield _row("extras", True, ", ".join(extras) or "none")
    total = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    yield _row("cores", True, f"{usable} of {total} usable by this process")
    if sys.platform == "linux" and os.access(_SHM, os.W_OK):
        yield _free(_SHM, _SHM, _LEAST_SHM)
    elif sys.platform == "linux":
        yield _row(_SHM, False, "cannot be written: big arrays go through pipes")


def check_store(path: str) -> Iterator[dict[str, Any]]:
    """Check the folder of a store, or the one it would be made in, and whether it
    opens.
    """
    from flowpregel._lmdb import files  # noqa: PLC0415 - loads LMDB
    from flowpregel._lmdb.file_systems import file_system  # noqa: PLC0415 - as above

    if is_url(path):
        yield _opening(path)
        return
    place = real = os.path.realpath(path)
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    yield _opening(real)
    try:
        files.refuse_network(place)
        yield _row("store's file system", True, file_system(place) or "unknown")
    except StoreError as error:
        yield _row("store's file system", False, str(error))
    yield _free("store's disk", place, _LEAST_DISK)
    writable = os.access(place, os.W_OK)
    yield _row(
        "store's rights", writable, "writable" if writable else f"{place} is read-only"
    )
    if place == real:
        mode = os.stat(real).st_mode & 0o777
        advice = ": others may look into it; chmod 700 it" if mode & 0o077 else ""
        yield _row("store's mode", not advice, f"mode {mode:o}{advice}")


def _row(check: str, ok: bool, found: str) -> dict[str, Any]:
    return {"check": check, "ok": ok, "found": found}


def _free(check: str, place: str, least: int) -> dict[str, Any]:
    free = shutil.disk_usage(place).free
    return _row(check, free >= least, f"{console.size_of(free)} free")


def _opening(path: str) -> dict[str, Any]:
    from flowpregel._lmdb import files  # noqa: PLC0415 - loads LMDB

    try:
        if not is_url(path) and not files.exists(files.real_path(path)):
            return _row("store", True, f"none at {path} yet")
        with targets.reading(path) as saver:
            return _row(
                "store", True, f"{saver.path} opens, {console.size_of(saver.size())}"
            )
    except FlowPregelError as error:
        return _row("store", False, str(error))
