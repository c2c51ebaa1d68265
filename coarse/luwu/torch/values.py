"""Values of units: looked at by one worker, and replaced by all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from coarse.luwu.torch.released import Released
from coarse.parallel.data.equal_values import require_same

if TYPE_CHECKING:
    from coarse.luwu.client.model import RemoteModel
    from coarse.luwu.torch.sites import FilledModule

PARAMETERS = 0


class UnitValues:
    """Arrays of units, to be read and written: 0 are the parameters, 1 and more the optimizer's states."""

    def __init__(self, remote: RemoteModel, placeholders: Mapping[tuple[int, int], nn.Parameter]) -> None:
        self.remote = remote
        self.placeholders = placeholders
        self._loading: dict[int, dict[int, torch.Tensor]] | None = None
        """Unit -> tensor -> its values of a state dict, while one is being loaded."""

    # --- reading

    def read(self, unit: int, array: int = PARAMETERS) -> tuple[dict[str, torch.Tensor], tuple[int, ...]]:
        """Return an array's tensors by name, float32, copies, and the number of steps that each has had."""
        of = self.remote.declaration.model.units[unit]
        flat, steps = self.remote.look(unit, array)
        found = {}
        for tensor, begin in zip(of.tensors, of.begins, strict=True):
            part = flat[begin : begin + tensor.num_elements]
            found[tensor.name] = torch.from_numpy(part).reshape(tensor.shape)
        return found, steps

    @contextmanager
    def summoned(
        self, units: list[int], sites: list[FilledModule], *, write: bool
    ) -> Iterator[dict[str, torch.Tensor]]:
        """Give the values of units within the context; see NetworkOptimizer.summoned."""
        model = self.remote.declaration.model
        shown: dict[tuple[int, int], nn.Parameter] = {}
        found: dict[str, torch.Tensor] = {}
        before: dict[str, bytes] = {}
        for unit in units:
            values, _ = self.read(unit)
            for place, tensor in enumerate(model.units[unit].tensors):
                parameter = nn.Parameter(values[tensor.name], tensor.is_trainable)
                shown[unit, place] = parameter
                found[tensor.name] = parameter.data
                before[tensor.name] = _digest(parameter.data)
        for site in sites:
            site.show(shown)
        try:
            yield found
        finally:
            for site in sites:
                site.show(self.placeholders)
        if write:
            self._write_changed(units, shown, before)

    def _write_changed(
        self, units: list[int], shown: dict[tuple[int, int], nn.Parameter], before: dict[str, bytes]
    ) -> None:
        model = self.remote.declaration.model
        changed: dict[int, dict[int, torch.Tensor]] = {}
        entries = []
        for unit in units:
            for place, tensor in enumerate(model.units[unit].tensors):
                values = shown[unit, place].data
                digest = _digest(values)
                if digest != before[tensor.name]:
                    changed.setdefault(unit, {})[place] = values
                    entries.append((tensor.name, f"values of digest {digest.hex()[:12]}"))
        require_same(entries, "value")
        for unit, of_unit in changed.items():
            self.write(unit, dict(of_unit))

    # --- writing

    def write(self, unit: int, values: Mapping[int, torch.Tensor | None], array: int = PARAMETERS) -> None:
        """Replace some tensors of an array.

        All workers call it with the same tensors, of which worker 0's count.
        """
        if self.remote.client != 0:
            self.remote.push_values(unit, array, 0, None)
            return
        of = self.remote.declaration.model.units[unit]
        flat = np.zeros(of.num_elements, np.float32)
        present = 0
        for place, tensor in values.items():
            assert tensor is not None
            present |= 1 << place
            begin = of.begins[place]
            end = begin + of.tensors[place].num_elements
            flat[begin:end] = tensor.detach().to(torch.float32).reshape(-1).numpy()
        self.remote.push_values(unit, array, present, flat)

    # --- state dicts of modules

    def put_into(self, state_dict: dict[str, object], dtypes: Mapping[str, torch.dtype]) -> None:
        """Replace placeholders in a module's state dict by the values, in the types that they had."""
        unit_of = {
            tensor.name: unit for unit, of in enumerate(self.remote.declaration.model.units) for tensor in of.tensors
        }
        keys: dict[int, list[tuple[str, str]]] = {}
        for key, value in state_dict.items():
            if isinstance(value, Released):
                keys.setdefault(unit_of[value.parameter_name], []).append((key, value.parameter_name))
        for unit, of_unit in keys.items():
            values, _ = self.read(unit)
            for key, name in of_unit:
                state_dict[key] = values[name].to(dtypes[name])

    def begin_loading(self) -> None:
        """Begin to take over values that are copied into parameters, unit by unit."""
        self._loading = {}

    def accept(self, unit: int, place: int, values: torch.Tensor) -> bool:
        """Take a parameter's new values, where a state dict is being loaded; return whether they were taken."""
        if self._loading is None:
            return False
        model = self.remote.declaration.model
        of_unit = self._loading.setdefault(unit, {})
        of_unit[place] = values.detach().clone()
        if len(of_unit) == len(model.units[unit].tensors):
            self._flush(unit)
        return True

    def end_loading(self) -> None:
        """Write the rest, as all of a state dict was copied."""
        assert self._loading is not None
        for unit in list(self._loading):
            self._flush(unit)
        self._loading = None

    def _flush(self, unit: int) -> None:
        assert self._loading is not None
        if values := self._loading.pop(unit):
            self.write(unit, dict(values))


def _digest(values: torch.Tensor) -> bytes:
    raw = values.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(raw.data, digest_size=16).digest()
