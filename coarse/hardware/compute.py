# Pure: no MPI, threads, clock or environment.
"""Seconds of forward and backward per layer, for workers whose arithmetic is replayed and not done.

Of a GPU only the throughput of whole training iterations on it alone is known. An iteration is one third forward and
two thirds backward, since backward takes each product twice (for inputs and for weights), and its time is split over
the layers by their FLOPs. That leaves out that small layers use a GPU less well.
"""

import enum
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any

from coarse.errors import ConfigError
from coarse.hardware.machine import Accelerator, Machine
from coarse.hardware.models import Model, Precision

FORWARD_SHARE = 1 / 3
"""Forward's share of an iteration; backward's FLOPs are twice those of forward."""


class Basis(enum.StrEnum):
    """Basis of a number."""

    SOURCE = "source"
    """Published measurements of this very case."""
    DERIVED = "derived"
    """Arithmetic on published measurements of neighbouring cases."""
    ASSUMPTION = "assumption"
    """Figures scaled from another GPU, or from a batch outside of the measured ones."""
    MEASURED = "measured"
    """Measurements by the maker of the profile."""
    TRACED = "measured in trace"
    """Times of a step that was traced."""
    SIMULATED_TRACE = "simulated in trace"
    """Times of a step that coarse had predicted."""


@dataclass(frozen=True)
class Throughput:
    """Training samples per second of one GPU alone."""

    gpu: str
    model: str
    precision: Precision
    batch: int
    samples_per_s: float
    basis: Basis
    source: str

    @property
    def iteration_s(self) -> float:
        """Seconds of one iteration."""
        return self.batch / self.samples_per_s


_RN50_README = "NVIDIA DeepLearningExamples, PyTorch ResNet50 v1.5 README (the rate of its own batch, taken for 64)"
_BERT_README = (
    "NVIDIA DeepLearningExamples, PyTorch/LanguageModeling/BERT/README.md of 2019-07-08 (SQuAD v1.1, sequence 384)"
)
_TF_BERT_README = (
    "NVIDIA DeepLearningExamples, TensorFlow BERT README, container {} (SQuAD v1.1, sequence 384): V100 16 GB"
)
_RN50_T4 = (
    "V100 training x T4/V100 inference ratio of NVIDIA DeepLearningExamples (428 img/s fp32, 1165 img/s AMP); "
    "middle of the range {}"
)
_FP32, _FP16 = Precision.FP32, Precision.FP16

PUBLISHED = (
    Throughput("v100", "resnet50", _FP32, 64, 367.0, Basis.DERIVED, f"{_RN50_README}: V100 16 GB"),
    Throughput("v100", "resnet50", _FP16, 64, 1200.0, Basis.DERIVED, f"{_RN50_README}: V100 16 GB, AMP"),
    Throughput("a100", "resnet50", _FP16, 64, 2470.0, Basis.DERIVED, f"{_RN50_README}: A100 80 GB, AMP"),
    Throughput("p100", "resnet50", _FP32, 64, 219.0, Basis.SOURCE, "TensorFlow benchmarks.md: DGX-1, batch 64"),
    Throughput("t4", "resnet50", _FP32, 64, 128.0, Basis.DERIVED, _RN50_T4.format("125 to 131")),
    Throughput("t4", "resnet50", _FP16, 64, 447.5, Basis.DERIVED, _RN50_T4.format("425 to 470")),
    Throughput("v100", "bert-large", _FP32, 2, 5.48, Basis.SOURCE, f"{_BERT_README}: V100 16 GB"),
    Throughput("v100", "bert-large", _FP32, 7, 7.56, Basis.SOURCE, f"{_BERT_README}: V100 32 GB"),
    Throughput("v100", "bert-large", _FP16, 2, 18.97, Basis.SOURCE, f"{_BERT_README}: V100 16 GB"),
    Throughput("v100", "bert-large", _FP16, 4, 19.46, Basis.SOURCE, f"{_BERT_README}: V100 16 GB"),
)
"""Throughputs of one GPU alone; each row names the place of its publication."""

TENSORFLOW_BERT = tuple(
    Throughput("v100", "bert-large", precision, batch, rate, Basis.SOURCE, _TF_BERT_README.format(container))
    for container, precision, batch, rate in (
        ("20.06", _FP32, 2, 7.36), ("20.06", _FP16, 4, 29.74), ("19.03", _FP32, 2, 7.41), ("19.03", _FP16, 2, 11.86),
        ("19.03", _FP16, 3, 14.86), ("21.02 (TensorFlow 2)", _FP32, 3, 9.85), ("21.02 (TensorFlow 2)", _FP16, 6, 39.10),
    )
)  # fmt: skip
"""Throughputs of the same model by TensorFlow, which COARSE used, of three containers. No container is said to be
COARSE's."""

