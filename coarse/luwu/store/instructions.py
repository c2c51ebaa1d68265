# Pure: no MPI, threads, clock or environment.
"""Instructions of a PagedOptimizer; its driver carries each out, and answers by `on_done` with it.

Buffers are numbered: each has room for a chunk's image, and behind it for a float32 sum of its gradients.
"""

from typing import NamedTuple

from coarse.luwu.store.image import Stamp
from coarse.luwu.store.operations import StepSettings

MEMORY = -1
"""Number in place of a buffer's: a unit's sums stay in memory from the push to the update."""


class Place(NamedTuple):
    """Place of a chunk's image: the slot, and the stamp that its header must have."""

    slot: int
    stamp: Stamp


class ReadPulled(NamedTuple):
    """Instruction to read a chunk's pulled parameters into the window, for its chunk of this number."""

    number: int
    unit: int
    chunk: int
    at: Place
    ticket: int
    """Number that tells it from another read of the same number."""


class Offer(NamedTuple):
    """Notice that a chunk of the window may go to the workers; it needs no answer."""

    number: int
    unit: int
    chunk: int


class ReadImage(NamedTuple):
    """Instruction to read the parts of a chunk that an update needs into a buffer."""

    buffer: int
    unit: int
    chunk: int
    at: Place


class ClearImage(NamedTuple):
    """Instruction to fill a buffer's image with zeros, for a chunk that was never written."""

    buffer: int
    unit: int
    chunk: int


class ReadSum(NamedTuple):
    """Instruction to read a chunk's sum of gradients from the disk into a buffer."""

    buffer: int
    unit: int
    chunk: int


class AddSum(NamedTuple):
    """Instruction to add the workers' pushes of a chunk to its sum, or to store them if they are first.

    It is answered by `on_added`, with the sum's square if wanted. The pushed values may be given back then.
    """

    push: int
    """Number of the push, from 0."""
    unit: int
    chunk: int
    buffer: int
    """Number of a buffer, or MEMORY."""
    is_first: bool
    wants_square: bool


class WriteSum(NamedTuple):
    """Instruction to write the sum in a buffer to the disk."""

    buffer: int
    unit: int
    chunk: int


class SquareSum(NamedTuple):
    """Instruction to compute the square of a sum in a buffer, or in MEMORY; answered by `on_squared`."""

    buffer: int
    unit: int
    chunk: int


class Update(NamedTuple):
    """Instruction to step a chunk's image in a buffer by the sum of its gradients, there or in MEMORY."""

    buffer: int
    unit: int
    chunk: int
    has_sum: bool
    """True if the sum lies in the buffer."""
    steps: tuple[int, ...]
    """Number of the step that each tensor makes; 0: it has no gradient and stays as it is."""
    way: StepSettings


class Assign(NamedTuple):
    """Instruction to replace an array of a buffer's image by the values that lie there in place of a sum."""

    buffer: int
    unit: int
    chunk: int
    array: int
    """Number of the array: 0 for the parameters, 1 for the first state, and so on."""
    tensors: tuple[int, ...]
    """Tensors whose values are replaced."""


class WriteImage(NamedTuple):
    """Instruction to seal a chunk's image in a buffer, and to write it."""

    buffer: int
    unit: int
    chunk: int
    at: Place


class Consumed(NamedTuple):
    """Notice that a chunk's pushed values are not needed any more; it needs no answer."""

    push: int
    chunk: int


class DropSums(NamedTuple):
    """Notice that no sum of gradients counts any more; it needs no answer."""


class Look(NamedTuple):
    """Instruction to read one array of a chunk for one worker, in answer to the request `token`."""

    token: int
    unit: int
    chunk: int
    array: int
    at: Place | None
    """Place of the chunk's image; None: it was never written, and is zeros."""
    steps: tuple[int, ...]
    """Number of steps that each tensor of the unit has had."""


class Sync(NamedTuple):
    """Instruction to have all that was written on the disks."""

    step: int


class Prepared(NamedTuple):
    """Notice that a step's chunks are on this node's disks; it needs no answer.

    All nodes together may commit the step.
    """

    step: int


class TellNorm(NamedTuple):
    """Notice with the sum of squares of this node's sums, which workers asked for; it needs no answer."""

    square: float


Instruction = (
    ReadPulled | Offer | ReadImage | ClearImage | ReadSum | AddSum | WriteSum | SquareSum | Update | Assign
    | WriteImage | Consumed | DropSums | Look | Sync | Prepared | TellNorm
)  # fmt: skip
