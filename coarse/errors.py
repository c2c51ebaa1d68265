# Pure: no MPI, threads, clock or environment.
"""Errors that a user may catch; every message says what was wanted, what came, where, and the remedy."""


class CoarseError(Exception):
    """Base of every error that coarse raises on purpose."""


class ConfigError(CoarseError, ValueError):
    """Configuration or partition table that cannot work."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        """Setting at fault, if there is one."""


class NotInitializedError(CoarseError, RuntimeError):
    """Call that needs `coarse.init()` before it, or that came after `coarse.shutdown()`."""


class MismatchError(CoarseError, ValueError, RuntimeError):
    """Shapes, dtypes or operations of one key that differ between ranks."""


class InFlightError(CoarseError, RuntimeError):
    """Name pushed again before the result of its last push was taken."""


class CapacityError(CoarseError, MemoryError):
    """Tensor larger than its device, or devices larger than the available memory."""


class OutOfDeviceMemoryError(CapacityError):
    """Accelerator whose memory, real or emulated, cannot hold what training needs."""

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
        """Worker (`coarse.rank()`) of the accelerator, if known."""
        self.kind = kind
        """Purpose of the wanted memory."""
        self.wanted_bytes = wanted_bytes
        self.used_by_kind = used_by_kind or {}
        """Bytes in use at that time, by kind."""
        self.capacity_bytes = capacity_bytes


class LentMemoryError(CoarseError, RuntimeError):
    """Tensor's memory that a device could not read or write, though its worker had allowed it."""

    def __init__(self, message: str, *, has_ended: bool = False) -> None:
        super().__init__(message)
        self.has_ended = has_ended
        """True if the worker's process is gone."""


class NotKeptError(CoarseError, RuntimeError):
    """Pull of a result that lies in the tensor of its push_pull, and in no device's memory."""


class StallError(CoarseError, TimeoutError):
    """Wait that ran out of time because some workers never pushed."""

    def __init__(self, message: str, *, missing: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing
        """Worker ranks (`coarse.rank()`) that were waited for."""


class DeadRankError(CoarseError, RuntimeError):
    """Worker or memory device whose process ended while it was needed."""

    def __init__(self, message: str, *, rank: int) -> None:
        super().__init__(message)
        self.rank = rank
        """World rank of the process that died."""


class JoinedError(CoarseError, RuntimeError):
    """Call that needs the values of a worker that has called `join`."""

    def __init__(self, message: str, *, ranks: tuple[int, ...]) -> None:
        super().__init__(message)
        self.ranks = ranks
        """Workers (`coarse.rank()`) whose values were wanted."""


class GradientRangeError(CoarseError, ArithmeticError):
    """Gradient that a sum of mode odc cannot hold: NaN, an infinity, or above its window."""


class SnapshotError(CoarseError, RuntimeError):
    """Snapshot that could not be taken or written."""


class CheckpointError(CoarseError, ValueError):
    """Checkpoint file that is torn, corrupt or of another job."""


class StorageError(CoarseError, OSError):
    """Folder of optimizer states that cannot be used: full, read-only, torn, locked, or another model's."""


class GpuError(CoarseError, RuntimeError):
    """Request that a GPU, or CUDA, refused."""


class OverrunError(CoarseError, RuntimeError):
    """Emulated run without a result, since it submitted transfers after their emulated times had passed."""


class FabricError(CoarseError, RuntimeError):
    """End, before the run's, of the process that says when emulated transfers arrive."""

    def __init__(self, message: str, *, status: int | None) -> None:
        super().__init__(message)
        self.status = status
        """Exit status of the process, -n if signal n ended it; None if it could not be read."""


class ClusterError(CoarseError, OSError):
    """Cluster in a box that this machine, or this user, cannot make."""


class MeasurementError(CoarseError, RuntimeError):
    """Measurement that this machine's processor or kernel does not allow."""


class UnsupportedVersionError(CoarseError, RuntimeError):
    """Library whose version lacks something that coarse uses."""


class UnsupportedError(CoarseError, NotImplementedError):
    """Method or option of a library that coarse replaces but does not carry out."""


class CoherenceError(CoarseError, RuntimeError):
    """Use of a pool without coherence that lacks a flush or an invalidate, found by its coherence checker."""