PEAK_FLOPS_PER_S = {("v100", _FP32): 15.7e12, ("p100", _FP32): 9.3e12, ("v100", _FP16): 125e12}
"""FLOP/s by vendors' data sheets. They are of V100 SXM2, which was measured, and the P100 of PCIe, which SDSC has
(COARSE Table I)."""

T4_OVER_V100 = {
    (_FP16, 2): 29.59 / 99.9,
    (_FP16, 4): 34.27 / 128.42,
    (_FP32, 2): 9.29 / 38.47,
    (_FP32, 7): 9.75 / 41.32,
}
"""Sentences/s of BERT-large's inference, relative to V100 16 GB's, by precision and batch (8 for 7). The sequence is
384. Both were measured by NVIDIA with one container, TensorFlow 20.06. A T4 is half a V100 by its peak and less than
a third here."""


def scaled_from_v100(rows: Sequence[Throughput]) -> Iterator[Throughput]:
    """Yield BERT-large's rows for GPUs without published rows of it."""
    for row in rows:
        if (row.gpu, row.model) != ("v100", "bert-large"):
            continue
        ratio = T4_OVER_V100.get((row.precision, row.batch), T4_OVER_V100[row.precision, 2])
        source = f"{row.source}, times T4's inference over V100's there ({ratio:.3f})"
        yield replace(row, gpu="t4", samples_per_s=row.samples_per_s * ratio, basis=Basis.DERIVED, source=source)
        if row.precision is _FP32:
            ratio = PEAK_FLOPS_PER_S["p100", _FP32] / PEAK_FLOPS_PER_S["v100", _FP32]
            source = f"{row.source}, scaled by p100's peak FLOPS over V100's ({ratio:.3f})"
            rate = row.samples_per_s * ratio
            yield replace(row, gpu="p100", samples_per_s=rate, basis=Basis.ASSUMPTION, source=source)


THROUGHPUTS = (*PUBLISHED, *scaled_from_v100(PUBLISHED))
"""Known throughputs, by GPU, model, precision and batch."""


@dataclass(frozen=True, kw_only=True)
class ComputeProfile:
    """Seconds of each layer's forward and backward for one batch, in the order of the forward pass."""

    gpu: str
    model: str
    precision: Precision
    batch: int
    layers: tuple[str, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    basis: Basis
    source: str
    factors: tuple[float, float] | None = None
    """Least and greatest factor on the times. None stands for those of most jobs (hardware.intervals)."""

    def __post_init__(self) -> None:
        if not len(self.layers) == len(self.forward_s) == len(self.backward_s) > 0:
            raise ConfigError(
                f"a compute profile needs one forward and one backward time for each layer, got {len(self.layers)} "
                f"layers, {len(self.forward_s)} forward and {len(self.backward_s)} backward times"
            )
        if self.batch < 1:
            raise ConfigError(f"a batch is at least 1 sample, got {self.batch}", key="batch")
        if not all(0 <= seconds < math.inf for seconds in (*self.forward_s, *self.backward_s)):
            raise ConfigError(f"the times of {self.model} on {self.gpu} must be finite and at least 0")

    def slowed(self, factor: float) -> "ComputeProfile":
        """Return the profile with its times multiplied."""
        forward_s, backward_s = (tuple(factor * each for each in times) for times in (self.forward_s, self.backward_s))
        return replace(self, forward_s=forward_s, backward_s=backward_s)

    @property
    def total_forward_s(self) -> float:
        """Seconds of the whole forward pass (the paper's T_FP)."""
        return sum(self.forward_s)

    @property
    def total_backward_s(self) -> float:
        """Seconds of the whole backward pass (the paper's T_BP)."""
        return sum(self.backward_s)


def compute_profile(
    model: Model, gpu_name: str, batch: int, precision: Precision, known: Sequence[Throughput] = THROUGHPUTS
) -> ComputeProfile:
    """Return the times of a model on a named GPU ("V100", "Tesla T4 16GB"), from published throughputs."""
    if batch < 1:
        raise ConfigError(f"a batch is at least 1 sample, got {batch}", key="batch")
    words = set(re.findall(r"[a-z0-9]+", gpu_name.lower()))
    rows = [row for row in known if row.gpu in words and (row.model, row.precision) == (model.name, precision)]
    if not rows:
        names = sorted({f"{row.gpu} {row.model} {row.precision}" for row in known})
        raise ConfigError(
            f"no throughput is known of {model.name} on {gpu_name!r} in {precision}; there are {', '.join(names)}; "
            "or measure the layers and load their profile",
            key="gpu",
        )
    iteration_s, basis, source = _iteration_s(sorted(rows, key=lambda row: row.batch), batch)
    return split_iteration(
        model, iteration_s, gpu=rows[0].gpu, batch=batch, precision=precision, basis=basis, source=source
    )


def split_iteration(
    model: Model, iteration_s: float, *, gpu: str, batch: int, precision: Precision, basis: Basis, source: str
) -> ComputeProfile:
    """Return an iteration's seconds split over passes and layers by FLOPs."""
    shares = [layer.flops_per_sample / model.flops_per_sample for layer in model.layers]
    return ComputeProfile(
        gpu=gpu,
        model=model.name,
        precision=precision,
        batch=batch,
        layers=tuple(layer.name for layer in model.layers),
        forward_s=tuple(iteration_s * FORWARD_SHARE * share for share in shares),
        backward_s=tuple(iteration_s * (1 - FORWARD_SHARE) * share for share in shares),
        basis=basis,
        source=source,
    )


PEAK_SHARE = 0.3
"""Share of a GPU's peak that a model is assumed to attain if nothing is published of it. It is about the mean of the
rows of PUBLISHED."""
PUBLISHED_SHARES = (0.11, 0.58)
"""Least and greatest published share: BERT-large in fp16 on a V100, ResNet-50 in fp32 on a P100."""


def profile_at_peak_share(
    model: Model, accelerator: Accelerator, batch: int, precision: Precision, peak_share: float | None
) -> ComputeProfile:
    """Return the times of three times forward's FLOPs at a share of a GPU's peak, by default PEAK_SHARE.

    Raises:
        ConfigError: a share outside of (0, 1].
    """
    rate = _share(peak_share) * _peak(accelerator, precision)
    profile = split_iteration(
        model,
        batch * model.flops_per_sample / FORWARD_SHARE / rate,
        gpu=accelerator.name,
        batch=batch,
        precision=precision,
        basis=Basis.ASSUMPTION,
        source=f"three times forward's FLOPs {_at_share(accelerator, precision, peak_share)}, split over the layers by "
        "their FLOPs",
    )
    return replace(profile, factors=share_factors(peak_share))


def _share(peak_share: float | None) -> float:
    share = PEAK_SHARE if peak_share is None else peak_share
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"--peak-share must lie in (0, 1], got {share:g}; correct it", key="peak_share")
    return share


