"""The commands that show runs in a browser: ui, report."""

from __future__ import annotations

import socket
import webbrowser
from contextlib import closing
from pathlib import Path

import click

from flowpregel.cli import console, targets
from flowpregel.cli.console import note
from flowpregel.errors import ConfigurationError


@click.command
@click.argument("store", envvar="FLOWPREGEL_STORE")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=0, help="The port to listen on; by default a free one.")
@click.option("--actions", is_flag=True, help="Allow to answer, cancel, retry, redo and fork.")
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
def ui(store: str, host: str, port: int, actions: bool, opens: bool) -> None:
    """Show the runs of a store in a browser, live, until Ctrl-C.

    The address that is printed holds a secret: whoever has it sees the runs. Only programs
    of this machine can ask, unless --host says otherwise. Nothing of the runs' code is
    imported here; with --actions the buttons of the page start this command's own siblings.
    """
    from flowpregel.ui.actions import Actions  # noqa: PLC0415 - an extra
    from flowpregel.ui.app import ACTION_PATHS, PageServer, app_of  # noqa: PLC0415 - an extra
    from flowpregel.ui.guard import LOOPBACK, RequestGuard  # noqa: PLC0415 - an extra
    from flowpregel.ui.pages import Pages  # noqa: PLC0415 - keeps --help fast

    with (
        targets.reading(store) as saver,
        closing(Pages(saver)) as pages,
        _listening(host, port) as listener,
    ):
        port = listener.getsockname()[1]
        is_local = host in LOOPBACK
        guard = RequestGuard(
            hosts=LOOPBACK if is_local else (*LOOPBACK, host, socket.gethostname()),
            writes=ACTION_PATHS if actions else (),
            cookie=f"flowpregel-{port}",
        )
        trust = ["--trust"] if console.is_asked("--trust") else []
        app = app_of(pages, Actions(saver.location, trust) if actions else None)
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{port}/?token={guard.token}"
        note(f"the runs of {saver.path}, until Ctrl-C:")
        click.echo(address)
        if not is_local:
            note("other machines can reach this, and what they are sent is not encrypted")
        if opens:
            webbrowser.open(address)
        PageServer(app, guard).run(sockets=[listener])


ui.params.append(console.TRUST)


@console.thread_command()
@click.option("--output", metavar="FILE", default="run.html", show_default=True, help="Where to.")
def report(thread: str, output: str, store: str | None) -> None:
    """Write the page of a thread's last run as one HTML file.

    It needs no server and no network, and runs nothing of the user's.
    """
    from flowpregel.ui.report import report as report_of  # noqa: PLC0415 - keeps --help fast

    with targets.reading(store) as saver:
        page = report_of(saver, thread).encode()
    try:
        Path(output).write_bytes(page)
    except OSError as error:
        raise ConfigurationError(f"--output: {error}") from error
    told = {"thread_id": thread, "output": output, "bytes": len(page)}
    console.print_result(told, f"{output}: {console.size_of(len(page))}")


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(f"{host} port {port} cannot be listened on: {error}") from error
