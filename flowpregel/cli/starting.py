"""The command ``signature``, which prepares a run."""

from __future__ import annotations

import inspect
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from flowpregel._core.records import Address, Arguments
from flowpregel._inspection.preview import one_line
from flowpregel.checkpoint.base import FLOW, FOLDER
from flowpregel.cli import console, targets
from flowpregel.cli.form_fields import (
    NOT_JSON,
    FormField,
    form_field,
    json_value,
    parameters_of_flow,
)
from flowpregel.errors import ConfigurationError, FlowPregelError

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver
    from flowpregel.pregel.pregel import Pregel

_COLUMNS = ("NAME", "TYPE", "DEFAULT", "RECORDED")
_NUMBERED = re.compile(r"(.*?)-?(\d*)", re.DOTALL)


@console.store_command("signature")
@click.argument("flow", metavar="[MODULE:FLOW]", required=False)
@click.option(
    "--like",
    metavar="RUN",
    help="Show the flow of this run, with the values with which the run began.",
)
@click.option(
    "--folder",
    metavar="FOLDER",
    default="",
    help="The folder of the flow's module; by default the working directory.",
)
def signature_command(
    flow: str | None,
    like: str | None,
    folder: str,
    store: str | None,
) -> None:
    """Show the parameters of a flow, for `run --arguments`.

    With --json the parameters have the kinds of the controls of a form, their choices
    and defaults, as the page uses them.
    """
    if (flow is None) == (like is None):
        raise ConfigurationError("which flow? pass MODULE:FLOW, or --like RUN")
    if like is None:
        loaded = targets.load_flow(str(flow), folder)
        record = _signature_record(loaded, str(flow), folder)
    else:
        record = _signature_of_run(like, store)
    fields: list[FormField] = record.pop("fields")
    rows = [_row_of(field, record["values"]) for field in fields]
    record["fields"] = [field.to_json() for field in fields]
    lines = [f"{record['flow']}: pass {record['option']}"]
    if record["doc"]:
        lines.append(record["doc"])
    console.print_result(record, *lines, console.make_table(_COLUMNS, rows))


def _row_of(field: FormField, values: dict[str, Any]) -> list[str]:
    """Return the cells of a parameter's row in the table."""
    default = "" if field.is_required else one_line(field.default)
    recorded = ""
    if field.name in values:
        recorded = one_line(values[field.name])
    return [field.name, field.type, default, recorded]


def _signature_record(flow: Pregel, name: str, folder: str) -> dict[str, Any]:
    """Return the signature of a flow, with fields that are not converted to JSON yet.

    Args:
        flow: The imported flow.
        name: ``MODULE:FLOW``.
        folder: The folder of the module.
    """
    is_workflow = hasattr(flow, "parameters")
    return {
        "flow": name,
        "folder": folder,
        "name": flow.name,
        "doc": inspect.cleandoc(flow.__doc__ or "") if is_workflow else "",
        "option": "--arguments" if is_workflow else "--input",
        "fields": [form_field(parameter) for parameter in parameters_of_flow(flow)],
        "values": {},
        "id": None,
    }


def _signature_of_run(thread_id: str, store: str | None) -> dict[str, Any]:
    """Return the signature of the flow of a run, with the recorded values."""
    with targets.open_to_read(store) as saver:
        saved = targets.newest_checkpoint(saver, thread_id)
        new_id = unused_id(saver, thread_id)
    # The flow is imported only after the store is closed, because the flow's program
    # may open the same store for writing.
    flow = targets.recorded_flow(saved)
    metadata = saved.checkpoint.metadata
    folder = str(metadata.get(FOLDER, ""))
    record = _signature_record(flow, str(metadata[FLOW]), folder)
    record["id"] = new_id
    # A value whose class is gone cannot be shown.
    with suppress(FlowPregelError), targets.open_to_read(store, flow=True) as saver:
        record["values"] = _recorded_values(flow, saver, thread_id)
    return record


def _recorded_values(
    flow: Pregel,
    saver: DurableSaver,
    thread_id: str,
) -> dict[str, Any]:
    """Return the arguments with which a run began, as JSON by name. Those that JSON
    cannot express are left out.
    """
    # Imported here to keep `flowpregel --help` fast.
    from flowpregel.pregel.recorded_input import recorded_input  # noqa: PLC0415

    saved = saver.load(Address(thread_id))
    if saved is None:
        return {}
    values: dict[str, Any] = {}
    for run_input in recorded_input(flow.definition.program, saver, saved):
        for name, value in _by_name(flow, run_input).items():
            form_value = json_value(value)
            if form_value is not NOT_JSON:
                values[name] = form_value
    return values


def _by_name(flow: Any, run_input: Any) -> dict[str, Any]:
    """Return the values of an input by the names of a flow's parameters."""
    if not hasattr(flow, "parameters"):
        value = json_value(run_input)
        return value if isinstance(value, dict) else {}
    arguments = flow_arguments(flow, run_input)
    signature: inspect.Signature = flow.parameters.signature
    return dict(signature.bind(*arguments.args, **arguments.kwargs).arguments)


def unused_id(saver: DurableSaver, thread_id: str) -> str:
    """Return an id for a new run: *thread_id* with a number at the end, for which the
    store has no run yet.

    Args:
        saver: The open store.
        thread_id: The id of the run.
    """
    stem = thread_id
    number = 2
    match = _NUMBERED.fullmatch(thread_id)
    if match is not None and match[2]:
        stem = match[1]
        number = int(match[2]) + 1
    while saver.load(Address(f"{stem}-{number}")) is not None:
        number += 1
    return f"{stem}-{number}"


def flow_arguments(flow: Any, run_input: Any) -> Arguments:
    """Return the arguments of a workflow's function for an input."""
    arguments = flow.parameters.arguments_of(run_input)
    if isinstance(arguments, Arguments):
        return arguments
    return Arguments((arguments,), {})
