"""CrossBarrier: the next forward pass begins before all gradients have come.

It is the idea of ByteScheduler (SOSP 2019, section 3).

[Note: crossing] A step does not wait. Each module waits, before its forward pass, for the buckets that hold its own
parameters' gradients, and the optimizer steps these parameters alone, with the settings that its groups had when `step`
was called. So gradients of the last layers, which a forward pass needs last, travel while the first ones compute.
Buckets that no module has waited for are waited for when the model's forward pass ends.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from coarse.errors import ConfigError, InFlightError
from coarse.parallel.data.flight import BucketPhase
from coarse.protocol.dtypes import Op
from coarse.torch.compression import NoCompression
from coarse.torch.ddp.buckets import Bucket
from coarse.torch.ddp.optimizer import DistributedOptimizer
from coarse.torch.groups.process_sets import global_process_set
from coarse.torch.tensors import NamedTensors
from coarse.torch.wrappers import is_compiled, is_compiled_in_place, modules_hooked

_READING_CHILDREN = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Modules that read parameters of their children without calling those."""


class CrossBarrier(DistributedOptimizer):
    """DistributedOptimizer whose `step` returns before gradients have come; see [Note: crossing].

    Parameters are as after a plain step whenever the model, its state dict or the optimizer's is used; code that reads
    parameters by other ways calls `synchronize` first.

    Args:
        model: model whose modules wait; all its parameters that the optimizer steps are used through their own modules.
        num_steps: number of steps after which a step waits; 10**6 by default, as in BytePS.

    Zero gradients by the optimizer's `zero_grad`, not the model's. Hooks of the wrapped optimizer's step run once for
    each bucket. `close` takes the hooks off the model, which can be pickled then.

    Raises:
        ConfigError: a process set; an optimizer that does not step each parameter by itself, such as LBFGS; a closure;
            a module compiled in place.
    """

    _gathers_sparse = False  # a gather needs all ranks at once, and comes after the buckets

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedTensors | None = None,
        compression: type[NoCompression] | Op = NoCompression,
        backward_passes_per_step: int = 1,
        num_steps: int = 10**6,
        **options: Any,  # noqa: ANN401
    ) -> None:
        if options.get("process_set", global_process_set) is not global_process_set:
            given = options["process_set"]
            raise ConfigError(f"a CrossBarrier is of all workers, {given} came; use DistributedOptimizer")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigError("LBFGS steps all parameters together; wrap it in DistributedOptimizer")
        for name, module in model.named_modules():
            if is_compiled_in_place(module):
                raise ConfigError(
                    f"{name or type(model).__name__!r} was compiled by Module.compile, and waits of modules within its "
                    "graph come too late; compile blocks by torch.compile(block), or use DistributedOptimizer",
                    key="model",
                )
        names = model.named_parameters() if named_parameters is None else named_parameters
        super().__init__(optimizer, names, compression, backward_passes_per_step, **options)
        self._num_steps_left = num_steps
        self._under_way: dict[int, Bucket] = {}
        """Buckets by index whose parameters are still to be stepped."""
        self._groups: list[dict[str, Any]] = []
        """Groups of the optimizer as they were when `step` was called."""
        self._clear: bool | None = None
        """True if zeroed gradients are to be None, False if not; None if none are to be zeroed after the step."""
        self._model = model
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._hook_modules()

    def step(self, closure: Callable[[], float] | None = None, **options: Any) -> Any:  # noqa: ANN401
        """Push the buckets that backward has not completed, and return; see [Note: crossing].

        It takes no closure.
        """
        if closure is not None:
            raise ConfigError("a CrossBarrier's step takes no closure, for it steps later; use DistributedOptimizer")
        self._finish_step()
        self._num_steps_left -= 1
        if self._is_skipping or self._exchange.is_synchronised:
            return super().step(**options)
        self._require_none_frozen()
        self._exchange.start_all()
        self._groups = [_kept(group) for group in self._inner.param_groups]
        self._clear = None
        self._under_way = {bucket.plan.index: bucket for bucket in self._exchange.buckets}
        if self._num_steps_left <= 0:
            self._finish_step()
        return None

    def synchronize(self) -> None:
        """Finish a step that is under way, or else wait until `.grad` holds the combined gradients."""
        if self._under_way:
            self._finish_step()
        else:
            super().synchronize()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero gradients; those of a step that is under way as soon as the step is done with each."""
        if self._under_way:
            self._clear = set_to_none
        else:
            super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters as in DistributedOptimizer, after finishing a step that is under way."""
        self._finish_step()
        super().add_param_group(param_group)
        self._hook_modules()

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict as in DistributedOptimizer, after finishing a step that is under way."""
        self._finish_step()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict as in DistributedOptimizer, after finishing a step that is under way."""
        self._finish_step()
        super().load_state_dict(state_dict)

    def close(self) -> None:
        """Close as in DistributedOptimizer, after finishing a step that is under way."""
        for hook in getattr(self, "_hooks", ()):
            hook.remove()
        if getattr(self, "_under_way", None):
            self._finish_step()
        super().close()

    # --- within

    def _hook_modules(self) -> None:
        """Have each module wait for its own parameters, and all hooks that take or give state for all."""
        for hook in self._hooks:
            hook.remove()
        index_of = {parameter: b.plan.index for b in self._exchange.buckets for parameter in b.parameters}
        self._hooks = [self._model.register_forward_hook(lambda *_: self._finish_step())]
        for module in self._model.modules():
            self._hooks.append(module.register_state_dict_pre_hook(lambda *_: self._finish_step()))
            self._hooks.append(module.register_load_state_dict_pre_hook(lambda *_: self._finish_step()))
        for _, module in modules_hooked(self._model):
            reads_within = isinstance(module, _READING_CHILDREN) or is_compiled(module)
            parameters = module.parameters(recurse=reads_within)
            own = sorted({index_of[p] for p in parameters if p in index_of})
            if own:  # before hooks that compute a weight from its parts
                self._hooks.append(module.register_forward_pre_hook(self._waiting_for(own), prepend=True))

    def _waiting_for(self, indices: list[int]) -> Callable[[nn.Module, Any], None]:
        def wait(module: nn.Module, given: Any) -> None:  # noqa: ANN401
            for index in indices:
                self._step_bucket(index)

        return wait

    def _finish_step(self) -> None:
        for index in list(self._under_way):
            self._step_bucket(index)

    def _step_bucket(self, index: int) -> None:
        """Wait for a bucket and step its parameters, unless that is done."""
        bucket = self._under_way.get(index)
        if bucket is None:
            return
        if bucket.phase not in (BucketPhase.IN_FLIGHT, BucketPhase.LANDED):
            raise InFlightError(
                f"parameters such as {bucket.plan.names[0]!r} got gradients while their step was under way: they are "
                "used outside the forward passes of their modules; call synchronize() before that, or use "
                "DistributedOptimizer"
            )
        with torch.inference_mode(mode=False):
            self._exchange.land(bucket, is_last=len(self._under_way) == 1)
            del self._under_way[index]
            self._step_alone(set(bucket.parameters))
        if self._clear is not None:
            self._exchange.clear_landed(bucket, set_to_none=self._clear)
        if not self._under_way:
            self._exchange.is_synchronised = False
            if (timer := self._reducer.timer) is not None:
                timer.on_stepped()

    def _step_alone(self, parameters: set[torch.Tensor]) -> None:
        """Step these parameters, with the settings of the step."""
        whole = self._inner.param_groups
        used = [
            {**_kept(group), "params": [parameter for parameter in there["params"] if parameter in parameters]}
            for group, there in zip(self._groups, whole, strict=True)
        ]
        self._inner.param_groups = used
        try:
            with self._made_sparse() if self._wants_sparse else nullcontext():
                self._inner.step()
        finally:
            self._inner.param_groups = whole
        for group, now in zip(self._groups, used, strict=True):
            for key, value in group.items():
                is_tensor = isinstance(value, torch.Tensor)
                if not (torch.equal(now[key], value) if is_tensor else now[key] is value or now[key] == value):
                    raise ConfigError(
                        f"{type(self._inner).__name__} changes its group's {key!r} in step(), which a CrossBarrier "
                        "calls once for each bucket; use DistributedOptimizer"
                    )


def _kept(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group's settings as they are now."""
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key != "params"
    }
