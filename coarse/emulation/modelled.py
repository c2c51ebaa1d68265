# Pure: no MPI, threads, clock or environment.
"""Ranks of an emulated training on its machine: the endpoints that play them, as the settings have it."""

from dataclasses import replace

from coarse.errors import ConfigError
from coarse.hardware.intervals import intervals_of
from coarse.hardware.machine import Machine
from coarse.hardware.placement import EndpointPlacement, places_named
from coarse.hardware.presets import machine_path
from coarse.protocol.config import Config, EmulateSettings
from coarse.protocol.toml import TomlFile
from coarse.simulation.cluster import ModelledCluster
from coarse.strategy.strategy import Strategy


def modelled_cluster(
    machine: Machine, settings: EmulateSettings, num_workers: int, num_devices: int, config: Config, strategy: Strategy
) -> ModelledCluster:
    """Return the ranks' places on a machine, whose file the settings name.

    Raises:
        ConfigError: intervals of its file that do not hold its values, a machine that is too small, without a network
            between its nodes, such endpoints, or ways that the strategy needs.
    """
    intervals_of(TomlFile.read(machine_path(settings.machine)), {})
    _require_network(machine, settings.nodes)
    grown = replace(machine, num_nodes=max(machine.num_nodes, settings.nodes))
    cluster = ModelledCluster(
        machine=grown, strategy=strategy, num_workers=num_workers, num_devices=num_devices, is_exact=True,
        num_nodes=settings.nodes, num_sync_groups=config.num_sync_groups,
        stated=_stated(grown, settings, num_workers, num_devices),
    )  # fmt: skip
    _ = cluster.placement, cluster.site()  # which refuse what there is no place or way for
    return cluster


def _require_network(machine: Machine, num_nodes: int) -> None:
    if num_nodes > 1 and machine.network is None and machine.pool is None:
        raise ConfigError(
            f"{machine.name} has no network between nodes, and {num_nodes} nodes are asked for; state network_wire or "
            "[pool] in its file, or leave out --nodes",
            key="nodes",
        )


def _stated(
    machine: Machine, settings: EmulateSettings, num_workers: int, num_devices: int
) -> EndpointPlacement | None:
    """Return the endpoints that the settings name; None if they name none."""
    if settings.places is None:
        return None
    workers, devices = ([each.strip() for each in part.split(",") if each.strip()] for part in _halves(settings.places))
    for kind, named, count in (("workers", workers, num_workers), ("memory devices", devices, num_devices)):
        if len(named) != count:
            raise ConfigError(
                f"--places names {len(named)} {kind}, and the job has {count}; name one endpoint for each rank, as "
                "gpu0,gpu4:memory0,memory2 does for two and two",
                key="places",
            )
    return places_named(machine, workers, devices)


def _halves(text: str) -> tuple[str, str]:
    workers, colon, devices = text.partition(":")
    if not colon:
        raise ConfigError(
            f"--places must be workers' endpoints, a colon, and devices', as gpu0,gpu4:memory0,memory2, got {text!r}",
            key="places",
        )
    return workers, devices
