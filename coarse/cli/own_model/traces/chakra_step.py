"""Step of a Chakra trace: the gradients that its collectives sum, and when compute had them.

[Note: a graph as a step] The graph runs as on a worker whose communication takes no time: one compute node at a time on
the device and one on the host (is_cpu_op), each as soon as the data that it needs are there, the lowest id first. A
collective that sums (ALL_REDUCE, REDUCE, REDUCE_SCATTER) and waits for a backward node is a gradient, there when it
could begin. Nodes of backward are known by their names (BWD, Backward, evaluate_function); where none has such a name,
every collective that sums is a gradient, and forward is a third of the compute, at most what runs before the first.

[Note: several steps] Nodes that wait for a gradient's sum belong to the optimizer, or to the next step. Each of several
steps must have both forward and backward; the middle one by its compute is taken. Sums that compute of the same pass
waits for are those of activations split among workers (tensor parallelism). No mode of coarse has these, and such a
trace is refused.
"""

import ast
import heapq
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from coarse.cli.chakra.graph import in_order, unknown_controls
from coarse.cli.chakra.messages import Collective, Node, NodeType
from coarse.cli.own_model.traces.step import TracedGradient, TracedStep
from coarse.errors import ConfigError
from coarse.hardware.compute import FORWARD_SHARE

DURATION_S = "duration_s"
"""Attribute in which coarse writes a duration that is no whole number of microseconds."""
DTYPE_BYTES = 4
_BACKWARD = re.compile(r"backward|(^|[_. ])bwd([_. ]|$)|evaluate_function", re.IGNORECASE)
_SUMS = (Collective.ALL_REDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_BLOCK)
_ITEMSIZES = {"float": 4, "float32": 4, "double": 8, "c10::half": 2, "c10::bfloat16": 2, "half": 2, "bfloat16": 2}
_TYPE = re.compile(r"Tensor\(([^)]*)\)")
US_PER_S = 1e6


