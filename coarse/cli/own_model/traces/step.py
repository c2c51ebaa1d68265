# Pure: no MPI, threads, clock or environment.
"""Traced step as a model: its gradients in the order of backward, each with its ready time.

[Note: layers of a trace] A layer is an operator of forward and the gradients that its backward makes, one after the
other; where the operator is not known, a gradient alone. A layer's backward lasts from the last gradient of the layer
before (in backward) to its own last one, with all that ran in between. Layers stand in the reverse order of their
gradients, which is that of forward for most models. Work of backward after the last gradient is a layer without
parameters.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, groupby

from coarse.cli.own_model.description import OwnModel, StepTimes
from coarse.hardware.models import Layer, Model

ROUNDING = 1e-9
"""Share of backward below which a rest of it is neglected."""
_END = "end of backward"


@dataclass(frozen=True, kw_only=True)
class TracedGradient:
    """Gradient of one parameter, or of several in one buffer."""

    shape: tuple[int, ...]
    ready: float
    """Seconds, or operations, since backward began."""
    layer: str
    """Name of the layer."""
    operator: int
    """Number that consecutive gradients of one layer share."""
    forward: float = 0.0
    """Seconds, or operations, of the layer's forward."""
    name: str = ""
    """Name in the trace; by default the layer's, with a number."""


@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """Data taken from a trace."""

    gradients: tuple[TracedGradient, ...]
    """Gradients in the order in which they were ready."""
    forward: float
    """Seconds, or operations, of the whole pass. Those of no layer count for the first."""
    backward: float
    are_operations: bool = False
    is_simulated: bool = False
    """True if the trace is of a prediction."""
    gpu: str
    which: str
    """Description of the chosen step of the trace."""
    counted: str
    """Content of its times, and what they leave out."""
    notes: tuple[str, ...] = ()
    """Sentences on assumptions."""


def model_of_step(step: TracedStep, name: str, where: str) -> OwnModel:
    """Return the model and its times; see [Note: layers of a trace]."""
    groups = [list(group) for _, group in groupby(step.gradients, key=lambda gradient: gradient.operator)]
    labels = list(_distinct([group[0].layer for group in reversed(groups)]))[::-1]
    names = _distinct([
        gradient.name or f"{label}.{len(group) - number}"
        for group, label in zip(groups, labels, strict=True)
        for number, gradient in enumerate(group, start=1)
    ])  # fmt: skip
    layers, backward, last = [], [], 0.0
    for group, label in zip(groups, labels, strict=True):
        shapes = [(next(names), gradient.shape) for gradient in group]
        layers.append(Layer(name=label, parameters=tuple(reversed(shapes)), flops_per_sample=0))
        backward.append(max(0.0, group[-1].ready - last))
        last = max(last, group[-1].ready)
    forward = [group[0].forward for group in groups]
    forward[-1] += max(0.0, step.forward - sum(forward))
    if step.backward > last * (1 + ROUNDING):
        layers.append(Layer(name=_END, parameters=(), flops_per_sample=0))
        backward.append(step.backward - last)
        forward.append(0.0)
    model = Model(name=name, sample="step of the trace", layers=tuple(reversed(layers)))
    times = StepTimes(
        forward=tuple(reversed(forward)), backward=tuple(reversed(backward)), are_operations=step.are_operations,
        is_simulated=step.is_simulated, gpu=step.gpu,
        source=f"in {where}, {step.which}: {_amounts(step)}, {step.counted}",
    )  # fmt: skip
    return OwnModel(model=model, notes=tuple(_notes(step, model, where)), times=times)


def _distinct(names: Sequence[str]) -> Iterator[str]:
    """Yield the names, with a number behind repeated ones."""
    taken: set[str] = set()
    for name in names:
        found = next(text for text in chain((name,), (f"{name} ({n})" for n in count(2))) if text not in taken)
        taken.add(found)
        yield found


def _amounts(step: TracedStep) -> str:
    if step.are_operations:
        return f"{step.forward:.4g} operations of forward and {step.backward:.4g} of backward"
    return f"{step.forward * 1e3:.4g} ms of forward and {step.backward * 1e3:.4g} ms of backward"


def _notes(step: TracedStep, model: Model, where: str) -> Iterator[str]:
    num_gradients = len(step.gradients)
    yield (
        f"Model {model.name} ({where}): {model.num_parameters:,} parameters in {num_gradients} "
        f"gradient{'s' if num_gradients > 1 else ''} of {step.which}, in the order in which backward had them."
    )
    yield from step.notes
    yield (
        "A trace says nothing of activations: they are not in the account of memory. A sample is what the traced step "
        "computed; --batch says how many that were, and changes no time (assumption)."
    )
    if not step.is_simulated:
        yield "Tracing slows a step down; --iteration-s scales these times to those of a step without it."
