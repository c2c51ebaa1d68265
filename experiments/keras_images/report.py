"""What a training on images says: lines while it runs, a summary, and a document for later reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

WARM_UP_STEPS = 2
"""The first steps make TensorFlow's graphs; they do not count for the speed where there are more."""
MOST_LINES = 50
"""Steps of an epoch that get a line."""


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One step of training, as this worker saw it."""

    step: int
    """From 0, through all epochs."""
    loss: float
    """This worker's own: the mean of the epoch's steps so far."""
    step_s: float
    """From the end of the step before, so with the wait for images; the first one's from its own begin."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """How the model did on all images to validate with, after an epoch."""

    epoch: int
    accuracy: float
    cross_entropy: float | None
    """In nats; None where it is no finite number."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run in a few numbers; times are this worker's."""

    kind: str = "measured"
    mode: str
    workers: int
    num_parameters: int
    num_classes: int
    num_train: int
    """Images to train on; 0 where they are synthetic."""
    num_val: int
    steps: int
    loss: float
    """The mean over all workers and steps of the last epoch."""
    step_s: float
    """The median."""
    images_per_s: float
    """Of all workers."""
    pushes: int
    pushed_bytes: int
    validation: Validation | None


def has_line(step: int, num_steps: int) -> bool:
    """Whether a step, from 0 within its epoch, gets a line: the last one and at most MOST_LINES of them."""
    return step == num_steps - 1 or (step + 1) % -(-num_steps // MOST_LINES) == 0


def step_line(record: StepRecord, num_steps: int, rate: float, batch: int) -> str:
    """What rank 0 prints after a step."""
    speed = batch / record.step_s
    return f"step {record.step + 1}/{num_steps}  loss {record.loss:.4f}  rate {rate:.5f}  {speed:,.1f} images/s"


def validation_line(found: Validation) -> str:
    """What rank 0 prints after an epoch."""
    cross_entropy = "not finite" if found.cross_entropy is None else f"{found.cross_entropy:.4g}"
    return f"epoch {found.epoch + 1}: validation accuracy {found.accuracy:.2%}, cross entropy {cross_entropy}"


def speed_of(records: Sequence[StepRecord], batch: int) -> tuple[float, float]:
    """The median seconds of a step and the images of all workers per second, without the first steps."""
    settled = records[WARM_UP_STEPS:] or records
    seconds = median(record.step_s for record in settled)
    return seconds, batch / seconds


def summary_lines(summary: Summary) -> list[str]:
    """The run in words."""
    counts = f"{summary.num_train:,} images, {summary.num_val:,} to validate"
    images = counts if summary.num_train else "synthetic images"
    lines = [
        f"ResNet50, {summary.mode}, workers: {summary.workers}; {summary.num_parameters:,} parameters, "
        f"{summary.num_classes:,} classes, {images}",
        f"{summary.steps:,} steps; mean loss of the last epoch {summary.loss:.4f}; median step "
        f"{summary.step_s * 1e3:,.0f} ms, {summary.images_per_s:,.1f} images/s ({summary.kind})",
    ]
    if summary.pushes:
        lines.append(f"{summary.pushes:,} pushes by each worker, {summary.pushed_bytes:,} bytes (counted)")
    return lines


def document(summary: Summary, records: Sequence[StepRecord], validations: Sequence[Validation]) -> dict[str, object]:
    """Summary, steps and validations as JSON-ready values."""
    return {
        "summary": asdict(summary),
        "steps": [asdict(record) for record in records],
        "validations": [asdict(found) for found in validations],
    }
