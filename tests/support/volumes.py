# Pure: no MPI, threads, clock or environment.
"""Bytes between nodes and in memory, by mode: the formulas of FCDP's Table I and Sections VI-A to VI-C.

Notation: W bytes of all parameters as they are gathered, W_t bytes of the trainable ones as they are reduced, G
workers on N nodes. Volumes are what a node sends to other nodes, which equals what it receives. The paper writes W
for (N-1)/N W; here the factor stands. FSDP's root unit stays gathered after forward: `root_nbytes` of W aren't
gathered in backward, which the paper leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Volume:
    """Bytes that a node sends to other nodes in one iteration."""

    forward_gather: float = 0.0
    backward_gather: float = 0.0
    reduce_scatter: float = 0.0
    all_reduce: float = 0.0
    """Of gradients across replicas (hybrid)."""

    @property
    def total(self) -> float:
        """All of them."""
        return self.forward_gather + self.backward_gather + self.reduce_scatter + self.all_reduce


@dataclass(frozen=True, kw_only=True)
class TrainedShape:
    """A model on a cluster."""

    num_nodes: int
    num_workers: int
    parameter_nbytes: float
    """W."""
    trainable_nbytes: float
    """W_t, as gathered."""
    gradient_nbytes: float
    """Bytes of the trainable parameters' gradients; other than W_t where they are reduced in another type."""
    root_nbytes: float = 0.0
    """Of W, in the root's own unit."""


def crossing(nbytes: float, shape: TrainedShape, *, is_ring: bool) -> float:
    """Bytes that a node sends to others in one all-gather or reduce-scatter: (N-1)/N W, in a ring (G-1)/G W."""
    if shape.num_nodes == 1:
        return 0.0
    parts = shape.num_workers if is_ring else shape.num_nodes
    return (parts - 1) / parts * nbytes


def iteration_volume(
    mode: str, shape: TrainedShape, *, is_ring: bool = False, gathered_part: float = 1.0
) -> Volume:
    """What one training iteration moves between nodes, when caches are warm (VI-B, VI-C).

    Args:
        is_ring: the collective is a ring in which each node is left once.
        gathered_part: what int8 gathers leave of forward's volume (zeropp's qwZ: about 1/2 of bf16, 1/4 of float32).
    """
    if mode == "hybrid":
        across = 2 * (shape.num_nodes - 1) / shape.num_nodes * shape.gradient_nbytes
        return Volume(all_reduce=across)
    whole = shape.parameter_nbytes
    if mode == "odc":  # each worker for itself, without what nodes may keep: docs/odc.md
        workers_of_node = shape.num_workers / shape.num_nodes
        far, far_again, gradients = (
            workers_of_node * crossing(nbytes, shape, is_ring=False)
            for nbytes in (whole, whole - shape.root_nbytes, shape.gradient_nbytes)
        )
        return Volume(forward_gather=far, backward_gather=far_again, reduce_scatter=gradients)
    reduce_scatter = crossing(shape.gradient_nbytes, shape, is_ring=is_ring)
    if mode == "fcdp":
        forward = crossing(shape.trainable_nbytes, shape, is_ring=is_ring)
        return Volume(forward_gather=forward, reduce_scatter=reduce_scatter)
    forward = gathered_part * crossing(whole, shape, is_ring=is_ring)
    backward = 0.0 if mode == "zeropp" else crossing(whole - shape.root_nbytes, shape, is_ring=is_ring)
    return Volume(forward_gather=forward, backward_gather=backward, reduce_scatter=reduce_scatter)


def accelerator_nbytes(mode: str, shape: TrainedShape, *, shard_group: int | None = None) -> float:
    """Bytes of parameters that stay on each worker's accelerator (Table I, VI-A).

    `shard_group` is hybrid's number of workers that hold one copy together; by default those of a node.
    """
    per_node = shape.num_workers // shape.num_nodes
    if mode == "hybrid":
        return shape.parameter_nbytes / (shard_group or per_node)
    secondary = shape.parameter_nbytes / per_node if mode == "zeropp" else 0.0
    return shape.parameter_nbytes / shape.num_workers + secondary


def host_nbytes(mode: str, shape: TrainedShape) -> float:
    """Bytes of each node's host memory that hold gathered parameters: fcdp's one copy of W (VI-A)."""
    return shape.parameter_nbytes if mode == "fcdp" else 0.0
