"""The form that starts a run: its fields, and the command that its button starts.

::

    browser -- POST api/form  --> `flowpregel signature`, a process: imports the flow
            -- POST api/start --> `flowpregel run` or `enqueue`, a process of its own

The flow is that of a run in the store, or one that ``--flow`` has offered: a browser
cannot name a module to import.
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
"""The maximum number of seconds for the import of a flow's module."""
_OPTIONS: Final = ("--arguments", "--input")
_COMMANDS: Final = ("run", "enqueue")


class RunForms:
    """The forms for new runs of the flows of a store.

    Args:
        saver: The saver of the open store.
        actions: The object that starts commands, which knows the offered flows.
    """

    def __init__(self, saver: DurableSaver, actions: Actions) -> None:
        self._saver = saver
        self._actions = actions

    async def form(
        self,
        thread: str = "",
        flow: str = "",
    ) -> dict[str, Any]:
        """Return the fields of the form for a flow. If a run is passed, the fields have
        the values with which the run began.

        Args:
            thread: The id of the run, or an empty string.
            flow: The offered flow, if there is no run.

        Raises:
            ConfigurationError: The flow cannot be imported, is not offered, or the run
                recorded none.
        """
        flow_name, _ = self._flow_of(thread, flow)
        source = f"--like={thread}"
        words: list[str] = []
        if not thread:
            source = "--"
            words.append(flow_name)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "flowpregel.cli",
            "signature",
            "--json",
            *self._actions.options,
            source,
            *words,
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
        signature = _last_json(output)
        run_id = signature["id"] or self._unused_id(signature["name"])
        return {
            **signature,
            "id": run_id,
            "store": self._saver.path,
        }

    def _unused_id(self, name: str) -> str:
        """Return an unused id for a run of a flow: the name of the flow, with a number
        if a run has this id already.
        """
        run_id = name
        number = 1
        while self._saver.glance(run_id) is not None:
            number += 1
            run_id = f"{name}-{number}"
        return run_id

    def start(
        self,
        thread: str = "",
        *,
        flow: str = "",
        action: str,
        name: Any,
        option: str,
        values: str,
    ) -> int:
        """Start a run of a flow, or enqueue it, and return the number of the command.

        Args:
            thread: The id of another run of the flow, or an empty string.
            flow: The offered flow, if there is no such run.
            action: Either ``run`` or ``enqueue``.
            name: The id of the new run.
            option: The option with which the command takes the values: ``--input`` or
                ``--arguments``.
            values: The values, as JSON.

        Raises:
            ConfigurationError: One of these arguments is wrong.
        """
        flow_name, folder = self._flow_of(thread, flow)
        is_known = action in _COMMANDS and option in _OPTIONS
        has_name = isinstance(name, str) and name.strip()
        if not is_known or not has_name:
            raise ConfigurationError("the request to start a run is incomplete")
        # The values are parsed and written as JSON again, so that the string cannot
        # begin with an @, which would make the command read a file.
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
            [flow_name],
        )

    def _flow_of(
        self,
        thread: str,
        flow: str,
    ) -> tuple[str, str]:
        """Return the flow that a run has recorded, or an offered one, and the folder of
        the flow's module.

        Raises:
            ConfigurationError: There is no such run or no such offer, or both are
                named.
        """
        if flow:
            if thread or flow not in self._actions.flows:
                raise ConfigurationError(
                    f"the page does not offer {flow!r}: start it with --flow"
                )
            return flow, ""
        glance = self._saver.glance(thread)
        if glance is None:
            raise ConfigurationError(f"the store has no thread {thread!r}")
        metadata = glance.saved.checkpoint.metadata
        recorded = metadata.get("flow")
        folder = metadata.get("flow_folder", "")
        if not isinstance(recorded, str):
            raise ConfigurationError(f"the run {thread!r} does not record its flow")
        return recorded, str(folder)


def _last_json(output: bytes) -> dict[str, Any]:
    """Return the answer of a command: the JSON that it has printed in the last line.

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
