"""A rank of the job whose training results are hashed: `training.py FOLDER FACE`.

FACE is arrays, torch, sharded or keras, or one of features.py. Worker 0 writes FOLDER/values.bin, the bytes of all that
the face ended with; they are the same on every worker, or the job fails.
"""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SIZES = (1, 7, 1000, 70_000, 1_000_003)
STEPS = 4
SHARDED = (
    {"mode": "fsdp"},
    {"mode": "fsdp", "collective": "ring"},
    {"mode": "hybrid"},
    {"mode": "zeropp"},
    {"mode": "zeropp", "quantised": True},
    {"mode": "fcdp"},
)


def arrays() -> Iterator[np.ndarray]:
    """Sums of arrays of several sizes and types, some of which live in device memory."""
    import coarse

    coarse.init()
    for dtype in (np.float32, np.float64, np.float16, np.int64):
        for numel in SIZES:
            generator = np.random.default_rng([coarse.rank(), numel])
            for op in (coarse.Sum, coarse.Max) if dtype is np.int64 else (coarse.Average, coarse.Sum):
                values = (generator.standard_normal(numel) * 100).astype(dtype)
                yield coarse.push_pull(values, f"{np.dtype(dtype).name} {numel} {op.name}", op=op)
    held = coarse.device_array("held", (300_001,), np.float32)
    for step in range(STEPS):
        held[:] = np.random.default_rng([coarse.rank(), step]).standard_normal(held.size)
        yield coarse.push_pull(held, "held").copy()


def torch() -> Iterator[np.ndarray]:
    """Parameters after steps of SGD with momentum, with gradients in device memory and without, and of Adam."""
    import torch as th

    import coarse.torch as ct

    th.set_num_threads(1)
    ct.init()
    for in_device in (True, False):
        for make in (lambda p: th.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: th.optim.Adam(p, lr=1e-3)):
            model = small_model(th)
            inner = make(list(model.parameters()))
            options = {"gradients_in_device_memory": in_device}
            optimizer = ct.DistributedOptimizer(inner, model.named_parameters(), **options)
            train(th, model, optimizer, ct.rank())
            yield from (parameter.detach().numpy() for parameter in model.parameters())
            optimizer.close()


def sharded() -> Iterator[np.ndarray]:
    """Parameters after steps of AdamW, sharded in each mode."""
    import torch as th

    import coarse.torch as ct

    th.set_num_threads(1)
    ct.init()
    for options in SHARDED:
        model = small_model(th)
        ct.fully_shard(model, units=(th.nn.Linear,), **options)
        optimizer = th.optim.AdamW(model.parameters(), lr=1e-3)
        train(th, model, optimizer, ct.rank())
        yield from (parameter.detach().full_tensor().numpy() for parameter in model.parameters())


def keras() -> Iterator[np.ndarray]:
    """Weights after two epochs of fit() under CoarseStrategy."""
    import tensorflow as tf

    from tf_strategy import CoarseStrategy

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = CoarseStrategy()
    tf.keras.utils.set_random_seed(3)
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input((8,)), tf.keras.layers.Dense(33, "relu"), tf.keras.layers.Dense(3)]
        )
        model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    generator = np.random.default_rng(5)
    rows, targets = (generator.standard_normal((64, width)).astype(np.float32) for width in (8, 3))
    model.fit(rows, targets, batch_size=16, epochs=2, shuffle=False, verbose=0)
    yield from model.get_weights()


def small_model(th):
    """Three layers of torch, the same each time."""
    th.manual_seed(11)
    return th.nn.Sequential(
        th.nn.Linear(8, 233), th.nn.ReLU(), th.nn.Linear(233, 317), th.nn.Tanh(), th.nn.Linear(317, 3)
    )


def rows_of(th, step, rank):
    """A worker's inputs of a step."""
    return th.randn(4, 8, generator=th.Generator().manual_seed(1000 * step + rank))


def train(th, model, optimizer, rank):
    """Take all steps with a worker's inputs."""
    for step in range(STEPS):
        optimizer.zero_grad()
        (model(rows_of(th, step, rank)) ** 2).mean().backward()
        optimizer.step()


def main(folder: Path, face: str) -> None:
    """Run a face, compare the workers' results and write those of worker 0."""
    from tests.hashes import features

    arrays_of = globals()[face] if face in globals() else getattr(features, face)
    values = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays_of())
    import coarse

    digest = np.frombuffer(hashlib.sha256(values).digest(), np.uint8).astype(np.int64)
    least, most = coarse.push_pull(digest, "least", op=coarse.Min), coarse.push_pull(digest, "most", op=coarse.Max)
    if (least != most).any():
        sys.exit(f"worker {coarse.rank()}: {face} ended with other bits on another worker")
    if coarse.rank() == 0:
        (folder / "values.bin").write_bytes(values)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
