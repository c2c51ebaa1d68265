"""Push and pull arrays of several types and lengths, and compare with sums that each worker works out for itself."""

import json

import numpy as np

import coarse

LENGTHS = (1, 1023, 300_001)
TYPES = (np.float16, np.float32, np.float64, np.int64)
STEPS = 2


def contribution(worker: int, step: int, length: int, dtype: type) -> np.ndarray:
    """Return small whole numbers, whose sums are exact in any order and type."""
    return np.random.default_rng([worker, step, length]).integers(-50, 50, length).astype(dtype)


def main() -> None:
    coarse.init()
    worker, workers = coarse.rank(), coarse.size()
    for step in range(STEPS):
        for length in LENGTHS:
            for dtype in TYPES:
                found = coarse.push_pull(
                    contribution(worker, step, length, dtype), f"{np.dtype(dtype).name}/{length}", op=coarse.Sum
                )
                wanted = sum(contribution(other, step, length, dtype) for other in range(workers))
                np.testing.assert_array_equal(found, wanted)
    devices = coarse.statistics()["devices"].values()
    bytes_between_nodes = sum(device["between_nodes_sent_bytes"] for device in devices)
    coarse.barrier()
    print(json.dumps({"worker": worker, "sums": "right", "between_nodes": bytes_between_nodes}), flush=True)


if __name__ == "__main__":
    main()
