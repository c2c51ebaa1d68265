"""Layers of a torch module, by one forward pass on torch's meta device, where tensors have no memory.

[Note: what a trace counts] A layer is a submodule with parameters, at the place where forward first enters it; what
runs between two of them counts for the one before. Parameters of a submodule that is never entered, such as the
projection of nn.MultiheadAttention, count for the submodule around it. A shared parameter counts once, under the first
of its names. FLOPs are those of torch.utils.flop_counter: matrix products, convolutions and attention. Activations are
the tensors that autograd saves for backward, each memory once, at the layer that saves it first, without parameters and
buffers: numbers in the precision of the prediction, booleans and bytes as dropout's masks. The meta device runs
attention by plain products, so its scores are among them. A loss's activations are missing unless the module computes
the loss.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from coarse.cli.own_model.description import OwnModel
from coarse.errors import ConfigError
from coarse.hardware.models import Layer, Model

META = torch.device("meta")
_FP32_BYTES = 4
_MASK_TYPES = (torch.bool, torch.uint8, torch.int8)
_REMEDY = "return inputs that fit, and let forward not depend on values (.item(), nonzero())"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Arguments of forward, on the meta device."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    sample: str = ""
    """Description of one sample."""
    num_samples: int = 1


@dataclass
class _Counts:
    """Counts of one submodule, for all samples."""

    flops: int = 0
    saved_numel: int = 0
    mask_numel: int = 0

    def add(self, other: "_Counts") -> None:
        """Add another submodule's counts."""
        self.flops += other.flops
        self.saved_numel += other.saved_numel
        self.mask_numel += other.mask_numel


def called(function: Callable[[], object], text: str, sequence: int | None) -> tuple[nn.Module, Inputs]:
    """Return the module of a user's function, on the meta device, and its inputs.

    The function returns a module, or a module and its inputs or their shapes.

    Raises:
        ConfigError: a function that fails or returns something else, or inputs that are missing or given twice.
    """
    made = _made(function, text)
    module, given = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"--model {text}: wanted a torch.nn.Module, or (module, inputs), got {type(made).__name__}; return one of "
            "these",
            key="model",
        )
    if not list(module.parameters()):
        raise ConfigError(f"--model {text}: its module has no parameters; return one that learns", key="model")
    module = module.to(META)
    if (given is None) is (sequence is None):
        remedy = "add --sequence for tokens, or return (module, inputs)" if given is None else "leave --sequence out"
        raise ConfigError(
            f"--model {text}: inputs must come from one place, got {'none' if given is None else 'two'}; {remedy}",
            key="sequence",
        )
    return module, tokens(sequence) if sequence is not None else _inputs(given, module, text)


def tokens(sequence: int, **others: torch.Tensor) -> Inputs:
    """Return one sample of `sequence` tokens as the only positional input, and `others` by name."""
    ids = torch.empty((1, sequence), dtype=torch.int64, device=META)
    return Inputs(args=(ids,), kwargs=others, sample=f"sequence of {sequence} tokens")


def traced(module: nn.Module, inputs: Inputs, *, name: str, where: str, remedy: str = _REMEDY) -> OwnModel:
    """Return a module's layers by one forward pass for training; see [Note: what a trace counts].

    `remedy` says what to do about a forward pass that fails.

    Raises:
        ConfigError: a forward pass that fails on the meta device, or whose outcome no parameter takes part in.
    """
    module.train()
    trace = _Trace(module)
    try:
        outcome = trace.run(inputs)
    except Exception as error:
        raise ConfigError(
            f"{where}: forward failed on torch's meta device: {type(error).__name__}: {_first_line(error)}; {remedy}",
            key="model",
        ) from error
    learned = _learned(outcome)
    parameters = {id(p): (path, p) for path, p in module.named_parameters() if p.numel() and p in learned}
    if not parameters:
        raise ConfigError(
            f"{where}: no parameter takes part in what forward returns as something to be trained; return a tensor "
            "with a gradient",
            key="model",
        )
    layers = tuple(_layers(module, trace.counts, parameters, inputs.num_samples))
    idle = sum(p.numel() for p in module.parameters() if id(p) not in parameters)
    notes = [
        "Parameters, FLOPs and order come from one forward pass on torch's meta device (derived); activations are what "
        "autograd saves there, with attention's scores, and without a loss that is not computed in it (assumption)."
    ]
    if idle:
        notes.append(
            f"{idle:,} parameters have no gradient, frozen or not used by forward: they are not sent, and not in the "
            "account of memory (assumption)."
        )
    return OwnModel(model=Model(name=name, sample=inputs.sample, layers=layers), notes=tuple(notes))


