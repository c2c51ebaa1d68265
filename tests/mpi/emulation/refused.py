"""Asks an emulated job for what it has no times of; prints what it says."""

import sys

import torch
import torch.distributed as dist

import coarse
import coarse.torch as ct
from coarse.errors import UnsupportedError

coarse.init()
dist.init_process_group("coarse")
state = coarse.state_array("state", (8,), "float32")


def from_anybody() -> None:
    """Receive from any rank."""
    dist.recv(torch.ones(3))


def from_a_callback() -> None:
    """Begin a collective in the callback of another one's future."""
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    said = future.then(lambda _: _raised(lambda: dist.all_reduce(torch.ones(3)))).wait()
    raise UnsupportedError(said)


def _raised(call: object) -> str:
    try:
        call()
    except UnsupportedError as error:
        return str(error)
    return "nothing"


asked = {
    "anybody": from_anybody,
    "callback": from_a_callback,
    "luwu": lambda: ct.model_in_network(torch.nn.Linear(8, 8), torch.optim.SGD, storage=None, lr=0.1),
    "snapshots": lambda: coarse.snapshot("nowhere", step=0),
}
try:
    asked[sys.argv[1]]()
except UnsupportedError as error:
    print(f"refused: {error}", flush=True)
coarse.barrier()
