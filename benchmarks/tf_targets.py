"""What `tf_step.py` should reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.tf_contenders import COARSE, FIT, PACKED_PEER, PEER, Turn
from benchmarks.tf_rows import share_of_peer
from benchmarks.verdicts import Verdict, at_most, judge

MOST_OF_PEER = 0.5
"""Of the time that MultiWorkerMirroredStrategy adds to a step, what coarse may add."""
_LEAST_ROUNDS = 7
"""A result of fewer rounds is a trial, which decides nothing."""

Result = Mapping[str, Any]
"""A file of benchmarks/results."""


def judge_tf_step(result: Result | None) -> list[Verdict]:
    """What coarse adds to a step of Keras, beside TensorFlow's strategy as it comes, and with smaller packs."""
    rows = [row for row in (result["rows"] if result else ()) if row["num_rounds"] >= _LEAST_ROUNDS]
    places = list(dict.fromkeys(f"batch {row['rows_per_worker']}" for row in rows)) or ["all batches"]
    targets = {
        "TensorFlow: of what MultiWorkerMirrored adds": (PEER, Turn(COARSE).label),
        "TensorFlow: of what it adds with packs of 25 MiB": (PACKED_PEER, Turn(COARSE).label),
        "TensorFlow, by fit: of what it adds with packs of 25 MiB": (PACKED_PEER, Turn(COARSE, FIT).label),
    }
    verdicts = []
    for target, (peer, label) in targets.items():
        found = {f"batch {size}": share for size, share in share_of_peer(rows, peer, label).items()}
        verdicts.append(judge(target, at_most(MOST_OF_PEER), found, places))
    return verdicts