class _Trace:
    """Counts of one forward pass by the path of the submodule that was entered last, in order of entering."""

    def __init__(self, module: nn.Module) -> None:
        self.counts: dict[str, _Counts] = {}
        self._module = module
        self._current = _Counts()
        self._flops = FlopCounterMode(display=False)
        self._num_counted = 0
        self._kept: list[torch.Tensor] = []  # so that no storage's address is used again
        self._seen = {_storage(tensor) for tensor in (*module.parameters(), *module.buffers())}

    def run(self, inputs: Inputs) -> object:
        """Run forward, count it and return its result."""
        modules = dict(self._module.named_modules())
        hooks = [one.register_forward_pre_hook(self._entering(path)) for path, one in modules.items()]
        try:
            with self._flops, saved_tensors_hooks(self._pack, lambda tensor: tensor):
                outcome = self._module(*inputs.args, **inputs.kwargs)
            self._credit()
        finally:
            for hook in hooks:
                hook.remove()
        return outcome

    def _entering(self, path: str) -> Callable[[nn.Module, object], None]:
        def enter(module: nn.Module, args: object) -> None:
            self._credit()
            self._current = self.counts.setdefault(path, _Counts())

        return enter

    def _credit(self) -> None:
        """Credit the FLOPs since the last call to the submodule that was entered last."""
        total = self._flops.get_total_flops()
        self._current.flops += total - self._num_counted
        self._num_counted = total

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        key = _storage(tensor)
        if key not in self._seen:
            self._seen.add(key)
            self._kept.append(tensor)
            nbytes = tensor.untyped_storage().nbytes()
            if tensor.dtype in _MASK_TYPES:
                self._current.mask_numel += nbytes
            elif tensor.is_floating_point():
                self._current.saved_numel += nbytes // tensor.element_size()
            else:
                self._current.saved_numel += math.ceil(nbytes / _FP32_BYTES)
        return tensor


def _storage(tensor: torch.Tensor) -> int:
    """Return a number that tensors with shared memory have in common; on the meta device all pointers are 0."""
    return int(tensor.untyped_storage()._cdata)


def _layers(
    module: nn.Module, counts: Mapping[str, _Counts], parameters: dict[int, tuple[str, nn.Parameter]], num_samples: int
) -> Iterator[Layer]:
    """Yield the submodules with parameters or computation, in order; add other counts to the one before."""
    owned: dict[str, list[tuple[str, tuple[int, ...]]]] = {path: [] for path in counts}
    for path, parameter in parameters.values():
        owned[_entered(path, counts)].append((path, tuple(parameter.shape)))
    leading, merged = _Counts(), dict[str, _Counts]()
    for path, count in counts.items():
        has_shared = any(True for _ in module.get_submodule(path).parameters(recurse=False))
        if owned[path] or (count.flops and has_shared):
            merged[path] = _Counts()
        (merged[next(reversed(merged))] if merged else leading).add(count)
    merged[next(iter(merged))].add(leading)
    for path, count in merged.items():
        yield Layer(
            name=path or "module",
            parameters=tuple(owned[path]),
            flops_per_sample=count.flops // num_samples,
            saved_numel=math.ceil(count.saved_numel / num_samples),
            mask_numel=math.ceil(count.mask_numel / num_samples),
        )


def _entered(parameter: str, counts: Mapping[str, _Counts]) -> str:
    """Return the innermost entered submodule around a parameter; forward always enters the module itself."""
    path = parameter
    while path:
        path = path.rpartition(".")[0]
        if path in counts:
            return path
    return ""


def _learned(outcome: object) -> set[nn.Parameter]:
    """Return the parameters that backward would give gradients, by autograd's graph."""
    waiting = [leaf.grad_fn for leaf in tree_leaves(outcome) if isinstance(leaf, torch.Tensor)]
    found, seen = set(), set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(node.variable)
        waiting += [following for following, _ in node.next_functions]
    return found


def _made(function: Callable[[], object], text: str) -> object:
    """Return the function's result on the meta device, or on real memory if it needs values."""
    try:
        try:
            with META:
                return function()
        except (RuntimeError, NotImplementedError):
            return function()
    except Exception as error:
        raise ConfigError(
            f"--model {text}: the function failed: {type(error).__name__}: {_first_line(error)}; it takes no argument "
            "and returns a torch.nn.Module, or (module, inputs)",
            key="model",
        ) from error


def _inputs(given: object, module: nn.Module, text: str) -> Inputs:
    """Return the inputs of a tensor, a shape, a sequence of them, or a mapping of them by forward's names."""
    dtype = next(module.parameters()).dtype

    def tensor(value: object) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value.to(META)
        if isinstance(value, tuple | list) and _is_shape(value):
            return torch.empty(tuple(value), dtype=dtype, device=META)
        raise ConfigError(
            f"--model {text}: inputs are tensors or shapes such as (8, 3, 224, 224), alone, in a tuple, or in a "
            f"dictionary by forward's names, got {type(value).__name__}; return such",
            key="model",
        )

    args: tuple[torch.Tensor, ...] = ()
    kwargs: dict[str, torch.Tensor] = {}
    if isinstance(given, Mapping):
        kwargs = {str(key): tensor(value) for key, value in given.items()}
    elif isinstance(given, torch.Tensor) or _is_shape(given) or not isinstance(given, tuple | list):
        args = (tensor(given),)
    else:
        args = tuple(map(tensor, given))
    first = next(iter((*args, *kwargs.values())), None)
    if first is None or first.ndim == 0 or first.shape[0] < 1:
        raise ConfigError(
            f"--model {text}: the first input's first dimension is the number of samples, got "
            f"{'no input' if first is None else tuple(first.shape)}; return at least one sample",
            key="model",
        )
    sample = " x ".join(map(str, first.shape[1:])) or "1"
    return Inputs(args=args, kwargs=kwargs, sample=f"tensor of {sample}", num_samples=first.shape[0])


def _is_shape(value: object) -> bool:
    return isinstance(value, tuple | list) and bool(value) and all(type(part) is int and part > 0 for part in value)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
