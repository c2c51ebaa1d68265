"""The ways to train data-parallel that `tf_step.py` compares, and how their processes start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

NUM_WORKERS = NUM_DEVICES = 2
UNSYNCHRONISED = "none"
PEER, PACKED_PEER = "multiworker", "multiworker-packed"
COARSE = "coarse"
OWN_MODES = (COARSE, "dense", "allreduce")
CONTENDERS = (UNSYNCHRONISED, PEER, PACKED_PEER, *OWN_MODES)
PACK_BYTES = 25 * 2**20
"""Of the peer that cuts its all-reduce into packs: coarse's own default for a bucket."""
FIT_CONTENDERS = (UNSYNCHRONISED, COARSE)
"""Those that `model.fit` trains too; the peer's fails under Keras 3."""
RUN, FIT = "run", "fit"


@dataclass(frozen=True)
class Turn:
    """What takes part in each round: a contender, by a custom loop (RUN) or by `model.fit` (FIT)."""

    contender: str
    loop: str = RUN

    @property
    def label(self) -> str:
        """As tables name it."""
        return self.contender if self.loop == RUN else f"{self.contender}, fit"

    @property
    def baseline(self) -> Turn:
        """The turn from which what this one adds is counted: the same loop without synchronisation."""
        return Turn(UNSYNCHRONISED, self.loop)


def turns_of(contenders: Sequence[str]) -> list[Turn]:
    """Every contender's custom loop, then `fit` where there is one."""
    return [Turn(name) for name in contenders] + [Turn(name, FIT) for name in contenders if name in FIT_CONTENDERS]


def is_ours(contender: str) -> bool:
    """Whether it is a mode of coarse's, which has memory devices."""
    return contender in OWN_MODES


def environment_of(contender: str, worker: int, ports: Sequence[int]) -> dict[str, str]:
    """Variables that a worker's process needs: TF_CONFIG on the loopback interface for TensorFlow's own strategy."""
    if contender not in (PEER, PACKED_PEER):
        return {}
    workers = [f"127.0.0.1:{port}" for port in ports]
    return {
        "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": worker}}),
    }


def pack_bytes_of(contender: str) -> int:
    """`bytes_per_pack` of the peer; 0 is TensorFlow's default, all gradients in one."""
    return PACK_BYTES if contender == PACKED_PEER else 0
