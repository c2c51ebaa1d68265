"""Models and optimizer states in files and state dicts, a unit at a time.

[Note: folders] Parameters, and worker 0's buffers, are saved as Hugging Face saves them: `model.safetensors`, or shards
and an index. Optimizer states lie beside them in `optimizer.safetensors`, or shards, under names such as
`exp_avg/NAME`, with `optimizer.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from coarse.errors import StorageError
from coarse.luwu.torch.replacement import Replacement
from coarse.luwu.torch.worker_state import put_into_buffers
from coarse.protocol.distribution import how_to_install
from coarse.protocol.units import MIB
from coarse.session import current
from coarse.torch.groups.objects import broadcast_object
from coarse.torch.own_state import kept_buffers

if TYPE_CHECKING:
    from coarse.luwu.client.model import RemoteModel
    from coarse.luwu.torch.values import UnitValues

STATE_NAMES = {"Adam": ("exp_avg", "exp_avg_sq"), "AdamW": ("exp_avg", "exp_avg_sq"), "SGD": ("momentum_buffer",)}
"""Names of states in torch.optim, in the order of a unit's arrays."""
_DOCUMENT = "optimizer.json"
_FILES = r"(model|optimizer)(-\d+|(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?)|optimizer\.json"
"""Pattern of the files that belong together, with those of shards whose number is not known yet."""
_SHARD_BYTES = 1024 * MIB
_MISSING = f"safetensors files need the package safetensors; install it with: {how_to_install('snapshot')}"


class Stated(Protocol):
    """Optimizer whose states are kept elsewhere, with the members that state dicts need."""

    remote: RemoteModel
    values: UnitValues
    param_groups: list[dict[str, Any]]

    def numbers(self) -> dict[str, int]:
        """Return the numbers in torch's state dicts, by the names of kept tensors."""
        ...


class Saveable(Stated, Protocol):
    """NetworkOptimizer with the members that files need."""

    steps: int
    dtypes: dict[str, torch.dtype]
    model: nn.Module
    """Model whose buffers are saved beside the parameters."""

    def settings(self) -> str:
        """Return the groups' settings, as JSON."""
        ...


def save(optimizer: Saveable, folder: Path, *, states: bool) -> None:
    """Save a model and its states to a folder; see NetworkOptimizer.save."""
    if current().client_index != 0:
        return
    try:
        files = Replacement(folder, _FILES)
        steps: dict[str, int] = {}
        _write_shards(files, "model", _parameters(optimizer, steps))
        if states:
            _write_shards(files, "optimizer", _states(optimizer))
            document = {
                "optimizer": optimizer.remote.declaration.optimizer,
                "step": optimizer.steps,
                "steps": steps,
                "param_groups": json.loads(optimizer.settings()),
            }
            files.path(_DOCUMENT).write_bytes(json.dumps(document).encode())
        files.commit()
    except OSError as error:
        raise StorageError(f"{folder} cannot be written to: {error}; name a folder with room") from error


def load(optimizer: Saveable, folder: Path) -> None:
    """Load a model and its states from a folder; see NetworkOptimizer.load."""
    reader, said = None, {"error": "", "has_states": False, "document": {}}
    if current().client_index == 0:
        try:
            if folder.is_dir():
                Replacement(folder, _FILES)  # finishes a save that a crash interrupted
            reader = _Reader(optimizer, folder)
            said |= {"has_states": reader.has_states, "document": reader.document}
        except (OSError, ValueError, KeyError) as error:
            said["error"] = f"{folder} cannot be loaded: {error}"
    said = broadcast_object(said)
    if said["error"]:
        raise StorageError(f"rank {current().client_index}: {said['error']}")
    buffers = broadcast_object(None if reader is None else reader.buffers())
    put_into_buffers(optimizer.model, buffers, str(folder))
    model = optimizer.remote.declaration.model
    for unit, of in enumerate(model.units):
        values = {place: None if reader is None else reader.parameter(t.name) for place, t in enumerate(of.tensors)}
        optimizer.values.write(unit, values)
        if not said["has_states"] or not of.is_trainable:
            continue
        for array, state in enumerate(STATE_NAMES[optimizer.remote.declaration.optimizer][: model.num_states], 1):
            values = {
                place: None if reader is None else reader.state(state, tensor.name)
                for place, tensor in enumerate(of.tensors)
                if tensor.is_trainable
            }
            optimizer.values.write(unit, values, array)
        optimizer.remote.set_steps(unit, [int(said["document"]["steps"].get(t.name, 0)) for t in of.tensors])


