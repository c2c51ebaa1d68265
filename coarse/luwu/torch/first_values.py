"""First values of a model's units, which are made one by one where the model is on the meta device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from coarse.errors import ConfigError
from coarse.luwu.torch.plan import ModelPlan

Initialise = Callable[[nn.Module], None]


class FirstValues:
    """Source of a unit's first tensors, as the model has them, or made now.

    A module on the meta device gets real parameters for as long as it takes to fill them, by `initialise` or its own
    reset_parameters(), as torch's modules have it. All workers draw the same random numbers, though worker 0's count.
    """

    def __init__(self, plan: ModelPlan, initialise: Initialise | None) -> None:
        self._plan = plan
        self._initialise = initialise
        self._owners: dict[int, dict[int, nn.Module]] = {}
        """Unit -> modules that own some of it, by their ids."""
        for site in plan.sites:
            for use in site.uses:
                self._owners.setdefault(use.unit, {})[id(use.module)] = use.module

    def require_made(self, model: nn.Module) -> None:
        """Raise ConfigError where something on the meta device has nothing that fills it."""
        if self._initialise is not None:
            return
        for name, module in model.named_modules():
            on_meta = [key for key, one in module._parameters.items() if _is_on_meta(one)]
            if on_meta and not callable(getattr(module, "reset_parameters", None)):
                raise ConfigError(
                    f"{type(module).__name__} ({name or 'the model'}) owns parameters {on_meta} on the meta device and "
                    "has no reset_parameters(); pass initialise=, which fills a module's own parameters",
                    key="initialise",
                )
            on_meta = [key for key, one in module._buffers.items() if _is_on_meta(one)]
            if on_meta and not callable(getattr(module, "reset_running_stats", None)):
                raise ConfigError(
                    f"{type(module).__name__} ({name or 'the model'}) has buffers {on_meta} on the meta device, and "
                    "nothing that fills them; pass initialise=",
                    key="initialise",
                )

    def of(self, unit: int) -> dict[int, torch.Tensor | None]:
        """Return the values of a unit by tensor."""
        found: dict[int, torch.Tensor | None] = dict(enumerate(self._plan.parameters[unit]))
        if not any(parameter.device.type == "meta" for parameter in self._plan.parameters[unit]):
            return found
        places = {id(parameter): place for place, parameter in enumerate(self._plan.parameters[unit])}
        for module in self._owners[unit].values():
            for place, values in self._made(module, places):
                found[place] = values
        return found

    def _made(self, module: nn.Module, places: dict[int, int]) -> list[tuple[int, torch.Tensor]]:
        """Fill a module's own parameters; return those of the unit that is wanted."""
        own = {name: parameter for name, parameter in module._parameters.items() if parameter is not None}
        for name, parameter in own.items():
            if parameter.device.type == "meta":
                empty = torch.empty_like(parameter, device="cpu")
                module._parameters[name] = nn.Parameter(empty, parameter.requires_grad)
        try:
            self._fill(module)
            made = [(places[id(old)], module._parameters[name]) for name, old in own.items() if id(old) in places]
        finally:
            module._parameters.update(own)
        return [(place, parameter.data) for place, parameter in made if parameter is not None]

    def fill_buffers(self, model: nn.Module) -> None:
        """Make buffers that are on the meta device; they stay with the workers."""
        for module in model.modules():
            on_meta = {key: one for key, one in module._buffers.items() if one is not None and _is_on_meta(one)}
            module._buffers.update({key: torch.zeros_like(one, device="cpu") for key, one in on_meta.items()})
            reset = getattr(module, "reset_running_stats", None)
            if on_meta and callable(reset):
                reset()

    def _fill(self, module: nn.Module) -> None:
        with torch.no_grad():
            if self._initialise is not None:
                self._initialise(module)
            else:
                module.reset_parameters()  # type: ignore[operator]


def _is_on_meta(one: torch.Tensor | None) -> bool:
    return one is not None and one.device.type == "meta"
