"""The commands that show the page: ``ui`` serves it, and ``report`` writes it as one
file.
"""

from __future__ import annotations

import os
import shlex
import socket
import stat
import webbrowser
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from flowpregel.cli.base import (
    TRUST_OPTION,
    has_flag,
    open_to_read,
    print_note,
    print_result,
    size_text,
    thread_command,
)
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel.plugins.page.guard import RequestGuard
    from flowpregel.plugins.page.stores import ServedStore

_PORT = click.IntRange(0, 65_535)


class _StoreType(click.types.StringParamType):
    """A path or URL of a store.

    Unlike click's own types, it does not split the value of the environment variable at
    spaces, because this is a single store.
    """

    envvar_list_splitter = "\0"


@click.command("ui")
@click.argument(
    "stores",
    metavar="STORE...",
    nargs=-1,
    required=True,
    envvar="FLOWPREGEL_STORE",
    type=_StoreType(),
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on.",
)
@click.option(
    "--port",
    type=_PORT,
    default=0,
    help="The port to listen on; by default the last one, or a free one.",
)
@click.option(
    "--actions",
    is_flag=True,
    help="Allow the page to answer, cancel, retry, redo and fork.",
)
@click.option(
    "--flow",
    "flows",
    multiple=True,
    metavar="MODULE:FLOW",
    help="With --actions: offer a form that starts this flow; repeatable.",
)
@click.option(
    "--open",
    "opens",
    is_flag=True,
    help="Open the page in the browser.",
)
def ui_command(
    stores: tuple[str, ...],
    host: str,
    port: int,
    actions: bool,
    flows: tuple[str, ...],
    opens: bool,
) -> None:
    """Show the runs of stores in a browser, live, until Ctrl-C.

    The printed address holds a secret: everyone who has it sees the runs. Only programs
    of this machine can connect, unless --host names another address. None of the runs'
    code is imported here; with --actions the buttons of the page start other commands.
    """
    from flowpregel.plugins.page import app as page  # noqa: PLC0415 - an extra
    from flowpregel.plugins.page.address import (  # noqa: PLC0415 - keeps --help fast
        keep_address,
        kept_address,
    )
    from flowpregel.plugins.page.stores import open_stores  # noqa: PLC0415 - an extra

    _check_flows(flows, actions=actions)
    with ExitStack() as resources:
        first, *others = open_stores(stores, resources, actions=actions, flows=flows)
        path = first.pages.path
        last_address = kept_address(path)
        listener = _listener(host, port, last_address.port)
        port = listener.getsockname()[1]
        keep_address(path, last_address._replace(port=port))
        guard = _guard(host, port, [first, *others], token=last_address.token)
        restart = _command_line(
            [store.public_location for store in (first, *others)],
            host,
            port,
            actions=actions,
            flows=flows,
        )
        server = page.server_of(
            first.pages,
            first.actions,
            guard,
            restart,
            others,
        )
        _print_address([first, *others], host, port, guard.token, opens=opens)
        server.run(sockets=[listener])


ui_command.params.append(TRUST_OPTION)


def _check_flows(
    flows: Sequence[str],
    *,
    actions: bool,
) -> None:
    """Check the values of ``--flow`` without importing the flows.

    Raises:
        ConfigurationError: A value names no flow, or the page has no buttons.
    """
    for flow in flows:
        module, _, name = flow.rpartition(":")
        if not module or not name:
            raise ConfigurationError(
                f"--flow {flow}: write MODULE:FLOW, such as jobs.census:count"
            )
    if flows and not actions:
        raise ConfigurationError(
            "--flow offers a form that starts runs: add --actions, or leave it out"
        )


def _print_address(
    stores: Sequence[ServedStore],
    host: str,
    port: int,
    token: str,
    *,
    opens: bool,
) -> None:
    """Print the address of the page, and open it in the browser if *opens* is True."""
    from flowpregel.plugins.page.guard import LOOPBACK  # noqa: PLC0415 - an extra

    authority = f"[{host}]" if ":" in host else host
    address = f"http://{authority}:{port}/?token={token}"
    paths = ", ".join(store.pages.path for store in stores)
    print_note(f"the runs of {paths}, until Ctrl-C:")
    click.echo(address)
    if host not in LOOPBACK:
        print_note(
            "other machines can reach this page, and the connection is not encrypted"
        )
    if opens:
        webbrowser.open(address)


def _command_line(
    stores: Sequence[str],
    host: str,
    port: int,
    *,
    actions: bool,
    flows: Sequence[str] = (),
) -> str:
    """Return the command line that starts the server again, under the same address.

    Args:
        stores: The stores, without passwords.
        host: The address to listen on.
        port: The port to listen on.
        actions: Whether the page has buttons.
        flows: The flows that the form offers.
    """
    words = ["flowpregel", "ui", *stores]
    if host != "127.0.0.1":
        words += ["--host", host]
    words += ["--port", str(port)]
    if actions:
        words.append("--actions")
    for flow in flows:
        words += ["--flow", flow]
    if has_flag("--trust"):
        words.append("--trust")
    return shlex.join(words)


def _listener(host: str, port: int, usual: int = 0) -> socket.socket:
    """Return a listening socket.

    Args:
        host: The address to listen on.
        port: The port to listen on; 0 means *usual*, or any free port if it is taken.
        usual: The port on which the server listened last, or 0.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if port == 0 and usual != 0:
        with suppress(OSError):
            return socket.create_server((host, usual), family=family)
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host} port {port}: {error}"
        ) from error


def _guard(
    host: str,
    port: int,
    stores: Sequence[ServedStore],
    *,
    token: str,
) -> RequestGuard:
    """Return the guard of a server that listens on *host* and *port*."""
    # The module is imported inside the function, because it needs the packages of the
    # extra ``page``.
    from flowpregel.plugins.page.guard import LOOPBACK, RequestGuard  # noqa: PLC0415

    hosts: tuple[str, ...] = LOOPBACK
    if host not in LOOPBACK:
        hosts = (*LOOPBACK, host, socket.gethostname())
    return RequestGuard(
        hosts=hosts,
        writes=[path for store in stores for path in store.writes],
        cookie=f"flowpregel-{port}",
        token=token,
    )


@thread_command("report")
@click.argument("other", required=False)
@click.option(
    "--output",
    metavar="FILE",
    default="run.html",
    show_default=True,
    help="Where to.",
)
def report_command(
    thread: str,
    other: str | None,
    output: str,
    store: str | None,
) -> None:
    """Write the page of a thread's last run as one HTML file.

    With OTHER, the file has the comparison of the last runs of both threads instead.

    The file needs no server and no network, and runs nothing of the user's. Only you
    may read it: it shows arguments and results.
    """
    # Imported inside the function to keep `flowpregel --help` fast.
    from flowpregel.plugins.page.comparison_report import (  # noqa: PLC0415
        comparison_report,
    )
    from flowpregel.plugins.page.pages import run_report  # noqa: PLC0415

    record: dict[str, Any] = {"thread_id": thread}
    with open_to_read(store) as saver:
        if other is None:
            text = run_report(saver, thread)
        else:
            record["other"] = other
            text = comparison_report(saver, thread, other)
    page = text.encode()
    try:
        with open(output, "wb", opener=partial(os.open, mode=0o600)) as file:
            descriptor = file.fileno()
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                # The mode is set explicitly, because the file may have existed before
                # with another mode.
                os.fchmod(descriptor, 0o600)
            file.write(page)
    except OSError as error:
        raise ConfigurationError(f"--output: {error}") from error
    print_result(
        {**record, "output": output, "bytes": len(page)},
        f"{output}: {size_text(len(page))}",
    )
