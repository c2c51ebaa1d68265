"""What a user may catch; every message says what was wanted, what came, where, and the remedy."""


class CoarseError(Exception):
    """The base of every error that coarse raises on purpose."""


class ConfigError(CoarseError, ValueError):
    """A configuration or partition table that cannot work."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        """The setting at fault, where there is one."""


class NotInitializedError(CoarseError, RuntimeError):
    """A call that needs `coarse.init()` before it, or that came after `coarse.shutdown()`."""


class MismatchError(CoarseError, ValueError):
    """Shapes, dtypes or operations of one key that differ between ranks."""


class InFlightError(CoarseError, RuntimeError):
    """A name pushed again before the result of its last push was taken."""


class CapacityError(CoarseError, MemoryError):
    """A tensor larger than its device, or devices larger than the memory there is."""


class StallError(CoarseError, TimeoutError):
    """A wait that ran out of time because some workers never pushed."""

    def __init__(self, message: str, *, missing: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing
        """Worker ranks (`coarse.rank()`) that were waited for."""


class DeadRankError(CoarseError, RuntimeError):
    """A worker or memory device whose process ended while it was needed."""

    def __init__(self, message: str, *, rank: int) -> None:
        super().__init__(message)
        self.rank = rank
        """World rank of the process that died."""


class SnapshotError(CoarseError, RuntimeError):
    """A snapshot that could not be taken or written."""


class CheckpointError(CoarseError, ValueError):
    """A checkpoint file that is torn, corrupt or of another job."""


class OverrunError(CoarseError, RuntimeError):
    """An emulated run whose links took longer than their model says, because this machine could not keep up."""
