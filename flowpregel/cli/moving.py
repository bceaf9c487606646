"""The commands that move one run between stores: export, import."""

from __future__ import annotations

import os

import click

from flowpregel._inspection.inert import InertCodec
from flowpregel._text import in_one_line, size_text
from flowpregel.cli import console, targets

_KEY_OPTION = click.Option(
    ["--key", "key_file"],
    metavar="KEYFILE",
    help="The secret key of the file, in KEYFILE; by default the key of the store.",
)
_TRUST_FILE = click.Option(
    ["--trust"],
    is_flag=True,
    help="Import a file that is sealed under another key.",
)
"""The option ``--trust`` of `import`, which trusts the imported file, and not the
store.
"""


@console.thread_command("export", _KEY_OPTION)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    required=True,
    help="The new file.",
)
def export_command(
    thread: str,
    output: str,
    key_file: str | None,
    store: str | None,
) -> None:
    """Write one run into a file, for `import` into another store.

    The file has the history of the run, its nested runs, logs and previews, and only
    you may read it. The run may be under way. The file is sealed, and it is encrypted
    if the store is.
    """
    key = None if key_file is None else targets.read_secret(key_file)
    with targets.open_to_read(store) as saver:
        targets.newest_checkpoint(saver, thread)
        saver.export_thread(thread, output, key=key)
    path = os.path.abspath(output)
    size = os.path.getsize(path)
    console.print_result(
        {"thread_id": thread, "path": path, "bytes": size},
        f"exported {in_one_line(thread)} to {output}: {size_text(size)}",
    )


@console.store_command("import", _KEY_OPTION, trust=_TRUST_FILE)
@click.argument("file")
@click.option(
    "--as",
    "new_thread",
    metavar="ID",
    help="The id of the run in this store; by default the one that it had.",
)
@click.option(
    "--encryption-key",
    "encryption_key_file",
    metavar="KEYFILE",
    help="The key with which the file is encrypted; by default that of the store.",
)
def import_command(
    file: str,
    new_thread: str | None,
    key_file: str | None,
    encryption_key_file: str | None,
    trust: bool,
    store: str | None,
) -> None:
    """Copy the run from FILE, which `export` wrote, into a store.

    The store may be of another kind, and is created if there is none. A file that is
    sealed under another key needs --trust: resuming a run can execute code that is in
    its values, as running a program of the same origin does. A run that was not done is
    stopped; `resume` continues it.
    """
    path = targets.named_store(store)
    key = None if key_file is None else targets.read_secret(key_file)
    encryption_key = None
    if encryption_key_file is not None:
        encryption_key = targets.read_key(encryption_key_file)
    with targets.open_saver(path, codec=InertCodec()) as saver:
        thread = saver.import_thread(
            file,
            new_thread,
            trust=trust,
            key=key,
            encryption_key=encryption_key,
        )
        imported = saver.thread(thread)
        location = saver.path
    status = None if imported is None else imported.status
    console.print_result(
        {"thread_id": thread, "status": status, "path": location},
        f"imported {in_one_line(thread)} into {location}: {status}",
    )
