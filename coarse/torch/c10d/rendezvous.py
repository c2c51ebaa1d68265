"""Rendezvous of `init_process_group`'s ranks where torch's environment variables are not set.

Torch's env:// wants RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which torchrun sets and mpirun does not. Where one
of them is missing, the job that `coarse.init()` makes knows it.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from urllib.parse import parse_qs, urlparse

import numpy as np
import torch.distributed as dist

from coarse import arrays, session
from coarse.parallel.data.byte_stream import stream

_ADDRESS_BYTES = 256
_LOOPBACK = "127.0.0.1"
_TELLING = "c10d/where to meet"

Meeting = Iterator[tuple[dist.Store, int, int]]
_told: dict[str, str] = {}
"""Variables that were set here, and their values; they hold for one process group."""


def join_job() -> None:
    """Call `coarse.init()` where the script has not; memory devices serve in here and never return."""
    if not session.is_initialized():
        session.init()


def fill_in_env_rendezvous() -> None:
    """Let env:// do without variables that are not set; where all are set, it is torch's own."""
    module = sys.modules["torch.distributed.rendezvous"]  # the package has a function of this name
    handlers: dict[str, Callable[..., Meeting]] = module._rendezvous_handlers
    original = handlers["env"]

    def meet(url: str, timeout: timedelta = dist.default_pg_timeout, **options: object) -> Meeting:
        stated = {name.upper() for name in parse_qs(urlparse(url).query)}
        if all(_is_set(name) or name in stated for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
            return original(url, timeout=timeout, **options)
        return _meet_in_job(url, timeout)

    handlers["env"] = meet


def _is_set(name: str) -> bool:
    value = os.environ.get(name)
    return bool(value) and value != _told.get(name)


def _meet_in_job(url: str, timeout: timedelta) -> Meeting:
    """Meet at a store of the first worker, whose port that worker's system has chosen."""
    join_job()
    stated = {name: int(values[0]) for name, values in parse_qs(urlparse(url).query).items() if name != "use_libuv"}
    placement = session.current().placement
    worker = session.current().client_index
    assert worker is not None
    rank = stated.get("rank", int(os.environ["RANK"]) if _is_set("RANK") else worker)
    size = stated.get("world_size", int(os.environ["WORLD_SIZE"]) if _is_set("WORLD_SIZE") else placement.num_clients)
    address = np.zeros(_ADDRESS_BYTES, np.uint8)
    store = None
    if worker == 0:
        host = _LOOPBACK if len(set(placement.client_nodes)) == 1 else socket.gethostname()
        store = dist.TCPStore(host, 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
        text = f"{host} {store.port}".encode()
        address[: len(text)] = np.frombuffer(text, np.uint8)
    stream([address], 0, _TELLING)
    host, port = address.tobytes().rstrip(b"\0").decode().split()
    if store is None:
        store = dist.TCPStore(host, int(port), size, is_master=False, timeout=timeout, wait_for_workers=False)
    _tell(RANK=rank, WORLD_SIZE=size, MASTER_ADDR=host, MASTER_PORT=port)
    _tell(LOCAL_RANK=arrays.local_rank(), LOCAL_WORLD_SIZE=arrays.local_size())
    yield store, rank, size
    raise RuntimeError("the ranks of a process group meet once; init_process_group again after its end")


def _tell(**variables: object) -> None:
    """Set those variables that are not set otherwise, for any part of the script that reads them."""
    for name, value in variables.items():
        if not _is_set(name):
            os.environ[name] = _told[name] = str(value)
