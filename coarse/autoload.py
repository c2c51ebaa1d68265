"""Entry point that `import torch` runs: it registers coarse as a backend of torch.distributed.

torch looks for the entry point group "torch.backends", unless TORCH_DEVICE_BACKEND_AUTOLOAD is 0. So a script that
takes a backend's name, or none, needs no import of coarse. coarse.torch is imported when a group is made, not before.
"""

import functools
import os
from importlib import import_module
from typing import Any

from coarse.transport.node_rendezvous import LauncherLine

BACKEND_NAME = "coarse"
_DEVICES = ("cpu", "cuda")


def register() -> None:
    """Register the backend; in a worker of `coarse run` make it the default.

    COARSE_REPLACES names backends, such as "gloo,nccl", that it replaces.
    """
    import torch.distributed as dist

    if not dist.is_available():
        return
    backends = dist.Backend
    if BACKEND_NAME in backends.backend_list:
        return
    backends.register_backend(BACKEND_NAME, _create, extended_api=True, devices=list(_DEVICES))
    if "COARSE_JOB" in os.environ:
        backends.default_device_backend_map.update(dict.fromkeys(_DEVICES, BACKEND_NAME))
    replaced = frozenset(name.strip().lower() for name in os.environ.get("COARSE_REPLACES", "").split(","))
    if replaced != {""} or "COARSE_JOB" in os.environ:
        _wrap_init_process_group(replaced)


def replacement(backend: str, replaced: frozenset[str]) -> str:
    """Return the replaced backend, as torch names it: "gloo", or for several devices "cpu:gloo,cuda:nccl"."""
    parts = []
    for part in backend.split(","):
        device, colon, name = part.rpartition(":")
        parts.append(f"{device}{colon}{BACKEND_NAME if name.lower() in replaced else name}")
    return ",".join(parts)


def _wrap_init_process_group(replaced: frozenset[str]) -> None:
    """Let init_process_group take coarse for a replaced backend, and tell `coarse run` that workers have met.

    Groups made later keep their own backends.
    """
    import torch.distributed as dist

    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> None:  # noqa: ANN401
        original(None if backend is None else replacement(backend, replaced), *args, **options)
        with LauncherLine(os.environ) as line:
            line.say_met()

    for module in (dist, dist.distributed_c10d):
        setattr(module, "init_process_group", init_process_group)  # noqa: B010  it is no variable for mypy


def _create(options: object, backend_options: object = None) -> object:
    """Return a group, as c10d asks for one."""
    return import_module("coarse.torch.process_group").create(options, backend_options)