def share_factors(peak_share: float | None) -> tuple[float, float] | None:
    """Return the factors on the times at the greatest and the least share that is attained.

    Return None for a share that is asked for.
    """
    if peak_share is not None:
        return None
    least, most = PUBLISHED_SHARES
    return PEAK_SHARE / most, PEAK_SHARE / least


def _peak(accelerator: Accelerator, precision: Precision) -> float:
    return {Precision.FP32: accelerator.fp32_flops_per_s, Precision.FP16: accelerator.fp16_flops_per_s}[precision]


def _at_share(accelerator: Accelerator, precision: Precision, peak_share: float | None) -> str:
    """Return the text that says how operations take their seconds."""
    least, most = PUBLISHED_SHARES
    why = f"the default, where published trainings attain {least} to {most}" if peak_share is None else "as asked"
    peak = _peak(accelerator, precision)
    return f"at {_share(peak_share):g} of {accelerator.name}'s {peak / 1e12:.4g} TFLOP/s (--peak-share: {why})"


def profile_of_iteration(
    model: Model, iteration_s: float, *, gpu: str, batch: int, precision: Precision
) -> ComputeProfile:
    """Return the times of an iteration whose seconds a user measured.

    Raises:
        ConfigError: seconds that are not a finite number above 0.
    """
    _require_iteration(iteration_s)
    source = f"{iteration_s:g} s an iteration (--iteration-s), split over the layers by their FLOPs: an assumption"
    return split_iteration(
        model, iteration_s, gpu=gpu, batch=batch, precision=precision, basis=Basis.MEASURED, source=source
    )


def _require_iteration(iteration_s: float) -> None:
    if not 0.0 < iteration_s < math.inf:
        raise ConfigError(
            f"--iteration-s must be the seconds of one worker's forward and backward, above 0, got {iteration_s:g}; "
            "correct it",
            key="iteration_s",
        )