def optimizer_state(optimizer: Stated) -> dict[str, Any]:
    """Return the state dict of an optimizer; see NetworkOptimizer.state_dict."""
    remote = optimizer.remote
    model = remote.declaration.model
    names = STATE_NAMES[remote.declaration.optimizer][: model.num_states]
    numbers = optimizer.numbers()
    state: dict[int, dict[str, Any]] = {}
    for unit, of in enumerate(model.units):
        if not of.is_trainable:
            continue
        for array, name in enumerate(names, 1):
            values, steps = optimizer.values.read(unit, array)
            for tensor, step in zip(of.tensors, steps, strict=True):
                if tensor.is_trainable and step:
                    own = state.setdefault(numbers[tensor.name], {})
                    own[name] = values[tensor.name]
                    if name == "exp_avg":
                        own["step"] = torch.tensor(float(step), device="cpu")
    groups = []
    first = 0
    for group in optimizer.param_groups:
        past = first + len(group["params"])
        groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": list(range(first, past))})
        first = past
    return {"state": dict(sorted(state.items())), "param_groups": groups}


def load_optimizer_state(optimizer: Stated, state_dict: Mapping[str, Any]) -> None:
    """Load a state dict into an optimizer; see NetworkOptimizer.load_state_dict."""
    groups = state_dict["param_groups"]
    sizes = [len(group["params"]) for group in groups], [len(group["params"]) for group in optimizer.param_groups]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"the state's groups have {sizes[0]} parameters, and the optimizer's {sizes[1]}; build it with equal groups"
        )
    for own, group in zip(optimizer.param_groups, groups, strict=True):
        own.update({name: value for name, value in group.items() if name != "params"})
    remote = optimizer.remote
    model = remote.declaration.model
    names = STATE_NAMES[remote.declaration.optimizer][: model.num_states]
    numbers = optimizer.numbers()
    for unit, of in enumerate(model.units):
        if not of.is_trainable:
            continue
        own_states = [state_dict["state"].get(numbers.get(tensor.name), {}) for tensor in of.tensors]
        for array, name in enumerate(names, 1):
            values = {
                place: state.get(name, torch.zeros(of.tensors[place].shape, device="cpu"))
                for place, state in enumerate(own_states)
                if of.tensors[place].is_trainable
            }
            optimizer.values.write(unit, values, array)
        # SGD's momentum has no count of its own, and is there from the first step on
        remote.set_steps(unit, [int(state.get("step", 1 if state else 0)) for state in own_states])


# --- files


