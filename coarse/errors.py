# Pure: no MPI, threads, clock or environment.
"""Errors that a user may catch; every message says what was wanted, what came, where, and the remedy."""


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


class MismatchError(CoarseError, ValueError, RuntimeError):
    """Shapes, dtypes or operations of one key that differ between ranks."""


class InFlightError(CoarseError, RuntimeError):
    """A name pushed again before the result of its last push was taken."""


class CapacityError(CoarseError, MemoryError):
    """A tensor larger than its device, or devices larger than the memory there is."""


class OutOfDeviceMemoryError(CapacityError):
    """An accelerator whose memory, real or emulated, cannot hold what training needs."""

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        kind: str = "",
        wanted_bytes: int = 0,
        used_by_kind: dict[str, int] | None = None,
        capacity_bytes: int | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        """The worker (`coarse.rank()`) whose accelerator it is, where it is known."""
        self.kind = kind
        """Purpose of the memory."""
        self.wanted_bytes = wanted_bytes
        self.used_by_kind = used_by_kind or {}
        """Bytes in use when it was wanted."""
        self.capacity_bytes = capacity_bytes


class LentMemoryError(CoarseError, RuntimeError):
    """A tensor's memory that a device could not read or write, as its worker had said that it may."""

    def __init__(self, message: str, *, has_ended: bool = False) -> None:
        super().__init__(message)
        self.has_ended = has_ended
        """True if the worker's process is gone."""


class NotKeptError(CoarseError, RuntimeError):
    """A `pull` of a result that lies in the tensor of its push_pull, and in no device's memory."""


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


class JoinedError(CoarseError, RuntimeError):
    """A call that needs the values of a worker that has called `join`."""

    def __init__(self, message: str, *, ranks: tuple[int, ...]) -> None:
        super().__init__(message)
        self.ranks = ranks
        """Workers (`coarse.rank()`) whose values were wanted."""


class GradientRangeError(CoarseError, ArithmeticError):
    """A gradient that a sum of mode odc cannot hold: NaN, an infinity, or above its window."""


class SnapshotError(CoarseError, RuntimeError):
    """A snapshot that could not be taken or written."""


class CheckpointError(CoarseError, ValueError):
    """A checkpoint file that is torn, corrupt or of another job."""


class StorageError(CoarseError, OSError):
    """A folder of optimizer states that cannot be used: full, read-only, torn, locked, or another model's."""


class GpuError(CoarseError, RuntimeError):
    """A GPU, or CUDA, that refused what coarse asked of it."""


class OverrunError(CoarseError, RuntimeError):
    """An emulated run whose transfers were submitted after their emulated times had passed: it has no result."""


class FabricError(CoarseError, RuntimeError):
    """The process that says when emulated transfers arrive ended before the run did."""

    def __init__(self, message: str, *, status: int | None) -> None:
        super().__init__(message)
        self.status = status
        """Its exit status, -n where signal n ended it; None where that could not be read."""


class ClusterError(CoarseError, OSError):
    """A cluster in a box that this machine, or this user, cannot make."""


class MeasurementError(CoarseError, RuntimeError):
    """A measurement that this machine's processor or kernel does not allow."""


class UnsupportedVersionError(CoarseError, RuntimeError):
    """A library whose version lacks something that coarse uses of it."""


class UnsupportedError(CoarseError, NotImplementedError):
    """A method or option of a library that coarse stands in for but does not carry out."""


class CoherenceError(CoarseError, RuntimeError):
    """A use of a pool without coherence that lacks a flush or an invalidate, found by its sanitizer."""
