# Pure: no MPI, threads, clock or environment.
"""A model's gradients as they are synchronised: fused in the order of backward, each with its time."""

import math

from coarse.hardware.compute import ComputeProfile
from coarse.hardware.models import Model
from coarse.protocol.dtypes import DType
from coarse.protocol.layout import bucket_limit_bytes, fuse
from coarse.simulation.job import Gradient


def gradients_of(model: Model, profile: ComputeProfile, *, bucket_bytes: int) -> tuple[Gradient, ...]:
    """Small neighbours are fused as DistributedOptimizer does; ready when the last of its tensors is."""
    itemsize = DType.FLOAT32.itemsize
    entries: list[tuple[str, int]] = []
    ready_s: dict[str, float] = {}
    numels: dict[str, int] = {}
    now_s = 0.0
    for layer, seconds in zip(reversed(model.layers), reversed(profile.backward_s), strict=True):
        now_s += seconds
        for name, shape in reversed(layer.parameters):
            numel = math.prod(shape)
            entries.append((name, numel * itemsize))
            ready_s[name], numels[name] = now_s, numel
    limit_bytes = bucket_limit_bytes(sum(nbytes for _, nbytes in entries), bucket_bytes)
    return tuple(
        Gradient(name=names[0], num_elements=sum(numels[name] for name in names), ready_s=ready_s[names[-1]])
        for names in fuse(entries, bucket_bytes=limit_bytes)
    )
