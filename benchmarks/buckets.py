"""Which gradients share a message, by the rule of torch's DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Sequence

DDP_FIRST_BUCKET_BYTES = 1024 * 1024
DDP_BUCKET_BYTES = 25 * 1024 * 1024


def ddp_buckets(nbytes_in_backward_order: Sequence[int]) -> list[slice]:
    """The tensors of each bucket: one is closed as soon as it holds at least its limit (1 MiB first, 25 MiB then).

    DDP applies this rule to the gradients in the order in which backward produced them in the first iteration.
    """
    buckets: list[slice] = []
    start = held_bytes = 0
    for index, nbytes in enumerate(nbytes_in_backward_order):
        held_bytes += nbytes
        limit_bytes = DDP_BUCKET_BYTES if buckets else DDP_FIRST_BUCKET_BYTES
        if held_bytes >= limit_bytes:
            buckets.append(slice(start, index + 1))
            start, held_bytes = index + 1, 0
    if start < len(nbytes_in_backward_order):
        buckets.append(slice(start, len(nbytes_in_backward_order)))
    return buckets
