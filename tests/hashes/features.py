"""Faces of `training.py` that go through a feature beside push and pull; each ends with the same on every worker."""

import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tests.hashes.training import STEPS, rows_of, small_model, train

SETS = ((0, 1), (1, 2), (0, 2))
"""Members of process sets, of three workers."""


def luwu() -> Iterator[np.ndarray]:
    """Parameters and states of a model in the network, kept in memory, by each way of adding and updating."""
    import torch as th

    import coarse.torch as ct

    th.set_num_threads(1)
    ct.init()
    for options in ({}, {"sum": "int64"}, {"sum": "int32-switchml"}, {"update": "backward"}):
        model, optimizer = ct.model_in_network(
            small_model(th), th.optim.AdamW, lr=1e-3, weight_decay=0.1, storage=None, units=(th.nn.Linear,), **options
        )
        for step in range(STEPS):
            (model(rows_of(th, step, ct.rank())) ** 2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        yield from (value.numpy() for value in model.state_dict().values())
        for state in optimizer.state_dict()["state"].values():
            yield from (np.asarray(state[name]) for name in ("step", "exp_avg", "exp_avg_sq"))
        optimizer.close()


def odc() -> Iterator[np.ndarray]:
    """Parameters after minibatches of unlike numbers of microbatches, with and without what nodes keep."""
    import torch as th

    import coarse.torch as ct

    th.set_num_threads(1)
    ct.init()
    for cache in (False, True):
        model = small_model(th)
        ct.fully_shard(model, "odc", units=(th.nn.Linear,), cache=cache)
        optimizer = th.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(STEPS):
            for part in range(1 + ct.rank() % 2):
                (model(rows_of(th, 10 * step + part, ct.rank())) ** 2).mean().backward()
            ct.end_minibatch(model)
            optimizer.step()
            optimizer.zero_grad()
        yield from (parameter.detach().full_tensor().numpy() for parameter in model.parameters())


def switch() -> Iterator[np.ndarray]:
    """Parameters of an optimizer whose gradients are added in the network."""
    import torch as th

    import coarse.torch as ct

    th.set_num_threads(1)
    ct.init()
    for how in ("float32", "int64", "int32-switchml"):
        model = small_model(th)
        inner = th.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = ct.DistributedOptimizer(inner, model.named_parameters(), switch=ct.Switch(sum=how))
        train(th, model, optimizer, ct.rank())
        yield from (parameter.detach().numpy() for parameter in model.parameters())
        optimizer.close()


def sets() -> Iterator[np.ndarray]:
    """Hashes of what members of process sets get from each collective, and of one that trains by itself."""
    import torch as th

    import coarse.torch as ct

    th.set_num_threads(1)
    ct.init()
    found = []
    for members in SETS:
        group = ct.add_process_set(members)
        if not group.included():
            continue
        mine = th.randn(4_096, generator=th.Generator().manual_seed(ct.rank()))
        rows = mine.view(-1, 8)[: 6 + ct.rank()]
        for op in (ct.Sum, ct.Average, ct.Max):
            found.append(ct.allreduce(mine, op=op, name=f"reduced {members} {op.name}", process_set=group))
        found.append(ct.allgather(rows, name=f"gathered {members}", process_set=group))
        found.append(ct.broadcast(mine, members[1], name=f"broadcast {members}", process_set=group))
        found.append(ct.reducescatter(mine, name=f"scattered {members}", process_set=group))
        model = small_model(th)
        inner = th.optim.SGD(model.parameters(), lr=0.1)
        optimizer = ct.DistributedOptimizer(inner, model.named_parameters(), process_set=group)
        train(th, model, optimizer, ct.rank())
        found += [parameter.detach() for parameter in model.parameters()]
        optimizer.close()
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in found)).digest()
    yield ct.allgather(th.frombuffer(bytearray(digest), dtype=th.uint8), name="hashes").numpy()


def ddp() -> Iterator[np.ndarray]:
    """Parameters of torch's DDP by the backend "coarse", and of its FSDP2."""
    import torch as th
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    import coarse
    import coarse.torch

    th.set_num_threads(1)
    dist.init_process_group("coarse")
    wraps: tuple[Callable[[th.nn.Module], th.nn.Module], ...] = (DistributedDataParallel, fully_shard)
    for wrap in wraps:
        model = wrap(small_model(th))
        optimizer = th.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        train(th, model, optimizer, coarse.rank())
        whole = (value.full_tensor() if hasattr(value, "full_tensor") else value for value in model.parameters())
        yield from (value.detach().numpy() for value in whole)


def snapshots() -> Iterator[np.ndarray]:
    """The files of a checkpoint, written while what it holds goes on, and what is read back."""
    import coarse

    coarse.init()
    path = Path(sys.argv[1]) / "checkpoint"
    held = {name: coarse.state_array(name, (size,), np.float32) for name, size in (("a", 300_001), ("b", 70_000))}
    for step in range(STEPS):
        coarse.before_overwrite()
        for number, (name, values) in enumerate(held.items()):
            own = np.random.default_rng([coarse.rank(), step, number]).standard_normal(len(values))
            values += coarse.push_pull(own.astype(np.float32), f"gradient {name}")
        handle = coarse.snapshot(path, step=step, metadata={"step": step})
    handle.wait()
    yield from (np.frombuffer(part.read_bytes(), np.uint8) for part in sorted(path.glob("*.safetensors")))
    for values in held.values():
        values[:] = 0
    coarse.barrier()
    yield np.array(coarse.restore(path).step)
    yield from (values.copy() for values in held.values())
