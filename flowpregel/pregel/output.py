"""The forms in which a run's events reach their reader."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flowpregel._core.commands import Interrupt
from flowpregel._core.records import INTERRUPT
from flowpregel.pregel.request import Request

Item = tuple[tuple[str, ...], str, Any]


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """What ``invoke(version="v2")`` returns."""

    value: Any
    """What the output channels hold."""
    interrupts: tuple[Interrupt, ...] = ()
    """What waits for an answer; empty if the run is done."""

    def __iter__(self) -> Iterator[Any]:
        """Yield value and interrupts, for unpacking."""
        return iter((self.value, self.interrupts))


def wrap(item: Item, request: Request, version: str) -> Any:
    """Return an event in the form that was asked for."""
    namespace, mode, payload = item
    if version == "v2":
        part = {"type": mode, "ns": namespace, "data": payload}
        if mode == "values":
            interrupts = payload.get(INTERRUPT, ()) if isinstance(payload, dict) else ()
            if interrupts:
                part["data"] = {key: val for key, val in payload.items() if key != INTERRUPT}
            part["interrupts"] = interrupts
        return part
    if request.subgraphs:
        return (namespace, mode, payload) if request.labelled else (namespace, payload)
    return (mode, payload) if request.labelled else payload


def print_item(item: Item) -> None:
    """Print an event, for ``print_mode`` and ``debug``."""
    namespace, mode, payload = item
    where = f" [{'|'.join(namespace)}]" if namespace else ""
    sys.stdout.write(f"[{mode}]{where} {payload!r}\n")
