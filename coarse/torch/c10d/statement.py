# Pure: no MPI, threads, clock or environment.
"""Statement of each rank of a group about its call, and the error where statements differ."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coarse.protocol.joint import CollectiveKind


@dataclass(frozen=True, kw_only=True)
class CallStatement:
    """Call of one rank; all ranks of the group must make the same."""

    kind: CollectiveKind
    element: int = -1
    """Element type, as an index into `ELEMENTS`; -1 where there is none."""
    op: int = -1
    """Number of the reduction, -1 where there is none."""
    root: int = -1
    nbytes: int = 0
    """Bytes that each rank contributes."""
    split: int = 0
    """Digest of the split of the bytes among ranks, where that may differ from rank to rank."""

    def as_row(self) -> npt.NDArray[np.int64]:
        """Return (NUM_FIELDS,) int64, for the wire."""
        return np.array([self.kind, self.element, self.op, self.root, self.nbytes, self.split], np.int64)


NUM_FIELDS = 6

# fmt: off
ELEMENTS = (
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
)
# fmt: on
"""Element types by their numbers on the wire."""


def element_number(label: str) -> int:
    """Return the number of an element type such as "float32"; -1 for one that is not known by name."""
    return ELEMENTS.index(label) if label in ELEMENTS else -1


def disagreement(rows: npt.NDArray[np.int64], rank: int) -> str | None:
    """Return the reason, seen by `rank`, why calls of a group's ranks differ; None where they are equal.

    Args:
        rows: (p, NUM_FIELDS) int64, row r the statement of the group's rank r.
        rank: rank from whose view the reason is told.
    """
    differing = np.flatnonzero((rows != rows[rank]).any(axis=1))
    if not differing.size:
        return None
    other = int(differing[0])
    return f"it called {_told(rows[rank])}, but rank {other} called {_told(rows[other])}"


def _told(row: npt.NDArray[Any]) -> str:
    kind, element, op, root, nbytes, split = (int(value) for value in row)
    told = CollectiveKind(kind).label if kind in set(CollectiveKind) else f"collective {kind}"
    details = [f"{nbytes} bytes"] if nbytes or kind != CollectiveKind.BARRIER else []
    if element >= 0:
        details.append(f"of {ELEMENTS[element]}")
    if op >= 0:
        details.append(f"reduction {op}")
    if root >= 0:
        details.append(f"root {root}")
    if split:
        details.append(f"split {split:#x}")
    return f"{told} ({', '.join(details)})" if details else told
