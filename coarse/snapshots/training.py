"""Snapshots of a model and its optimizer, and their restores.

    for epoch in range(num_epochs):
        for step, batch in enumerate(batches, start=epoch * len(batches)):
            ...
        ct.snapshot("checkpoints/last", model=model, optimizer=optimizer, step=step)

    step = ct.restore("checkpoints/last", model=model, optimizer=optimizer).step

The next epoch goes on while devices write; the next snapshot and shutdown wait for the last one.

Tensors are named `model/<name in the state dict>` and `optimizer/<parameter>/<name in the state>`.
Everything of the optimizer that is no tensor stands in the metadata as JSON.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coarse.arrays import before_overwrite
from coarse.errors import CheckpointError, UnsupportedError
from coarse.protocol.dtypes import DType
from coarse.session import current
from coarse.snapshots import face
from coarse.snapshots.client import SnapshotHandle
from coarse.snapshots.files.pieces import StoredTensor
from coarse.snapshots.files.restore import Checkpoint, read_checkpoint
from coarse.torch.ddp.optimizer import DistributedOptimizer
from coarse.torch.device_state import is_movable, let_ask, state_of
from coarse.torch.groups.objects import Plain, blank, pack, unpack
from coarse.torch.tensors import (
    array_of,
    bytes_of,
    has_wire_type,
    on_host,
    signature,
    tensor_of,
    wire_type_of,
)

_OWN = "coarse.torch"
"""Key in the metadata for the facts that this file needs."""
Named = dict[str, torch.Tensor]


def snapshot(
    path: str | os.PathLike[str],
    *,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    step: int,
    metadata: Mapping[str, Any] | None = None,
) -> SnapshotHandle:
    """Hold a model and its optimizer as they are now and write them; see `coarse.snapshot`.

    Tensors in device memory (`parameters_in_device_memory` of DistributedOptimizer) are held there; all others are
    copied before this returns. Buffers, in which workers may differ (BatchNorm's means), are rank 0's, and so all
    workers' after `restore`. Until the handle is done, call `coarse.before_overwrite()` before you write to parameters
    other than by the optimizer, by the model's `load_state_dict` or by functions of coarse, which ask themselves.

    Raises:
        TypeError: the optimizer's state holds something that is neither tensor nor plain value.
    """
    tensors: Named = {}
    buffers: set[str] = set()
    own: dict[str, Any] = {"elsewhere": {}, "bytes": {}}
    if model is not None:
        tensors |= _model_tensors(model)
        buffers = {f"model/{name}" for name, _ in model.named_buffers(remove_duplicate=False)}
        let_ask(model)
    if isinstance(optimizer, DistributedOptimizer) and not optimizer.is_shared:
        raise UnsupportedError(
            "a snapshot holds values that are equal on all workers, and by the job's strategy each worker steps "
            "alone; save each worker's model.state_dict() and optimizer.state_dict() instead"
        )
    if optimizer is not None:
        own["optimizer"] = _pack_optimizer(optimizer, _names_of(optimizer, model), tensors)
    taken = current().require_client().states.arrays
    given: dict[str, StoredTensor] = {}
    unlike: list[str] = []
    for name, tensor in tensors.items():
        state = state_of(tensor) if is_movable(tensor) else None
        stored_name = state.name if state is not None else name
        if state is None:
            if name in taken:  # by a tensor of another model
                stored_name = f"copied/{name}"
            given[stored_name] = _stored(tensor, name, own["bytes"])
            if name in buffers:
                unlike.append(stored_name)
        if stored_name != name:
            own["elsewhere"][name] = stored_name
    everything = {**(metadata or {}), _OWN: own}
    return face.snapshot(path, step=step, metadata=everything, tensors=given, unlike=unlike)


def restore(
    path: str | os.PathLike[str],
    *,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Checkpoint:
    """Read a checkpoint into a model and its optimizer; its metadata and all tensors come back.

    Raises:
        CheckpointError: no whole checkpoint is there, or one of another model or optimizer;
            nothing has been changed then.
    """
    checkpoint = read_checkpoint(Path(path))
    metadata = dict(checkpoint.metadata)
    source = _Source(os.fspath(path), checkpoint, metadata.pop(_OWN, {}))
    wanted = _model_tensors(model) if model is not None else {}
    values = {name: source.tensor(name, tensor) for name, tensor in wanted.items()}
    state = None
    if optimizer is not None:
        state = source.optimizer_state(optimizer, _names_of(optimizer, model))
    before_overwrite()
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(values[name])
    if optimizer is not None and state is not None:
        optimizer.load_state_dict(state)
    return replace(checkpoint, metadata=metadata)


class _Source:
    """Checkpoint as torch tensors."""

    def __init__(self, path: str, checkpoint: Checkpoint, own: dict[str, Any]) -> None:
        self._path = path
        self._tensors = checkpoint.tensors
        self._own = {"elsewhere": {}, "bytes": {}, **own}

    def tensor(self, name: str, wanted: torch.Tensor) -> torch.Tensor:
        """Return the values of a name, which must be like `wanted`."""
        stored = self._tensors.get(self._own["elsewhere"].get(name, name))
        came = "nothing of that name"
        if stored is not None:
            found = self._value(name, stored)
            if (found.dtype, found.shape) == (wanted.dtype, wanted.shape):
                return found
            came = signature(found)
        raise CheckpointError(
            f"{self._path}: {name!r} was wanted as {signature(wanted)}, but {came} came; "
            "restore into the model and optimizer that the snapshot was taken of"
        )

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str]
    ) -> dict[str, Any]:
        """Return a state dict for the optimizer."""
        packed = self._own.get("optimizer")
        found = packed["groups"] if packed is not None else []
        groups = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
        came = [group["params"] for group in found]
        if packed is None or came != groups:
            what = "no optimizer" if packed is None else f"one of the parameters {_few(came)}"
            raise CheckpointError(
                f"{self._path}: an optimizer of the parameters {_few(groups)} was wanted, but "
                f"{what} came; restore into the optimizer that the snapshot was taken of"
            )
        number = {name: i for i, name in enumerate(name for group in groups for name in group)}
        state = {
            number[name]: {key: self._unpacked(item) for key, item in items}
            for name, items in packed["state"]
        }
        options = [
            {
                **{key: self._unpacked(item) for key, item in group["options"]},
                "params": [number[name] for name in group["params"]],
            }
            for group in found
        ]
        return {"state": state, "param_groups": options}

    def _unpacked(self, item: Plain) -> Plain:
        value, names = item
        tensors = blank(value)
        for name, tensor in zip(names, tensors, strict=True):
            tensor.copy_(self.tensor(name, tensor))
        return unpack(value, iter(tensors))

    def _value(self, name: str, stored: StoredTensor) -> torch.Tensor:
        array = np.require(stored.array, requirements=["C", "W"])
        kept = self._own["bytes"].get(name)
        if kept is not None:
            return torch.from_numpy(array).view(getattr(torch, kept)).squeeze(-1)
        return tensor_of(array, stored.dtype)


def _model_tensors(model: torch.nn.Module) -> Named:
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{name!r} of the state dict is a {type(value).__name__}, and only tensors were "
                "wanted; pass it in metadata, and a model without that extra state"
            )
    return tensors


def _names_of(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module | None
) -> dict[torch.Tensor, str]:
    """Return each parameter's name, or its number where it has no name."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    names = {p: str(number) for number, p in enumerate(parameters)}
    if model is not None:
        names |= {p: name for name, p in model.named_parameters()}
    if isinstance(optimizer, DistributedOptimizer):
        names |= optimizer.parameter_names
    return names


def _pack_optimizer(
    optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str], tensors: Named
) -> dict[str, Any]:
    """Return the optimizer as JSON; its tensors are added to `tensors` under their names."""

    def packed(value: Plain, name: str) -> Plain:
        found: list[torch.Tensor] = []
        structure = pack(value, found, name)
        is_alone = isinstance(value, torch.Tensor)
        own_names = [name if is_alone else f"{name}/{i}" for i in range(len(found))]
        tensors.update(zip(own_names, found, strict=True))
        return [structure, own_names]

    def items(mapping: Iterable[tuple[str, Plain]], prefix: str) -> Plain:
        return [[key, packed(value, f"optimizer/{prefix}/{key}")] for key, value in mapping]

    groups = [
        {
            "params": [names[p] for p in group["params"]],
            "options": items(
                ((k, v) for k, v in group.items() if k != "params"), f"param_groups/{i}"
            ),
        }
        for i, group in enumerate(optimizer.param_groups)
    ]
    state = [[names[p], items(entry.items(), names[p])] for p, entry in optimizer.state.items()]
    return {"groups": groups, "state": state}


def _stored(tensor: torch.Tensor, name: str, kept_as_bytes: dict[str, str]) -> StoredTensor:
    host = on_host(tensor)
    if not has_wire_type(host.dtype):
        kept_as_bytes[name] = str(host.dtype).removeprefix("torch.")
        array = bytes_of(host.contiguous()).reshape((*host.shape, host.element_size()))
        return StoredTensor(dtype=DType.UINT8, array=array)
    array = array_of(host)
    return StoredTensor(dtype=wire_type_of(host, name), array=array)


def _few(groups: list[list[str]]) -> str:
    names = [name for group in groups for name in group]
    listed = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
    return f"{listed} ({len(names)} in {len(groups)} groups)"
