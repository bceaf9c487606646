"""The forms in which a run's events reach their reader."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
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

    def __getitem__(self, key: str) -> Any:
        """Return what a plain output has under *key*, for programs that were written for one."""
        if key == INTERRUPT:
            return self.interrupts
        value = self.value
        return value[key] if isinstance(value, Mapping) else getattr(value, key)

    def __contains__(self, key: object) -> bool:
        """Return whether a plain output would have *key*."""
        if key == INTERRUPT:
            return bool(self.interrupts)
        value = self.value
        return key in value if isinstance(value, Mapping) else hasattr(value, str(key))


def wrap(item: Item, request: Request, version: str) -> Any:
    """Return an event in the form that was asked for."""
    namespace, mode, payload = item
    if version == "v2":
        part = {"type": mode, "ns": namespace, "data": payload}
        return _values_part(part, request) if mode == "values" else part
    if request.subgraphs:
        return (namespace, mode, payload) if request.labelled else (namespace, payload)
    return (mode, payload) if request.labelled else payload


def _values_part(part: dict[str, Any], request: Request) -> dict[str, Any]:
    """Return *part* with its questions apart, and its values in the form of their schema."""
    values, interrupts = part["data"], ()
    if isinstance(values, dict) and INTERRUPT in values:
        values = dict(values)
        interrupts = values.pop(INTERRUPT)
    if not part["ns"]:
        values = request.shaped(values)
    return {**part, "data": values, "interrupts": interrupts}


def print_item(item: Item) -> None:
    """Print an event, for ``print_mode`` and ``debug``."""
    namespace, mode, payload = item
    where = f" [{'|'.join(namespace)}]" if namespace else ""
    sys.stdout.write(f"[{mode}]{where} {payload!r}\n")
