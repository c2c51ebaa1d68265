"""Parameters and optimizer state that live in device memory, so that snapshots hold them there.

[Note: who writes] While a snapshot is being copied, a state array may not be written to before it was asked for by
`before_overwrite`. Optimizers that were moved here ask by a hook before they step, models that were snapshot ask before
they load a state dict, and all of coarse.torch asks before it writes a result. Other code that writes to parameters in
place asks by itself.
"""

from collections.abc import Iterable
from weakref import WeakKeyDictionary, WeakSet

import torch

from coarse.arrays import before_overwrite, state_array_of
from coarse.client.states import DeviceStates, StateArray
from coarse.session import current, is_initialized
from coarse.torch.tensors import has_wire_type, tensor_of, wire_type_of
from coarse.torch.touches import watch_touches

_asking: WeakSet[torch.nn.Module] = WeakSet()
"""Modules that ask before they load a state dict."""


class DeviceState:
    """State arrays that hold an optimizer's parameters and state; it asks before each step.

    Tensors that device memory cannot hold in place stay where they are: tensors on a GPU, of a type that has none on
    the wire, or not contiguous. Snapshots copy those at the call.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str], prefix: str
    ) -> None:
        """Move an optimizer's tensors.

        `prefix` stands before the names of arrays where another optimizer has the plain ones.
        """
        self._optimizer = optimizer
        self._names = names
        self._prefix = prefix
        self._own: dict[str, StateArray] = {}
        """Name of a tensor -> the array that this optimizer has for it."""
        self.move()
        if is_initialized():
            watch_touches(current().require_client())
        self._hooks = (
            optimizer.register_step_pre_hook(_ask),
            optimizer.register_step_post_hook(lambda *_: self.move()),
            optimizer.register_load_state_dict_post_hook(lambda *_: self.move()),
        )

    def close(self) -> None:
        """Give parameters and state separate memory, and move nothing any more; snapshots copy them then."""
        for hook in self._hooks:
            hook.remove()
        own = {array.array.ctypes.data for array in self._own.values()}
        if is_initialized():
            _unused_arrays().update(array.name for array in self._own.values())
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.data_ptr() in own:
                    parameter.data = parameter.data.clone()
        for state in self._optimizer.state.values():
            moved = {k: v for k, v in state.items() if isinstance(v, torch.Tensor) and v.data_ptr() in own}
            state.update({key: value.clone() for key, value in moved.items()})

    def move(self) -> None:
        """Move all tensors that are not there yet: state exists only after the first step."""
        if not is_initialized():
            return
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if is_movable(parameter) and state_of(parameter) is None:
                    name = f"model/{self._names[parameter]}"
                    parameter.data = self._moved(parameter.data, name)
        for parameter, state in self._optimizer.state.items():
            for key, value in state.items():
                if (
                    isinstance(value, torch.Tensor)
                    and is_movable(value)
                    and state_of(value) is None
                ):
                    state[key] = self._moved(value, f"optimizer/{self._names[parameter]}/{key}")

    def _moved(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        wire, shape = wire_type_of(tensor, name), tuple(tensor.shape)
        own = self._own.get(name)
        if own is None or (own.dtype, own.array.shape) != (wire, shape):
            arrays, unused = current().require_client().states.arrays, _unused_arrays()
            known = arrays.get(name)
            fits = known is None or (name in unused and (known.dtype, known.array.shape) == (wire, shape))
            array_name = name if fits else f"{self._prefix}{name}"
            state_array_of(array_name, shape, wire)
            own = self._own[name] = arrays[array_name]
            unused.discard(array_name)
        before_overwrite([own.name])
        moved = tensor_of(own.array, wire)
        moved.copy_(tensor.detach())
        return moved


_unused: WeakKeyDictionary[DeviceStates, set[str]] = WeakKeyDictionary()


def _unused_arrays() -> set[str]:
    """Return the names of arrays whose optimizer has been closed.

    The next optimizer for tensors of these names takes them over.
    """
    return _unused.setdefault(current().require_client().states, set())


def _ask(*_: object) -> None:
    """Ask before writing, as a hook of an optimizer or model: its tensors are in device memory."""
    if is_initialized():
        before_overwrite()


def let_ask(model: torch.nn.Module) -> None:
    """Have a model, and each of its parts, ask before it loads a state dict (see [Note: who writes])."""
    for module in model.modules():
        if module not in _asking:
            module.register_load_state_dict_pre_hook(_ask)
            _asking.add(module)


def before_writing_to(tensors: Iterable[torch.Tensor]) -> None:
    """Return once these tensors, or views of them, may be written to: see [Note: who writes]."""
    states = current().require_client().states
    if not states.arrays:
        return
    plain = (t for t in tensors if t.device.type == "cpu" and t.layout is torch.strided)
    found = (states.at(tensor.untyped_storage().data_ptr()) for tensor in plain)
    names = {state.name for state in found if state is not None}
    if names:
        before_overwrite(names)


def is_movable(tensor: torch.Tensor) -> bool:
    """Return whether a state array can take the tensor's place."""
    is_plain = tensor.device.type == "cpu" and tensor.layout is torch.strided
    return (
        is_plain and has_wire_type(tensor.dtype) and tensor.is_contiguous() and tensor.numel() > 0
    )


def state_of(tensor: torch.Tensor) -> StateArray | None:
    """Return the state array that a movable tensor is; None where it lies elsewhere."""
    state = current().require_client().states.at(tensor.data_ptr())
    if state is None or state.array.shape != tuple(tensor.shape):
        return None
    return state if state.dtype is wire_type_of(tensor, state.name) else None
