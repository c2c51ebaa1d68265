"""Features beside the kernel of clients and memory devices, by name.

A feature adds records, a machine for each memory device that decides what follows from them, an executor that carries
the decisions out, and a part of the worker that sends the records. Its spec has only its name and texts until the
feature is used. A device attaches a feature when its first record comes, so that a job without it imports nothing of it
(docs/design.md, "Features beside the kernel").
"""

import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from coarse.errors import ConfigError

if TYPE_CHECKING:  # a live job has no use for it
    from coarse.protocol.costs import Costs

_TAGS_BEGIN = 16
_TAGS_EACH = 8


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """Feature: its name and the places of its parts, as MODULE:NAME."""

    name: str
    """Prefix of the names of its records on the wire."""
    records: str
    """Tuple of NamedTuple classes."""
    machine: str
    """Function that is called with a DeviceKit and returns a FeatureMachine (coarse.proxy.feature)."""
    executor: str = ""
    """Function that is called with that machine and a ServiceKit and returns a FeatureExecutor (coarse.proxy.executor).
    """
    costs: str = ""
    """Costs of records, instructions and workers' steps by their class (coarse.protocol.costs), for drivers that keep
    modelled time. A driver refuses a type that is not among them."""


_specs: dict[str, FeatureSpec] = {
    spec.name: spec
    for spec in (
        FeatureSpec(
            name="snapshots",
            records="coarse.snapshots.records:RECORDS",
            machine="coarse.snapshots.device:machine_of",
            executor="coarse.snapshots.executor:executor_of",
            costs="coarse.snapshots.costs:COSTS",
        ),
        FeatureSpec(
            name="odc",
            records="coarse.odc.records:RECORDS",
            machine="coarse.odc.device.models:machine_of",
            executor="coarse.odc.device.executor:executor_of",
            costs="coarse.odc.costs:COSTS",
        ),
        FeatureSpec(
            name="luwu",
            records="coarse.luwu.records:RECORDS",
            machine="coarse.luwu.device.models:machine_of",
            executor="coarse.luwu.device.executor:executor_of",
            costs="coarse.luwu.costs:COSTS",
        ),
    )
}


def spec_of(name: str) -> FeatureSpec:
    """Return the feature of a name.

    Raises:
        ConfigError: There is none.
    """
    if name not in _specs:
        raise ConfigError(
            f"a feature {name!r} was asked for, and {[*_specs]} are known; name its MODULE:SPEC in `features` on all "
            "ranks",
            key="features",
        )
    return _specs[name]


def use_features(references: Iterable[str]) -> tuple[FeatureSpec, ...]:
    """Add other packages' features that a job names, as MODULE:SPEC, and return all that are then known.

    All ranks return the same features in the same order.

    Raises:
        ConfigError: A part cannot be imported, is no FeatureSpec, or has the name of another feature.
    """
    for reference in references:
        spec = _imported(reference, f"the feature {reference!r}")
        if not isinstance(spec, FeatureSpec):
            raise ConfigError(
                f"the feature {reference!r} should be a FeatureSpec, got {type(spec).__name__}; name one",
                key="features",
            )
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,30}", spec.name):
            raise ConfigError(
                f"the feature {reference!r} is named {spec.name!r}; a name has small letters, digits and _, 31 at most",
                key="features",
            )
        if _specs.setdefault(spec.name, spec) != spec:
            raise ConfigError(
                f"the feature {reference!r} is named {spec.name!r}, as another one; rename it", key="features"
            )
        for part in filter(None, (spec.records, spec.machine, spec.executor, spec.costs)):
            _imported(part, f"{part!r} of the feature {spec.name!r}")
    return (*_specs.values(),)


def _imported(reference: str, what: str) -> Any:  # noqa: ANN401
    try:
        return part_of(reference)
    except Exception as error:  # a module of somebody else's may raise anything
        raise ConfigError(
            f"{what} cannot be imported ({type(error).__name__}: {error}); write MODULE:NAME, and have the module "
            "where all ranks import from",
            key="features",
        ) from error


def costs_of(name: str) -> "Costs":
    """Return the costs that a feature states; none where it states none.

    Raises:
        ConfigError: there is no such feature.
    """
    reference = spec_of(name).costs
    return part_of(reference) if reference else {}


def part_of(reference: str) -> Any:  # noqa: ANN401
    """Import the object that MODULE:NAME names."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def later(
    package: str, names: MutableMapping[str, object], modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports some of its names on first use.

    Args:
        package: Name of the package.
        names: Globals of the package.
        modules: Module of each such name, by name.
    """

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = names[name] = part_of(f"{modules[name]}:{name}")
        return found

    return get, lambda: sorted({*names, *modules})


def tag_of(name: str, number: int) -> int:
    """Return the MPI tag of a feature's messages of one kind, from device to device; `number` is 0 to 7."""
    if not 0 <= number < _TAGS_EACH:
        raise ValueError(f"a feature has {_TAGS_EACH} kinds of messages, got number {number}")
    return _TAGS_BEGIN + _TAGS_EACH * [*_specs].index(name) + number


def kind_of_message(tag: int) -> tuple[str, int]:
    """Return the feature to which a tag belongs, and the number that `tag_of` was given."""
    place, number = divmod(tag - _TAGS_BEGIN, _TAGS_EACH)
    return [*_specs][place], number
