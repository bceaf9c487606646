"""The cache of one run: results that other runs share, and those that this one is computing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from flowpregel._core.effects import BUSY
from flowpregel.cache.base import BaseCache, FullKey
from flowpregel.errors import ConfigurationError


class SharedResults:
    """What is not in the cache, one run computes: it claims the key, and the others wait.

    Args:
        cache: The cache; None: there is none.
    """

    def __init__(self, cache: BaseCache | None) -> None:
        self._cache = cache
        self._claims: dict[FullKey, ExitStack] = {}

    def look(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Return the values of *keys*, `BUSY` for one that another computes.

        Raises:
            ConfigurationError: There is no cache.
        """
        if self._cache is None:
            raise ConfigurationError(
                f"{keys[0][0][2]!r} shares its results, and the run has nowhere to keep "
                'them: give the entrypoint or the graph a checkpointer, or cache="results.lmdb"'
            )
        found = self._cache.get(keys)
        missing = [key for key in keys if key not in found]
        busy = {key: BUSY for key in missing if not self._claim(key)}
        if missing:
            # Again: before the claim, another was perhaps about to share it.
            found |= self._cache.get(missing)
            self._release([*found])
        return busy | found

    def share(self, entries: Mapping[FullKey, tuple[Any, float | None] | None]) -> None:
        """Keep values, each with the seconds it may be used; None: there is none."""
        kept = {key: entry for key, entry in entries.items() if entry is not None}
        try:
            if self._cache is not None:
                self._cache.set(kept)
        finally:
            self._release([*entries])

    def close(self) -> None:
        """Leave what was being computed to others."""
        self._release([*self._claims])

    def _claim(self, key: FullKey) -> bool:
        assert self._cache is not None
        if key in self._claims:
            return False
        with ExitStack() as claim:
            if claim.enter_context(self._cache.claim(key)):
                self._claims[key] = claim.pop_all()
                return True
        return False

    def _release(self, keys: Sequence[FullKey]) -> None:
        for key in keys:
            if key in self._claims:
                self._claims.pop(key).close()
