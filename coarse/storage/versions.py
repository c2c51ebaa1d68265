"""Which version of a key a device holds."""

from collections import deque


class VersionTable:
    """key -> version: 0 before the first result, then one more with each result (COARSE III-D)."""

    def __init__(self, *, num_remembered: int = 16) -> None:
        self._versions: dict[int, int] = {}
        self._recent: deque[tuple[int, int]] = deque(maxlen=num_remembered)

    def on_result(self, key: int) -> int:
        """The new version of `key`, whose next result has just been stored."""
        version = self.current(key) + 1
        self._versions[key] = version
        self._recent.append((key, version))
        return version

    def current(self, key: int) -> int:
        """The version of `key`; 0 where no result has come yet."""
        return self._versions.get(key, 0)

    def keys(self) -> tuple[int, ...]:
        """Every key with a result, in the order of the first ones."""
        return tuple(self._versions)

    def recent(self) -> tuple[tuple[int, int], ...]:
        """The last results of all keys as (key, version), oldest first."""
        return tuple(self._recent)

    def describe(self, key: int) -> str:
        """What an error says of `key`: its version, and what this device stored last."""
        last = ", ".join(f"key {other} version {version}" for other, version in self._recent)
        return f"key {key} is at version {self.current(key)}; last stored here: {last or 'nothing'}"
