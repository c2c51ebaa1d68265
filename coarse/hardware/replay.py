# Pure: no MPI, threads, clock or environment.
"""Whose compute a worker replays: a named GPU's, or that of the machine it stands on."""

import re

from coarse.hardware.compute import (
    PEAK_FLOPS_PER_S,
    THROUGHPUTS,
    Basis,
    ComputeProfile,
    compute_profile,
    split_iteration,
)
from coarse.hardware.machine import Machine
from coarse.hardware.models import Model, Precision

_REFERENCE_GPU = "v100"


def profile_for(model: Model, machine: Machine, gpu: str | None, batch: int, precision: Precision) -> ComputeProfile:
    """The compute times of a named GPU, or of the machine's own.

    Where nothing is published of the machine's own accelerator, it is taken to use as much of its peak as
    V100 does: an assumption, and labelled as one.
    """
    own = machine.accelerator.name
    known = {row.gpu for row in THROUGHPUTS if (row.model, row.precision) == (model.name, precision)}
    if gpu is not None or known & set(re.findall(r"[a-z0-9]+", own.lower())):
        return compute_profile(model, gpu or own, batch, precision)
    reference = compute_profile(model, _REFERENCE_GPU, batch, precision)
    accelerator = machine.accelerator
    peaks = {Precision.FP32: accelerator.fp32_flops_per_s, Precision.FP16: accelerator.fp16_flops_per_s}
    ratio = peaks[precision] / PEAK_FLOPS_PER_S[_REFERENCE_GPU, precision]
    iteration_s = (reference.total_forward_s + reference.total_backward_s) / ratio
    return split_iteration(
        model,
        iteration_s,
        gpu=own,
        batch=batch,
        precision=precision,
        basis=Basis.ASSUMPTION,
        source=f"V100's, scaled by the {precision} peak of {own} over V100's ({ratio:.3g}): {reference.source}",
    )
