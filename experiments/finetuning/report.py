"""What a fine-tuning run says: a line per step, a summary, and a document for later reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from experiments.finetuning.scores import Scores
from experiments.finetuning.training import StepRecord

WARM_UP_STEPS = 3
"""The first steps allocate; they do not count for the speed where there are more."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run in a few numbers; times are this worker's."""

    mode: str
    workers: int
    num_parameters: int
    num_trainable: int
    first_loss: float
    last_loss: float
    step_s: float
    tokens_per_s: float
    first_bytes_between_nodes: dict[str, int]
    """Sent by all workers together in the first step, by what for; empty where nobody counts them."""
    last_bytes_between_nodes: dict[str, int]
    """The same of the last step: what is frozen need not be gathered again."""
    scores: Scores


def step_line(record: StepRecord, num_steps: int) -> str:
    """What rank 0 prints after a step."""
    speed = record.num_tokens / record.step_s
    return f"step {record.step + 1}/{num_steps}  loss {record.loss:.6f}  {speed:,.0f} tokens/s"


def speed_of(records: Sequence[StepRecord]) -> tuple[float, float]:
    """The median seconds of a step, and the tokens of all workers per second, without the first steps."""
    settled = records[WARM_UP_STEPS:] or records
    seconds = median(record.step_s for record in settled)
    return seconds, sum(record.num_tokens for record in settled) / sum(record.step_s for record in settled)


def summary_lines(summary: Summary, evaluated: str) -> list[str]:
    """The run in words; `evaluated` says which questions were asked."""
    lines = [
        f"{summary.mode}, {summary.workers} workers: {summary.num_parameters:,} parameters, "
        f"{summary.num_trainable:,} of them trained",
        f"loss {summary.first_loss:.4f} -> {summary.last_loss:.4f}; {1 / summary.step_s:.2f} steps/s, "
        f"{summary.tokens_per_s:,.0f} tokens/s (measured)",
        f"exact match {summary.scores.exact_match:.1f} %, F1 {summary.scores.f1:.1f} % "
        f"on {summary.scores.num_questions} questions of {evaluated}",
    ]
    for step, sent in (("first", summary.first_bytes_between_nodes), ("last", summary.last_bytes_between_nodes)):
        if any(sent.values()):
            parts = ", ".join(f"{what} {nbytes:,}" for what, nbytes in sent.items() if nbytes)
            lines.append(f"{sum(sent.values()):,} bytes between nodes in the {step} step (counted): {parts}")
    return lines


def document(summary: Summary, records: Sequence[StepRecord]) -> dict[str, object]:
    """Summary and steps as JSON-ready values."""
    return {"summary": asdict(summary), "steps": [asdict(record) for record in records]}
