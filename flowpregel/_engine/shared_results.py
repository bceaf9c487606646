"""The results that runs share. While a run computes a result, its claim on the result's
key makes other runs wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from flowpregel._core.effects import BUSY
from flowpregel.cache.base import BaseCache, FullKey
from flowpregel.errors import ConfigurationError
from flowpregel.executors.handles import stored_handles


def without_lost_values(results: Mapping[FullKey, Any]) -> dict[FullKey, Any]:
    """Return cached results without those that must be computed again, because they
    have the handle of a stored value (see `flowpregel.stored`) whose file is lost.
    """
    locations: dict[FullKey, set[str]] = {}
    for key, result in results.items():
        if files := {handle.location for handle in stored_handles(result)}:
            locations[key] = files
    if not locations:
        return {**results}
    # Most runs have no handles, so the module is imported only here.
    from flowpregel.executors.value_files import lost_files  # noqa: PLC0415

    lost = lost_files(set().union(*locations.values()))
    return {
        key: result
        for key, result in results.items()
        if lost.isdisjoint(locations.get(key, ()))
    }


class SharedResults:
    """The cache of a run, and the run's claims on results that it computes. If the
    cache lacks a key, one run claims the key and computes the result, and all other
    runs wait for it.

    Args:
        cache: The cache, or None if the run has none.
    """

    def __init__(self, cache: BaseCache | None) -> None:
        self._cache = cache
        self._claims: dict[FullKey, ExitStack] = {}
        """The claims of the run, each with the `ExitStack` that releases the claim."""

    def look(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Return the results under *keys*, with `BUSY` for a key whose result another
        run computes. Claim each key that has no result and is not busy.

        Raises:
            ConfigurationError: There is no cache.
        """
        if self._cache is None:
            raise ConfigurationError(
                f"{keys[0][0][2]!r} shares its results, but the run has nowhere to "
                "store them: give the entrypoint or the graph a checkpointer, or "
                'cache="results.lmdb"'
            )
        values = without_lost_values(self._cache.get(keys))
        missing = [key for key in keys if key not in values]
        unclaimed = [key for key in missing if key not in self._claims]
        try:
            busy = {key: BUSY for key in missing if not self._claim(key)}
            if missing:
                # The cache is read again, because another run may have shared a result
                # just before the claim.
                values |= without_lost_values(self._cache.get(missing))
        except BaseException:
            self._release(unclaimed)
            raise
        self._release([*values])
        return busy | values

    def share(self, entries: Mapping[FullKey, tuple[Any, float | None] | None]) -> None:
        """Store the results in *entries*, each with the seconds until it expires, and
        release the claims on their keys. If an entry is None, only the claim is
        released.
        """
        results = {key: entry for key, entry in entries.items() if entry is not None}
        try:
            if self._cache is not None:
                self._cache.set(results)
        finally:
            self._release([*entries])

    def close(self) -> None:
        """Release the claims of this run on shared results."""
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