def profile_of_step(
    model: Model, forward_s: Sequence[float], backward_s: Sequence[float], *, gpu: str, batch: int,
    precision: Precision, basis: Basis, source: str, iteration_s: float | None = None,
) -> ComputeProfile:  # fmt: skip
    """Return the times of a traced step, by layer, scaled to an iteration's seconds if these are measured.

    Raises:
        ConfigError: seconds that are not a finite number above 0, or a step that took none.
    """
    total_s = math.fsum((*forward_s, *backward_s))
    factor = 1.0
    if iteration_s is not None:
        _require_iteration(iteration_s)
        if not total_s:
            raise ConfigError(f"--iteration-s cannot scale the times {source}, which are 0; leave it out", key="model")
        factor = iteration_s / total_s
        source = f"{source}; scaled by {factor:.4g} to {iteration_s:g} s an iteration (--iteration-s)"
    return ComputeProfile(
        gpu=gpu,
        model=model.name,
        precision=precision,
        batch=batch,
        layers=tuple(layer.name for layer in model.layers),
        forward_s=tuple(seconds * factor for seconds in forward_s),
        backward_s=tuple(seconds * factor for seconds in backward_s),
        basis=basis,
        source=source,
    )


def profile_of_operations(
    model: Model, forward: Sequence[float], backward: Sequence[float], accelerator: Accelerator, *, batch: int,
    precision: Precision, peak_share: float | None, source: str,
) -> ComputeProfile:  # fmt: skip
    """Return the times of operations that a trace counts, by layer, at a share of a GPU's peak.

    The share is PEAK_SHARE by default.

    Raises:
        ConfigError: a share outside of (0, 1].
    """
    rate = _share(peak_share) * _peak(accelerator, precision)
    return ComputeProfile(
        gpu=accelerator.name,
        model=model.name,
        precision=precision,
        batch=batch,
        layers=tuple(layer.name for layer in model.layers),
        forward_s=tuple(count / rate for count in forward),
        backward_s=tuple(count / rate for count in backward),
        basis=Basis.ASSUMPTION,
        source=f"the operations counted {source}, {_at_share(accelerator, precision, peak_share)}",
        factors=share_factors(peak_share),
    )


def _iteration_s(rows: Sequence[Throughput], batch: int) -> tuple[float, Basis, str]:
    """Return the seconds, basis and source of an iteration.

    They are linear in the batch between known ones, and at the nearest one's rate beyond them.
    """
    for row in rows:
        if row.batch == batch:
            return row.iteration_s, row.basis, row.source
    for low, high in pairwise(rows):
        if low.batch < batch < high.batch:
            seconds = low.iteration_s + (high.iteration_s - low.iteration_s) * (batch - low.batch) / (
                high.batch - low.batch
            )
            basis = Basis.ASSUMPTION if Basis.ASSUMPTION in (low.basis, high.basis) else Basis.DERIVED
            return seconds, basis, f"between batch {low.batch} and {high.batch}: {low.source}; {high.source}"
    nearest = min(rows, key=lambda row: abs(row.batch - batch))
    source = f"samples/s of batch {nearest.batch}: {nearest.source}"
    return batch / nearest.samples_per_s, Basis.ASSUMPTION, source


def profile_json(profile: ComputeProfile) -> str:
    """Return a profile as text, for `parse_profile`."""
    return json.dumps(asdict(profile), indent=1)


def parse_profile(text: str, *, where: str) -> ComputeProfile:
    """Return the profile that `profile_json` wrote, or that was measured; `where` is named in errors."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: no compute profile in JSON ({error}); write one with `profile_json`") from error
    names = {entry.name for entry in fields(ComputeProfile)}
    if not isinstance(document, dict) or set(document) != names:
        came = sorted(document) if isinstance(document, dict) else type(document).__name__
        raise ConfigError(f"{where}: a compute profile has exactly the keys {sorted(names)}, got {came}")
    try:
        return _profile_from(document)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _profile_from(document: dict[str, Any]) -> ComputeProfile:
    for key in ("gpu", "model", "source"):
        if not isinstance(document[key], str):
            raise ValueError(f"{key} must be text, got {document[key]!r}")
    if type(document["batch"]) is not int:
        raise ValueError(f"batch must be a whole number, got {document['batch']!r}")
    return ComputeProfile(
        gpu=document["gpu"],
        model=document["model"],
        precision=Precision(document["precision"]),
        batch=document["batch"],
        layers=tuple(str(name) for name in document["layers"]),
        forward_s=tuple(float(seconds) for seconds in document["forward_s"]),
        backward_s=tuple(float(seconds) for seconds in document["backward_s"]),
        basis=Basis(document["basis"]),
        source=document["source"],
    )


_REFERENCE_GPU = "v100"


def profile_for(model: Model, machine: Machine, gpu: str | None, batch: int, precision: Precision) -> ComputeProfile:
    """Return the compute times of a named GPU, or of the machine's own.

    If nothing is published of the machine's own accelerator, it is taken to use as much of its peak as V100 does: an
    assumption, and labelled as one.
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
