"""Whose run is kept under an id: the names of a workflow, and where it is imported from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowpregel.checkpoint.base import FLOW, FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """What `Flow.run` asks for: that a run of this input has been run once.

    Example:
        >>> Once(flow="study:flow", adopts=("old",)).owns("study:old")
        True
    """

    flow: str
    """The module and the name of the workflow."""
    folder: str = ""
    """Where its module is imported from; empty: not known."""
    adopts: tuple[str, ...] = ()
    """Names that it had before."""
    adopt: bool = False
    """Whether the run goes on with the input it is now given, if that is another one."""

    def owns(self, recorded: str) -> bool:
        """Return whether a run that was recorded as one of *recorded* is one of this workflow."""
        # `python pkg/study.py` knows the module as `study`, everyone else as `pkg.study`.
        same = f".{self.flow}".endswith(f".{recorded}") or recorded.endswith(f".{self.flow}")
        return same or recorded in self.adopts or node_of(recorded) in self.adopts


def labels_of(flow: str, folder: str) -> dict[str, str]:
    """Return what metadata keep of whose run it is: how the flow is imported."""
    return {FLOW: flow, **({FOLDER: folder} if folder else {})}


def folder_of(module: str, file: str | None) -> str:
    """Return the folder that *module* is imported from, if it has a *file*; else nothing.

    Example:
        >>> folder_of("pkg.study", "/jobs/pkg/study.py")
        '/jobs'
    """
    if file is None:
        return ""
    parents = Path(file).resolve().parents
    depth = module.count(".") + (Path(file).stem == "__init__")
    return str(parents[min(depth, len(parents) - 1)])


def node_of(flow: str) -> str:
    """Return the name of the node that is the body of a workflow: the last part of its name."""
    return flow.rpartition(":")[2].rpartition(".")[2]
