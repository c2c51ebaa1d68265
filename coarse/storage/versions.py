# Pure: no MPI, threads, clock or environment.
"""Versions of keys that a device holds."""


class VersionTable:
    """Table of key -> version: 0 before the first result, then one more with each (COARSE III-D)."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}
        self._num_forgotten = 0

    def on_result(self, key: int) -> int:
        """Return the new version of `key`, whose next result has just been stored."""
        version = self.current(key) + 1
        self._versions[key] = version
        return version

    def deregister(self, key: int) -> None:
        """Forget a key that is not used any more; its results still count."""
        self._num_forgotten += self._versions.pop(key, 0)

    def current(self, key: int) -> int:
        """Return the version of `key`; 0 where no result has come yet."""
        return self._versions.get(key, 0)

    def keys(self) -> tuple[int, ...]:
        """Return every key with a result, in the order of the first ones."""
        return tuple(self._versions)

    @property
    def num_results(self) -> int:
        """Number of results of all keys together, with those deregistered."""
        return self._num_forgotten + sum(self._versions.values())
