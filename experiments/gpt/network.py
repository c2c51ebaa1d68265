"""The command line's options of modes that keep states elsewhere, or add gradients there: where, and how."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Collection
from typing import Any

from torch import nn
from torch.optim import Optimizer

MIB = 1024 * 1024
SWITCHED = {"switchml": "int32-switchml", "sharp": "float32"}
"""Modes whose workers step by themselves what a switch has added, and how it adds."""
OFFLOADED = ("zero-infinity", "zero-offload")
"""Modes whose workers keep states on disks, or in memory, of their own."""
_KEPT = {"storage", "resume", "memory"}
_OPTIONS = {"luwu": {*_KEPT, "timeline", "loss", "optimizer", "switch", "meta"}, "zero-infinity": _KEPT,
            "zero-offload": {"memory"}, **{mode: {"loss", "switch"} for mode in SWITCHED}}  # fmt: skip
"""By mode what it takes."""


def add_network_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them, in a group of their own."""
    group = parser.add_argument_group("modes luwu, zero-infinity, switchml and sharp")
    group.add_argument("--storage", action="append", metavar="DIR", help="where states are kept; again for each disk")
    group.add_argument("--resume", action="store_true", help="go on from the last committed step in --storage")
    group.add_argument("--update", choices=("step", "backward"), default="step", help="when units are updated")
    group.add_argument("--memory", type=int, metavar="MIB", help="what each memory device may use for buffers")
    group.add_argument("--commit-every", type=int, default=1, metavar="STEPS", help="what a crash may cost at most")
    group.add_argument("--timeline", metavar="DIR", help="where to leave traces of what happened when, for Perfetto")
    group.add_argument("--network", choices=("mpi", "udp"), default="mpi", help="what carries packets between hosts")
    group.add_argument("--loss", type=float, metavar="SHARE", help="datagrams of udp to be dropped")
    group.add_argument("--optimizer", type=int, action="append", metavar="DEVICE", help="a memory device with states")
    group.add_argument("--switch", type=int, metavar="DEVICE", help="a memory device that adds what hosts push")
    group.add_argument("--meta", action="store_true", help="make the model unit by unit, never in one place")


def check_network_arguments(
    parser: argparse.ArgumentParser, given: argparse.Namespace, all_modes: Collection[str]
) -> None:
    """End with an error where they do not fit the mode, one of those that the script has."""
    taken = _OPTIONS.get(given.mode, set())
    for name in sorted(_OPTIONS["luwu"] - taken):
        value = getattr(given, name)
        if value is not None and value is not False:
            modes = [mode for mode, options in _OPTIONS.items() if name in options and mode in all_modes]
            parser.error(f"--{name} is for --mode {' and '.join(modes)}, which is {given.mode}; leave it out")
    if "storage" in taken and not given.storage:
        whose = "the memory device's host" if given.mode == "luwu" else "each worker's host"
        parser.error(f"--mode {given.mode} keeps states in --storage DIR; name a folder on {whose}")


def settings_of(optimizer: Optimizer) -> dict[str, Any]:
    """The settings of an AdamW that trainings choose."""
    return {name: optimizer.defaults[name] for name in ("lr", "betas", "weight_decay")}


def _resume(given: argparse.Namespace) -> bool | str:
    """Whether to go on: as asked, or under `coarse run --restarts` from what there is."""
    return given.resume or ("auto" if "COARSE_RESTARTS" in os.environ else False)


def network_options(
    given: argparse.Namespace, initialise: Callable[[nn.Module], None] | None = None
) -> dict[str, Any]:
    """What model_in_network, an OffloadedOptimizer or a Switch is called with; `initialise` fills modules of a meta
    model."""
    if given.mode in SWITCHED:
        return {
            "sum": SWITCHED[given.mode], "device": given.switch, "network": given.network, "loss": given.loss or 0.0,
        }  # fmt: skip
    memory = None if given.memory is None else given.memory * MIB
    if given.mode in OFFLOADED:
        return {"storage": given.storage, "resume": _resume(given), "memory": memory}
    return {
        "storage": given.storage,
        "resume": _resume(given),
        "update": given.update,
        "memory": memory,
        "commit_every": given.commit_every,
        "timeline": given.timeline,
        "network": given.network,
        "loss": given.loss or 0.0,
        "optimizers": given.optimizer,
        "switches": given.switch,
        "initialise": initialise if given.meta else None,
    }
