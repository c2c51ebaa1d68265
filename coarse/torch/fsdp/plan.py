"""Request of a call of `fully_shard`, and the plan that follows where it can work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

from coarse.errors import ConfigError
from coarse.parallel.sharded.transfers import NodeReads
from coarse.parallel.sharded.unit_cache import AcceleratorCache
from coarse.strategy.named import digest_of
from coarse.strategy.named_sharding import sharding_named
from coarse.strategy.sharding import LIVE, SUM_TOP, Keeps, Sharding, Sum, ZeroPP, keeps_any, name_of
from coarse.torch.fsdp import mesh as meshes
from coarse.torch.fsdp.account import DeviceAccount
from coarse.torch.fsdp.groups import require_same_ranks
from coarse.torch.fsdp.units import PlannedUnit, Units, plan_units, require_unsharded
from coarse.torch.tensors import signature
from coarse.torch.wrappers import require_no_ddp

COLLECTIVES = ("hierarchical", "ring")


@dataclass(frozen=True)
class Request:
    """Arguments of one call."""

    mode: object
    units: Units
    collective: str
    cache: AcceleratorCache | bool | int | None
    reads: str | None
    quantised: bool
    account: DeviceAccount | None
    mesh: DeviceMesh | None
    fsdp2_options: Mapping[str, object]
    sum: str = Sum.INT64
    sum_top: int = SUM_TOP

    def plan_for(self, model: nn.Module | Sequence[nn.Module]) -> Plan:
        """Return the plan; several modules are one unit.

        Raises:
            ConfigError: the request cannot work.
        """
        sharding = self.sharding()
        if self.collective not in COLLECTIVES:
            raise ConfigError(f"collective must be one of {COLLECTIVES}, got {self.collective!r}", key="collective")
        if sharding.meets:
            self._check_cache(sharding)
        else:
            self._check_on_demand()
        self._check_reads(sharding)
        modules = modules_of(model)
        for module in modules:
            require_no_ddp(module)
            require_unsharded(module)
        require_same_ranks()
        meshes.require_fitting(self.mesh, sharding, meshes.nodes_of_workers())
        units = [PlannedUnit("", modules)] if len(modules) > 1 else plan_units(modules[0], self.units)
        return Plan(sharding=sharding, units=tuple(units), request=self)

    def sharding(self) -> Sharding:
        """Return the mode that is meant."""
        found = sharding_named(self.mode, LIVE)
        if not self.quantised:
            return found
        if type(found) is not ZeroPP:
            raise ConfigError(f"quantised gathers belong to mode 'zeropp', got {name_of(found)!r}", key="quantised")
        return ZeroPP(quantised=True)

    def options(self) -> str:
        """Return the arguments that all workers must have equal, beside the mode and the units."""
        policies = [
            f"{name}={value}"
            for name, value in sorted(self.fsdp2_options.items())
            if value is None or isinstance(value, bool | int | MixedPrecisionPolicy | OffloadPolicy)
        ]
        sums = f"sum={self.sum}, {self.sum_top}"
        kept = f"cache={self.cache} reads={self.node_reads}"
        return " ".join([self.collective, sums, kept, f"quantised={self.quantised}", *policies])

    @property
    def node_reads(self) -> NodeReads:
        """Way in which units come from the node's memory."""
        if self.reads is not None:
            return NodeReads(self.reads)
        device_type = meshes.default_device_type() if self.mesh is None else self.mesh.device_type
        is_alone = isinstance(self.cache, AcceleratorCache)
        return NodeReads.WHOLE if is_alone or device_type != "cpu" else NodeReads.PARTS

    def _check_reads(self, sharding: Sharding) -> None:
        if self.reads is None:
            return
        if self.reads not in tuple(NodeReads):
            known = [str(one) for one in NodeReads]
            raise ConfigError(f"reads must be one of {known}, got {self.reads!r}", key="reads")
        if not keeps_any(sharding, Keeps.HOST_COPY):
            raise ConfigError(
                f"reads belongs to mode 'fcdp', which has a host copy; got {name_of(sharding)!r}", key="reads"
            )
        if self.reads == NodeReads.PARTS and self.cache is not None:
            raise ConfigError(
                "reads='parts' gathers among a node's workers, and with a cache each worker decides for itself what it "
                "gathers; take reads='whole', or leave the cache out",
                key="reads",
            )

    def _check_on_demand(self) -> None:
        if self.sum not in tuple(Sum):
            raise ConfigError(f"sum must be one of {[str(one) for one in Sum]}, got {self.sum!r}", key="sum")
        if not isinstance(self.sum_top, int) or not -200 <= self.sum_top <= 200:
            raise ConfigError(f"sum_top is an exponent of 2 from -200 to 200, got {self.sum_top!r}", key="sum_top")
        if isinstance(self.cache, AcceleratorCache) or (self.cache is not None and not int(self.cache) >= 0):
            raise ConfigError(
                f"cache of mode 'odc' is True, or bytes that a node may keep, got {self.cache!r}", key="cache"
            )
        if self.cache and self.sum == Sum.WORKER_ORDER:
            raise ConfigError("sum='worker-order' adds each piece by itself; use it without cache", key="cache")
        after_forward = self.fsdp2_options.get("reshard_after_forward")
        if after_forward is not None and not isinstance(after_forward, bool):
            raise ConfigError(
                f"reshard_after_forward={after_forward!r} gathers by a collective among some workers in backward; mode "
                "'odc' takes True or False", key="reshard_after_forward",
            )  # fmt: skip
        if isinstance(self.fsdp2_options.get("offload_policy"), CPUOffloadPolicy):
            raise ConfigError(
                "CPUOffloadPolicy goes with other modes; in mode 'odc' what others read lies in device memory already",
                key="offload_policy",
            )

    def _check_cache(self, sharding: Sharding) -> None:
        if self.sum != Sum.INT64 or self.sum_top != SUM_TOP:
            raise ConfigError(f"sum and sum_top belong to mode 'odc', got {name_of(sharding)!r}", key="sum")
        if self.cache is None:
            return
        if not isinstance(self.cache, AcceleratorCache):
            raise ConfigError(f"cache is a coarse.torch.AcceleratorCache, got {self.cache!r}", key="cache")
        if not keeps_any(sharding, Keeps.HOST_COPY):
            raise ConfigError(
                f"cache belongs to mode 'fcdp', which has a host copy; got {name_of(sharding)!r}", key="cache"
            )
        if self.account is None or self.account.capacity_bytes is None:
            raise ConfigError(
                "cache has to know how much memory the accelerator has; pass account=DeviceAccount(capacity_bytes)",
                key="account",
            )


def modules_of(model: nn.Module | Sequence[nn.Module]) -> tuple[nn.Module, ...]:
    """Return the modules of a call.

    Raises:
        ConfigError: they are no modules.
    """
    modules = tuple(model) if isinstance(model, list | tuple) else (model,)
    if not modules or not all(isinstance(module, nn.Module) for module in modules):
        raise ConfigError(f"a module, or a list of modules, is sharded; got {model!r}", key="model")
    return modules


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Request that can work on this worker."""

    sharding: Sharding
    units: tuple[PlannedUnit, ...]
    request: Request

    def statement(self) -> list[str]:
        """Return the facts that must be equal on all workers, line by line."""
        lines = [f"mode {name_of(self.sharding)} {self.request.options()}"]
        if own := digest_of(self.sharding):
            lines.append(f"mode {name_of(self.sharding)}, whose file and options have the digest {own}")
        for unit in self.units:
            lines.append(f"unit {unit.name or 'root'} of {len(unit.modules)} modules")
            lines += [
                f"{name} {signature(parameter)}{'' if parameter.requires_grad else ', frozen'}"
                for module in unit.modules
                for name, parameter in module.named_parameters()
            ]
        return lines
