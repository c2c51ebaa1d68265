# Pure: no MPI, threads, clock or environment.
"""What a PagedOptimizer wants done. The driver does it, and says so by `on_done` with the same instruction.

Buffers are numbered: each has room for a chunk's image, and behind it for a float32 sum of its gradients.
"""

from typing import NamedTuple

from coarse.luwu.store.image import Stamp
from coarse.luwu.store.operations import StepSettings

MEMORY = -1
"""In place of a buffer: where a unit's sums stay in memory from the push to the update."""


class Place(NamedTuple):
    """Which image of a chunk: in which slot, and what its header must say."""

    slot: int
    stamp: Stamp


class ReadPulled(NamedTuple):
    """Read what workers pull of a chunk into the window, for its chunk of this number."""

    number: int
    unit: int
    chunk: int
    at: Place
    ticket: int
    """Tells it from another read of the same number."""


class Offer(NamedTuple):
    """A chunk of the window may go to the workers. Needs no answer."""

    number: int
    unit: int
    chunk: int


class ReadImage(NamedTuple):
    """Read what an update needs of a chunk into a buffer."""

    buffer: int
    unit: int
    chunk: int
    at: Place


class ClearImage(NamedTuple):
    """A chunk that was never written: its image in a buffer is zeros."""

    buffer: int
    unit: int
    chunk: int


class ReadSum(NamedTuple):
    """Read a chunk's sum of gradients from the disk into a buffer."""

    buffer: int
    unit: int
    chunk: int


class AddSum(NamedTuple):
    """Add what workers pushed of a chunk, or put it there where it is the first, and say the sum's square if wanted.

    Answer by `on_added`. What was pushed may be given back then.
    """

    push: int
    """The number of the push, from 0."""
    unit: int
    chunk: int
    buffer: int
    """Or MEMORY."""
    is_first: bool
    wants_square: bool


class WriteSum(NamedTuple):
    """Write the sum in a buffer to the disk."""

    buffer: int
    unit: int
    chunk: int


class SquareSum(NamedTuple):
    """Say the square of a sum that lies in a buffer, or in MEMORY; answer by `on_squared`."""

    buffer: int
    unit: int
    chunk: int


class Update(NamedTuple):
    """Step a chunk's image in a buffer by the sum of its gradients, which lies there or in MEMORY."""

    buffer: int
    unit: int
    chunk: int
    has_sum: bool
    """Whether the sum lies in the buffer."""
    steps: tuple[int, ...]
    """By tensor, which of its steps this is; 0: it has no gradient and stays as it is."""
    way: StepSettings


class Assign(NamedTuple):
    """Replace one array of a chunk's image in a buffer by the values that lie there in place of a sum."""

    buffer: int
    unit: int
    chunk: int
    array: int
    """0: the parameters; 1: the first state; and so on."""
    tensors: tuple[int, ...]
    """Of which tensors."""


class WriteImage(NamedTuple):
    """Seal a chunk's image in a buffer, and write it."""

    buffer: int
    unit: int
    chunk: int
    at: Place


class Consumed(NamedTuple):
    """What workers pushed of a chunk is not needed any more. Needs no answer."""

    push: int
    chunk: int


class DropSums(NamedTuple):
    """No sum of gradients counts any more. Needs no answer."""


class Look(NamedTuple):
    """Read one array of a chunk for one worker; answers the request `token`."""

    token: int
    unit: int
    chunk: int
    array: int
    at: Place | None
    """None: it was never written, and is zeros."""
    steps: tuple[int, ...]
    """By tensor of the unit, how many steps it has had."""


class Sync(NamedTuple):
    """Have all that was written on the disks."""

    step: int


class Prepared(NamedTuple):
    """A step's chunks are on this node's disks: all nodes together may commit it. Needs no answer."""

    step: int


class TellNorm(NamedTuple):
    """The sum of squares of all sums of this node, which workers asked for. Needs no answer."""

    square: float


Instruction = (
    ReadPulled | Offer | ReadImage | ClearImage | ReadSum | AddSum | WriteSum | SquareSum | Update | Assign
    | WriteImage | Consumed | DropSums | Look | Sync | Prepared | TellNorm
)  # fmt: skip
