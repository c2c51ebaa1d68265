# Pure: no MPI, threads, clock or environment.
"""Rules for the workers' data and their common end, decided from the statements of all workers.

[Note: one end] A step takes all workers, so an epoch ends for all at once or for none. If every worker knows its number
of batches, the end is settled before the first; if none does, all state before each batch how many they have given.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from coarse.errors import MismatchError

INFINITE, UNKNOWN = -1, -2
"""Special numbers of batches, as `tf.data.Dataset.cardinality` returns them."""
NOT_BY_KERAS = -3
"""Value in place of Keras' counts for a dataset that Keras does not distribute."""

REMEDY = (
    "give every rank as many batches: batch(n, drop_remainder=True) and take(k), or repeat() with steps_per_epoch"
)

_APART = "is split from different orders, so that some samples come twice in an epoch and others not at all"


class DataSplit(IntEnum):
    """Way of splitting a dataset into the workers' parts."""

    AS_GIVEN = 0
    BY_BATCHES = 1
    """Split of every global batch into one batch for each worker, of no rows at worst."""
    BY_FILES = 2


class DataPart(NamedTuple):
    """Statement of one worker about its data."""

    split: int
    num_batches: int
    """Batches of an epoch, or INFINITE or UNKNOWN."""
    keras_batches: int
    """Batches of an epoch by Keras' count. Keras stops there without asking for another."""
    keras_steps: int
    """Steps per epoch (steps_per_epoch) given to Keras."""
    seed: int
    """TensorFlow's global seed."""
    shuffles: int
    """Fingerprint of the seeds by which the dataset shuffles, each of which TensorFlow draws for itself."""
    python_random: int
    """Fingerprint of the state of Python's `random`; 0 if no rows come from Python."""
    numpy_random: int
    """Fingerprint of the state of `numpy.random`; 0 if no rows come from Python."""


class StepReport(NamedTuple):
    """Statement of one worker at a step."""

    dataset: int
    step: int
    """Number of the step, from 0 with each iterator."""
    num_batches: int
    """Batches given so far, including this step's."""


def allowed_behind(split: DataSplit) -> int:
    """Return the number of batches that a part may lack at the end, for which it runs empty ones.

    It is 1 for a split by files, since files differ in length.
    """
    return 1 if split is DataSplit.BY_FILES else 0


def must_ask(parts: Sequence[DataPart]) -> bool:
    """Return whether workers must ask one another at every step if the data go on.

    Raises:
        MismatchError: the parts cannot be used together, with who has what and what to do.
    """
    _require_one(parts, "split", "the ranks split a dataset differently", "let all set one auto_shard_policy", _split)
    _require_one(parts, "keras_batches", "Keras counts other batches on other ranks", REMEDY, _count)
    _require_one(parts, "keras_steps", "steps_per_epoch differs between ranks", "give all ranks the same", _count)
    counts = [part.num_batches for part in parts]
    if len(set(counts)) == 1:
        return counts[0] == UNKNOWN and len(parts) > 1
    is_known = min(counts) >= 0
    if is_known and max(counts) - min(counts) <= allowed_behind(DataSplit(parts[0].split)):
        return True
    remedy = REMEDY if UNKNOWN not in counts else "tell them by tf.data.experimental.assert_cardinality(n) on all ranks"
    _require_one(parts, "num_batches", "the data would end earlier on some ranks", remedy, _count)
    return False


def goes_on(said: Sequence[StepReport], allowed: int) -> bool:
    """Return whether a step takes place; workers without a batch left run an empty one in it.

    Raises:
        MismatchError: a worker has given more than `allowed` batches fewer than others, or is elsewhere in its program.
    """
    if len({(worker.dataset, worker.step) for worker in said}) > 1:
        places = _grouped([f"at {place_of(worker)}" for worker in said])
        raise MismatchError(
            f"the workers read different data: {places}; let all ranks distribute the same datasets in the same order, "
            "and leave their loops at the same step"
        )
    wanted = said[0].step + 1
    if all(worker.num_batches < wanted for worker in said):
        return False
    if min(worker.num_batches for worker in said) < wanted - allowed:
        gave = [
            f"gave {worker.num_batches} batches" if worker.num_batches < wanted else f"has batch number {wanted}"
            for worker in said
        ]
        raise MismatchError(f"the data ended earlier on some ranks: {_grouped(gave)}; {REMEDY}")
    return True


def place_of(worker: StepReport) -> str:
    """Return a description of a worker's position in its data."""
    return f"batch {worker.step} of dataset number {worker.dataset}"


def different_orders(parts: Sequence[DataPart]) -> list[str]:
    """Return warnings if ranks that keep a share of a whole dataset may have it in different orders."""
    split = parts[0].split
    if split == DataSplit.AS_GIVEN:
        return []
    found = []
    if _differs(parts, "seed"):
        seeds = _grouped([f"seed {part.seed}" for part in parts])
        found.append(
            f"the ranks have different global seeds ({seeds}): a dataset that is shuffled by them {_APART}; call "
            "keras.utils.set_random_seed or tf.random.set_seed with the same number on all ranks"
        )
    elif split == DataSplit.BY_BATCHES and _differs(parts, "shuffles"):  # files are shared out unshuffled
        found.append(
            "the ranks shuffle a dataset by different seeds, though their global seed is one: some ranks alone have "
            "run a random operation before (tf.random, Dataset.shuffle), from which TensorFlow counts on to the seeds "
            f"of later ones, or have given shuffle another seed. So the dataset {_APART}; give shuffle one seed on all "
            "ranks, or run the operation on all of them, or by a generator of its own (tf.random.Generator)"
        )
    states = {"Python's random": "python_random", "numpy.random": "numpy_random"}
    generators = " and ".join(name for name, field in states.items() if _differs(parts, field))
    if generators:
        found.append(
            f"rows come from Python (a generator or a PyDataset), and {generators} would draw other numbers on other "
            f"ranks: if they are shuffled by it, as fit shuffles a PyDataset by Python's random, the dataset {_APART}; "
            "draw the same from it on all ranks, or call keras.utils.set_random_seed with the same number on all ranks"
        )
    return found


def shared_seed(seeds: Sequence[int | None], proposed: int) -> int:
    """Return the seed for ranks without one: that of the first rank that has one, else `proposed`."""
    return next((seed for seed in seeds if seed is not None), proposed)


def _differs(parts: Sequence[DataPart], field: str) -> bool:
    return len({getattr(part, field) for part in parts}) > 1


def _require_one(parts: Sequence[DataPart], field: str, problem: str, remedy: str, text_of: object) -> None:
    assert callable(text_of)
    if _differs(parts, field):
        said = [text_of(getattr(part, field)) for part in parts]
        raise MismatchError(f"{problem}: {_grouped(said)}; {remedy}")


def _count(num_batches: int) -> str:
    words = {INFINITE: "without an end", UNKNOWN: "an unknown number", NOT_BY_KERAS: "not asked by Keras"}
    return words.get(num_batches, f"{num_batches} batches")


def _split(split: int) -> str:
    return {
        DataSplit.AS_GIVEN: "as it is",
        DataSplit.BY_BATCHES: "by batches",
        DataSplit.BY_FILES: "by files",
    }[DataSplit(split)]


def _grouped(texts: Sequence[str]) -> str:
    """Join equal texts, each with the ranks that it applies to."""
    ranks_of = {text: [rank for rank, other in enumerate(texts) if other == text] for text in dict.fromkeys(texts)}
    return ", ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {text}" for text, ranks in ranks_of.items()
    )