def _parameters(optimizer: Saveable, steps: dict[str, int]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield worker 0's buffers, then unit by unit the parameters."""
    yield {name: buffer.clone() for name, buffer in kept_buffers(optimizer.model).items()}
    for unit, of in enumerate(optimizer.remote.declaration.model.units):
        values, of_unit = optimizer.values.read(unit)
        steps |= {tensor.name: step for tensor, step in zip(of.tensors, of_unit, strict=True)}
        yield {name: value.to(optimizer.dtypes[name]) for name, value in values.items()}


def _states(optimizer: Saveable) -> Iterator[dict[str, torch.Tensor]]:
    declaration = optimizer.remote.declaration
    names = STATE_NAMES[declaration.optimizer][: declaration.model.num_states]
    for unit, of in enumerate(declaration.model.units):
        for array, state in enumerate(names, 1):
            if of.is_trainable:
                values, _ = optimizer.values.read(unit, array)
                trained = [tensor.name for tensor in of.tensors if tensor.is_trainable]
                yield {f"{state}/{name}": values[name] for name in trained}


def _write_shards(files: Replacement, stem: str, parts: Iterator[dict[str, torch.Tensor]]) -> None:
    """Write files of at most _SHARD_BYTES, or of one larger unit, and an index where there are several."""
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise StorageError(f"{_MISSING} ({error})") from error
    shards: list[list[str]] = []
    held: dict[str, torch.Tensor] = {}
    total_bytes = held_bytes = 0

    def flush() -> None:
        save_file(held, files.path(f"{stem}-{len(shards)}"), metadata={"format": "pt"})
        shards.append(list(held))
        held.clear()

    for part in parts:
        nbytes = sum(value.nbytes for value in part.values())
        if held and held_bytes + nbytes > _SHARD_BYTES:
            flush()
            held_bytes = 0
        held |= {name: value.contiguous() for name, value in part.items()}
        held_bytes += nbytes
        total_bytes += nbytes
    if held:
        flush()
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"{stem}-{number + 1:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else f"{stem}.safetensors"
        files.rename(f"{stem}-{number}", file)
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        files.path(f"{stem}.safetensors.index.json").write_bytes(json.dumps(index).encode())


class _Reader:
    """Tensors of a folder, found by name and read one at a time; all are checked before any is read."""

    def __init__(self, optimizer: Saveable, folder: Path) -> None:
        model, self._model = optimizer.remote.declaration.model, optimizer.model
        self._tensors = _files_of(folder, "model")
        wanted = {tensor.name: tensor.shape for unit in model.units for tensor in unit.tensors}
        _require_shapes(self._tensors, wanted, folder)
        self.has_states = (folder / _DOCUMENT).exists()
        self.document: dict[str, Any] = {}
        if self.has_states:
            self.document = json.loads((folder / _DOCUMENT).read_bytes())
            own = optimizer.remote.declaration.optimizer
            if self.document["optimizer"] != own:
                raise ValueError(f"its states are those of {self.document['optimizer']}, and this is {own}")
            self._states = _files_of(folder, "optimizer")
            names = STATE_NAMES[own][: model.num_states]
            trained = [tensor for unit in model.units for tensor in unit.tensors if tensor.is_trainable]
            _require_shapes(self._states, {f"{s}/{t.name}": t.shape for s in names for t in trained}, folder)

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the model's buffers, as far as the folder has them."""
        return {name: self._tensors[name][1]() for name in kept_buffers(self._model) if name in self._tensors}

    def parameter(self, name: str) -> torch.Tensor:
        """Return a parameter."""
        return self._tensors[name][1]()

    def state(self, state: str, name: str) -> torch.Tensor:
        """Return a state of a parameter."""
        return self._states[f"{state}/{name}"][1]()


_Found = dict[str, tuple[tuple[int, ...], Callable[[], torch.Tensor]]]
"""Shape of each tensor by name, and the function that reads it."""


def _files_of(folder: Path, stem: str) -> _Found:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ValueError(f"{_MISSING} ({error})") from error
    index = folder / f"{stem}.safetensors.index.json"
    files = [f"{stem}.safetensors"]
    if index.exists():
        files = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    found: _Found = {}
    for file in files:
        try:
            opened = safe_open(folder / file, framework="pt")
        except SafetensorError as error:
            raise ValueError(f"{file} is no whole file of safetensors ({error})") from error
        for name in opened.keys():  # noqa: SIM118 (it is no dict)
            shape = tuple(opened.get_slice(name).get_shape())
            found[name] = shape, _reading(opened, name)
    return found


def _reading(opened: Any, name: str) -> Callable[[], torch.Tensor]:  # noqa: ANN401
    return lambda: opened.get_tensor(name)


def _require_shapes(found: _Found, wanted: Mapping[str, tuple[int, ...]], folder: Path) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"it lacks {missing[:3]}{' and others' if len(missing) > 3 else ''}")
    for name, shape in wanted.items():
        if found[name][0] != shape:
            raise ValueError(f"{name!r} has shape {list(found[name][0])}, and the model's has {list(shape)}")
