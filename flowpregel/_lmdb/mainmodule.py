"""Classes and functions of ``__main__``, found again in another program.

A pickle refers to them as ``__main__.Name``, which in the next program may be
another module: the same file imported under its real name, or a tool that
looks at the store. So the main module's real name and file are kept beside the
pickle, and the name is looked up there.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import pickle
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any

from flowpregel.errors import ValueEncodingError

_ALIAS = "__flowpregel_main_{}__"


def describe() -> bytes:
    """Return the real name and the file of this program's main module."""
    return _describe(id(sys.modules.get("__main__")))


@lru_cache(maxsize=4)
def _describe(_module: int) -> bytes:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else ""
    file = getattr(main, "__file__", None)
    path = os.path.realpath(file) if file else ""
    return f"{name}\0{path}".encode("utf-8", "surrogatepass")


def loads(data: bytes, described: bytes, buffers: list[Any] | None) -> Any:
    """Return the value of a pickle that was made where ``__main__`` was as *described*."""
    return _Unpickler(io.BytesIO(data), described, buffers).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, described: bytes, buffers: list[Any] | None) -> None:
        super().__init__(file, buffers=buffers)
        self._described = described

    def find_class(self, module: str, name: str) -> Any:
        if module != "__main__":
            return super().find_class(module, name)
        found: Any = _main_module(self._described)
        for part in name.split("."):
            found = getattr(found, part)
        return found


def _main_module(described: bytes) -> Any:
    if described == describe():
        return sys.modules["__main__"]
    name, _, path = described.decode("utf-8", "surrogatepass").partition("\0")
    main = sys.modules["__main__"]
    if not path or _is_file_of(main, path):
        return main
    for module in list(sys.modules.values()):
        if _is_file_of(module, path):
            return module
    return _imported(name, path)


def _is_file_of(module: Any, path: str) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and os.path.realpath(file) == path


def _imported(name: str, path: str) -> Any:
    if name:
        # It may not be on this program's path, or not any more: its file may be there.
        with suppress(ImportError):
            return importlib.import_module(name)
    if not os.path.exists(path):
        raise ValueEncodingError(
            f"a value refers to a class of the program {path}, which is not there any more; "
            "put the class into a module that both programs import"
        )
    # As multiprocessing does for its workers: under another name, so that
    # what the file guards with `if __name__ == "__main__"` does not run.
    alias = _ALIAS.format(os.path.basename(path).removesuffix(".py"))
    spec = importlib.util.spec_from_file_location(alias, path)
    if spec is None or spec.loader is None:
        raise ValueEncodingError(f"a value refers to the program {path}, which cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[alias]
        raise
    return module
