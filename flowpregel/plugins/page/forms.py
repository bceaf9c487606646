"""The form that starts a run: its fields, and the command that a press starts.

::

    browser -- POST api/form  --> `flowpregel signature`, a process: imports the flow
            -- POST api/start --> `flowpregel run` or `enqueue`, a process of its own

The flow is always that of a run in the store: a browser cannot name a module to import.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any, Final

from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.errors import ConfigurationError
from flowpregel.plugins.page.actions import Actions

_TIMEOUT: Final = 60.0
"""Seconds that a flow's module may take to be imported."""
_OPTIONS: Final = ("--arguments", "--input")
_COMMANDS: Final = ("run", "enqueue")


class RunForms:
    """The forms for new runs of the flows of a store.

    Args:
        saver: The saver of the open store.
        actions: The starter of commands.
    """

    def __init__(self, saver: DurableSaver, actions: Actions) -> None:
        self._saver = saver
        self._actions = actions

    async def form(self, thread: str) -> dict[str, Any]:
        """Return the fields of the form for the flow of a run, with the values with
        which the run began.

        Args:
            thread: The id of the run.

        Raises:
            ConfigurationError: The flow cannot be imported, or the run recorded none.
        """
        self._flow_of(thread)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "flowpregel.cli",
            "signature",
            "--json",
            f"--like={thread}",
            *self._actions.options,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), _TIMEOUT)
        except TimeoutError as error:
            raise ConfigurationError(
                f"the flow was not imported within {_TIMEOUT:.0f} seconds"
            ) from error
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        return {**_last_json(output), "store": self._saver.path}

    def start(
        self,
        thread: str,
        *,
        action: str,
        name: Any,
        option: str,
        values: str,
    ) -> int:
        """Start a run of the flow of another run, or enqueue it, and return the number
        of the command.

        Args:
            thread: The id of the other run.
            action: Either ``run`` or ``enqueue``.
            name: The id of the new run.
            option: The option of the command that takes the values.
            values: The values, as JSON.

        Raises:
            ConfigurationError: One of these is wrong.
        """
        flow, folder = self._flow_of(thread)
        is_known = action in _COMMANDS and option in _OPTIONS
        has_name = isinstance(name, str) and name.strip()
        if not is_known or not has_name:
            raise ConfigurationError("the request to start a run is incomplete")
        # A text that begins with an @ would name a file.
        document = json.dumps(json.loads(values))
        words = [
            action,
            f"{option}={document}",
            f"--id={name}",
        ]
        if action == "run":
            words.append("--quiet")
        if folder:
            words.append(f"--folder={folder}")
        return self._actions.launch(
            action,
            name,
            words,
            [flow],
        )

    def _flow_of(self, thread: str) -> tuple[str, str]:
        """Return the flow that a run recorded, and the folder of the module."""
        glance = self._saver.glance(thread)
        if glance is None:
            raise ConfigurationError(f"the store has no thread {thread!r}")
        metadata = glance.saved.checkpoint.metadata
        flow = metadata.get("flow")
        folder = metadata.get("flow_folder", "")
        if not isinstance(flow, str):
            raise ConfigurationError(f"the run {thread!r} does not record its flow")
        return flow, str(folder)


def _last_json(output: bytes) -> dict[str, Any]:
    """Return the answer of a command, which is in the last line of the output.

    Raises:
        ConfigurationError: The command has failed.
    """
    answer: Any = None
    lines = output.splitlines()
    if lines:
        with suppress(ValueError):
            answer = json.loads(lines[-1])
    if not isinstance(answer, dict):
        raise ConfigurationError("the flow cannot be imported")
    if "error" in answer:
        message = str(answer["error"]["message"])
        raise ConfigurationError(message)
    return answer
