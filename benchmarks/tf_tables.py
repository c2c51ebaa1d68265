"""What `tf_step.py` found, as Markdown for docs/tensorflow_benchmark.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.rendering import markdown
from benchmarks.tf_overlap import overlap_table, pushes_table
from benchmarks.tf_rows import step_table

Result = Mapping[str, Any]
"""The file tf-step.json."""


def tf_part(result: Result | None) -> str:
    """All tables, each under what it says; one line where nothing was measured yet."""
    if result is None:
        return "Not measured yet."
    machine = f"{result['machine']['cpu_model']}, {result['machine']['num_cores']} cores"
    versions = f"TensorFlow {result['versions']['tensorflow']}, Keras {result['versions']['keras']}"
    parts = [
        f"Milliseconds of a training step, medians of {result['rows'][0]['num_rounds']} rounds, measured on "
        f"{result['date'][:10]}, {machine}, {versions}, {result['num_inter_op_threads']} inter-op threads:",
        markdown(*step_table(result["rows"])),
    ]
    if result["overlap"]:
        parts += [
            "The mode coarse, milliseconds since the step's begin, medians over both workers' steps:",
            markdown(*overlap_table(result["overlap"])),
            "When the push of each bucket begins and ends, in the same milliseconds, in the order of pushes:",
            markdown(*pushes_table(result["overlap"])),
        ]
    return "\n\n".join(parts)