def chakra_step(nodes: Sequence[Node], where: str, *, is_simulated: bool = False) -> TracedStep:
    """Return the chosen step of a trace; see the notes above.

    `is_simulated` marks the trace of a prediction.

    Raises:
        ConfigError: a trace without compute or gradients, with steps that are no data-parallel ones, or with sizes or
            times that contradict one another; it names records.
        GraphError: nodes that make no graph.
    """
    ordered = in_order(nodes)
    compute = [node for node in nodes if node.type == NodeType.COMP]
    are_operations = not any(_duration_s(node, where) for node in compute)
    weigh: Callable[[Node], float] = _operations if are_operations else lambda node: _duration_s(node, where)
    if not any(weigh(node) for node in compute):
        raise ConfigError(
            f"{where}: none of {len(compute)} COMP nodes has duration_micros or num_ops above 0; write durations, from "
            "which the times of gradients follow",
            key="model",
        )
    has_backward = any(map(_is_backward, compute))
    sums = {node.id for node in ordered if _bytes_summed(node, where)}
    late = _late(ordered)
    gradients = {node_id for node_id in sums if node_id in late or not has_backward}
    if not gradients:
        raise ConfigError(
            f"{where}: no gradient: of {len(nodes)} nodes {len(sums)} are collectives that sum (ALL_REDUCE, REDUCE, "
            "REDUCE_SCATTER, with comm_size), and none waits for compute of backward; a trace of inference, or of one "
            "worker alone? Trace a step of several workers",
            key="model",
        )
    steps = [_Replay(part, gradients, weigh) for part in _steps(ordered, gradients)]
    _require_steps(steps, where)
    chosen = sorted(steps, key=lambda step: step.total)[(len(steps) - 1) // 2]
    return replace(_traced(chosen, steps, nodes, where, are_operations), is_simulated=is_simulated)


def _is_backward(node: Node) -> bool:
    return bool(_BACKWARD.search(node.name))


def _operations(node: Node) -> float:
    return float(node.number("num_ops") or 0)


def _duration_s(node: Node, where: str) -> float:
    """Return a node's duration, from the exact attribute if there is one.

    Raise ConfigError if the two attributes contradict one another.
    """
    exact = node.attributes.get(DURATION_S)
    if not isinstance(exact, float):
        return node.duration_us / US_PER_S
    if not math.isfinite(exact) or abs(exact * US_PER_S - node.duration_us) > 1.0:
        raise ConfigError(
            f"{where}: record {node.record} ({node.name[:60]!r}) contradicts itself: duration_micros is "
            f"{node.duration_us} and {DURATION_S} is {exact:g}; correct one",
            key="model",
        )
    return exact


def _bytes_summed(node: Node, where: str) -> int:
    """Return a worker's bytes that a collective sums; 0 for others and host nodes, whose kernels have nodes."""
    comm_type, nbytes = node.number("comm_type"), node.number("comm_size")
    if node.type != NodeType.COMM_COLL or nbytes is None or node.is_on("is_cpu_op"):
        return 0
    if comm_type is None and "comm_type" not in node.attributes:
        comm_type = Collective.ALL_REDUCE  # protobuf leaves a zero out
    if nbytes < 0:
        raise ConfigError(f"{where}: record {node.record}: comm_size must be at least 0, got {nbytes}", key="model")
    stated = _tensor_bytes(node)
    if stated is not None and stated != nbytes and comm_type == Collective.ALL_REDUCE:
        raise ConfigError(
            f"{where}: record {node.record} ({node.name[:60]!r}) contradicts itself: comm_size is {nbytes}, and its "
            f"inputs {node.input_shapes} of {node.input_types} have {stated} bytes; correct one",
            key="model",
        )
    return nbytes if comm_type in _SUMS else 0


def _tensor_bytes(node: Node) -> int | None:
    """Return the bytes of the inputs if the node states their shapes and types, else None."""
    try:
        shapes, types = ast.literal_eval(node.input_shapes), ast.literal_eval(node.input_types)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    itemsizes = _itemsizes(types)
    if not isinstance(shapes, list) or not itemsizes or len(shapes) != len(itemsizes):
        return None
    if not all(isinstance(shape, list) and all(type(part) is int for part in shape) for shape in shapes):
        return None
    return sum(math.prod(shape) * itemsize for shape, itemsize in zip(shapes, itemsizes, strict=True))


def _itemsizes(types: Any) -> list[int]:  # noqa: ANN401
    """Return the bytes of an element of each input; an empty list if one is unknown."""
    if not isinstance(types, list):
        return []
    matches = [_TYPE.fullmatch(str(each)) for each in types]
    found = [_ITEMSIZES.get(match[1].lower(), 0) for match in matches if match]
    return found if len(found) == len(types) and all(found) else []


def _late(ordered: Sequence[Node]) -> set[int]:
    """Return the nodes of backward, and all that wait for them."""
    found: set[int] = set()
    for node in ordered:
        if any(parent in found for parent in node.data_deps) or (node.type == NodeType.COMP and _is_backward(node)):
            found.add(node.id)
    return found


def _steps(ordered: Sequence[Node], gradients: set[int]) -> Iterator[list[Node]]:
    """Yield the nodes of each step with gradients.

    A step has the nodes behind an equal number of consecutive gradient sums.
    """
    depth: dict[int, int] = {}
    steps: dict[int, list[Node]] = {}
    for node in ordered:
        own = max((depth[parent] + (parent in gradients) for parent in node.data_deps), default=0)
        depth[node.id] = own
        steps.setdefault(own, []).append(node)
    for part in steps.values():
        if any(node.id in gradients for node in part):
            yield part


class _Replay:
    """One step as it runs; see [Note: a graph as a step]."""

    def __init__(self, nodes: Sequence[Node], gradients: set[int], weigh: Callable[[Node], float]) -> None:
        self.nodes = nodes
        self.ready: list[tuple[float, Node]] = []
        """Gradients as (time at which the sum could begin, node)."""
        self.begins: dict[int, float] = {}
        """Times at which compute nodes begin."""
        self._weigh = weigh
        ends = self._run(gradients)
        self.ready.sort(key=lambda pair: (pair[0], pair[1].id))
        backward = [ends[node.id] for node in nodes if node.type == NodeType.COMP and _is_backward(node)]
        self.total = max([*(backward or ends.values()), *(ready for ready, _ in self.ready)])
        """End of backward, or of all compute if no backward is known."""

    def _run(self, gradients: set[int]) -> dict[int, float]:
        """Run the step and return the end of each node."""
        own = {node.id: node for node in self.nodes}
        waiting = {node.id: len(own.keys() & set(node.data_deps)) for node in self.nodes}
        children: dict[int, list[int]] = {node.id: [] for node in self.nodes}
        for node in self.nodes:
            for parent in own.keys() & set(node.data_deps):
                children[parent].append(node.id)
        free_at = {True: 0.0, False: 0.0}
        ends: dict[int, float] = {}
        queue = [(0.0, node_id) for node_id, num_parents in waiting.items() if not num_parents]
        heapq.heapify(queue)
        while queue:
            ready, node_id = heapq.heappop(queue)
            node = own[node_id]
            ends[node_id] = ready
            if node.type == NodeType.COMP:
                unit = node.is_on("is_cpu_op")
                self.begins[node_id] = max(ready, free_at[unit])
                ends[node_id] = free_at[unit] = self.begins[node_id] + self._weigh(node)
            elif node_id in gradients:
                self.ready.append((ready, node))
            for child in children[node_id]:
                waiting[child] -= 1
                if not waiting[child]:
                    parents = own.keys() & set(own[child].data_deps)
                    heapq.heappush(queue, (max(ends[parent] for parent in parents), child))
        return ends

    @property
    def backward_begin(self) -> float:
        """Begin of the first compute node of backward, on the device if it has one; by its share if none is known.

        A host asks for backward before the device has ended forward.
        """
        compute = [node for node in self.nodes if node.id in self.begins]
        named = [self.begins[node.id] for node in compute if _is_backward(node)]
        if not named:
            return min(FORWARD_SHARE * self.total, self.ready[0][0])
        late = _late(self.nodes)
        on_device = [self.begins[node.id] for node in compute if node.id in late and not node.is_on("is_cpu_op")]
        return min(on_device or named)

    @property
    def has_forward(self) -> bool:
        """True if compute runs before backward."""
        return any(node.type == NodeType.COMP and not _is_backward(node) for node in self.nodes)


def _require_steps(steps: Sequence[_Replay], where: str) -> None:
    """Raise ConfigError if one of several steps is incomplete; see [Note: several steps]."""
    for step in steps:
        if len(steps) > 1 and not (step.has_forward and any(map(_is_backward, step.nodes))):
            node = step.ready[0][1]
            raise ConfigError(
                f"{where}: record {node.record} ({node.name[:60]!r}) sums what waits for an earlier sum, and between "
                "the two there is no forward and backward of a step of its own: a trace of tensor-parallel or sharded "
                "training, of which coarse makes no model; take a trace of data-parallel training",
                key="model",
            )


def _traced(
    step: _Replay, steps: Sequence[_Replay], nodes: Sequence[Node], where: str, are_operations: bool
) -> TracedStep:
    begin = step.backward_begin
    gradients = [
        TracedGradient(shape=(_num_elements(node, where),), ready=max(0.0, ready - begin), layer=node.name or "sum",
                       operator=number, name=node.name)
        for number, (ready, node) in enumerate(step.ready)
    ]  # fmt: skip
    num_steps = len(steps)
    which = "its only step" if num_steps == 1 else f"the middle one of its {num_steps} steps by their compute"
    return TracedStep(
        gradients=tuple(gradients), forward=begin, backward=step.total - begin, are_operations=are_operations,
        gpu="the traced worker", which=which,
        counted="as its compute nodes run where communication takes no time",
        notes=tuple(_notes(step, steps, nodes, where)),
    )  # fmt: skip


def _num_elements(node: Node, where: str) -> int:
    """Return the elements of a gradient, taken to be float32 unless the node states its inputs' shapes."""
    nbytes = _bytes_summed(node, where)
    stated = _tensor_bytes(node)
    if stated == nbytes:
        itemsize = _itemsizes(ast.literal_eval(node.input_types))[0]
        return nbytes // itemsize
    return -(-nbytes // DTYPE_BYTES)


def _notes(step: _Replay, steps: Sequence[_Replay], nodes: Sequence[Node], where: str) -> Iterator[str]:
    sizes = [sorted(_bytes_summed(node, where) for _, node in each.ready) for each in (step, *steps)]
    if num_unlike := sum(each != sizes[0] for each in sizes):
        yield (
            f"{num_unlike} of {len(steps)} steps have other gradients than the one that is taken, and are left out: of "
            "another model that is trained in turn, as a GAN's?"
        )
    if not any(map(_is_backward, step.nodes)):
        yield (
            "No compute node is named as one of backward: forward is a third of the compute, at most what runs before "
            "the first gradient (assumption)."
        )
    if any(_tensor_bytes(node) is None for _, node in step.ready):
        yield "Gradients whose nodes do not say their type are taken to be float32 (assumption)."
    left_out = unknown_controls(nodes)
    if left_out:
        yield f"{left_out} control dependencies name nodes that are not in the trace; the order is that of data."

