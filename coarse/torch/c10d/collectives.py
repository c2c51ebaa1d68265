"""Collectives of c10d as methods of a process group: from tensors to steps, and back to Work."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from coarse.collectives.progress import Conditions
from coarse.protocol.joint import CollectiveKind, Joint
from coarse.torch.c10d.arguments import (
    Given,
    GivenLists,
    Tensors,
    listed,
    nested,
    number_of,
    only,
    operation_of,
    reduction_of,
    require_alike,
    require_count,
    require_numel,
    root_of,
    split_bytes,
    timeout_of,
)
from coarse.torch.c10d.lane import GroupLane
from coarse.torch.c10d.reduction import Array, Reduction, combined
from coarse.torch.c10d.sparse import gather_of, sum_sparse, summand
from coarse.torch.c10d.staging import Copies, Target, Targets, require_dense
from coarse.torch.c10d.work import CoarseWork


class Collectives:
    """Collectives of a group's ranks; options are c10d's, or the operation or root alone."""

    _lane: GroupLane
    _timeout: timedelta
    _rank: int
    _size: int

    # --- reductions

    def allreduce(self, tensors: Given, opts: object = dist.ReduceOp.SUM) -> CoarseWork:
        """Combine each tensor in place on all ranks."""
        tensors = listed(tensors)
        copies = Copies()
        if any(tensor.is_sparse for tensor in tensors):
            op = operation_of(opts)
            owns = [summand(tensor, op) for tensor in tensors]
            summed = [sum_sparse(self._lane.steps, t, own) for t, own in zip(tensors, owns, strict=True)]
            joints = [gather_of(own) for own in owns]
            return self._launch("all_reduce", tensors, summed, joints, opts, copies)
        reduced = [self._reduced(tensor, opts, "all_reduce", copies) for tensor in tensors]
        targets = [target for target, _ in reduced]
        steps = [self._lane.steps.all_reduce(target.array.view(how.storage), how) for target, how in reduced]
        joints = [combined(CollectiveKind.ALL_REDUCE, target.array, how) for target, how in reduced]
        return self._launch("all_reduce", tensors, steps, joints, opts, copies, targets)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Given, opts: object, op: object = None) -> CoarseWork:
        """Combine a tensor in place on the root; the others keep theirs."""
        tensors, root, copies = listed(tensors), root_of(opts), Copies()
        target, reduction = self._reduced(only(tensors, "reduce"), opts if op is None else op, "reduce", copies)
        steps = self._lane.steps.reduce(target.array.view(reduction.storage), root, reduction)
        joints = [combined(CollectiveKind.REDUCE, target.array, reduction, root)]
        return self._launch("reduce", tensors, [steps], joints, opts, copies, [target] if root == self._rank else [])

    def reduce_scatter(
        self, outputs: Given, inputs: GivenLists, opts: object = dist.ReduceOp.SUM
    ) -> CoarseWork:
        """Combine the ranks' lists of tensors; each rank keeps the tensor in its place."""
        outputs, inputs = listed(outputs), nested(inputs)
        output, parts = only(outputs, "reduce_scatter"), only(inputs, "reduce_scatter")
        require_count(parts, self._size, "reduce_scatter: input")
        require_alike([output, *parts], "reduce_scatter")
        counts, copies = [part.numel() for part in parts], Copies()
        target, steps, joint = self._scattered(output, copies.joined(parts), counts, opts, copies)
        return self._launch("reduce_scatter", outputs, [steps], [joint], opts, copies, [target])

    def reduce_scatter_single(
        self, output: torch.Tensor, full: torch.Tensor, opts: object = dist.ReduceOp.SUM
    ) -> CoarseWork:
        """Combine full (p*n elements) of all ranks; each rank keeps the n of its place."""
        return self.reduce_scatter_single_coalesced([output], [full], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, fulls: Tensors, opts: object = dist.ReduceOp.SUM
    ) -> CoarseWork:
        """Combine several tensors as `reduce_scatter_single` does."""
        targets, steps, joints, copies = [], [], [], Copies()
        for output, full in zip(outputs, fulls, strict=True):
            require_alike([output, full], "reduce_scatter_single")
            require_numel(full, output.numel() * self._size, "reduce_scatter_single: input")
            counts = [output.numel()] * self._size
            target, one, joint = self._scattered(output, copies.read(full), counts, opts, copies)
            targets.append(target)
            steps.append(one)
            joints.append(joint)
        return self._launch("reduce_scatter_single", outputs, steps, joints, opts, copies, targets)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # --- copies

    def broadcast(self, tensors: Given, opts: object = 0) -> CoarseWork:
        """Overwrite a tensor with the root's."""
        tensors = listed(tensors)
        tensor, root = only(tensors, "broadcast"), root_of(opts)
        require_dense([tensor], "broadcast")
        copies = Copies()
        target = copies.target(tensor, is_read=root == self._rank)
        steps = self._lane.steps.broadcast(target.array, number_of(tensor), root)
        joints = [Joint(CollectiveKind.BROADCAST, target.array.nbytes, root=root)]
        return self._launch("broadcast", tensors, [steps], joints, opts, copies, [] if root == self._rank else [target])

    def allgather(self, outputs: GivenLists, inputs: Given, opts: object = None) -> CoarseWork:
        """Fill each rank's list of tensors with all ranks' tensors, which have one size."""
        parts, own, copies = only(nested(outputs), "all_gather"), only(listed(inputs), "all_gather"), Copies()
        target, steps = self._gathered(parts, own, copies)
        joints = [Joint(CollectiveKind.ALL_GATHER, own.nbytes)]
        return self._launch("all_gather", [parts], [steps], joints, opts, copies, [target])

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: object = None) -> CoarseWork:
        """Fill the list that each rank has for rank r with r's tensors, whose sizes are equal on all ranks."""
        require_count(outputs, self._size, "all_gather_coalesced: output")
        copies = Copies()
        gathered = [
            self._gathered([parts[position] for parts in outputs], own, copies) for position, own in enumerate(inputs)
        ]
        targets, steps = [target for target, _ in gathered], [one for _, one in gathered]
        joints = [Joint(CollectiveKind.ALL_GATHER, own.nbytes) for own in inputs]
        return self._launch("all_gather_coalesced", outputs, steps, joints, opts, copies, targets)

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: object = None) -> CoarseWork:
        """Fill output (p*n elements) with all ranks' own (n)."""
        return self.all_gather_single_coalesced([output], [own], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, owns: Tensors, opts: object = None) -> CoarseWork:
        """Gather several tensors as `all_gather_single` does."""
        targets, steps, copies = [], [], Copies()
        for output, own in zip(outputs, owns, strict=True):
            require_alike([output, own], "all_gather_single")
            require_numel(output, own.numel() * self._size, "all_gather_single: output")
            target = copies.target(output, is_read=False)
            targets.append(target)
            steps.append(self._lane.steps.all_gather(target.array, copies.read(own), number_of(own)))
        joints = [Joint(CollectiveKind.ALL_GATHER, own.nbytes) for own in owns]
        return self._launch("all_gather_single", outputs, steps, joints, opts, copies, targets)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: GivenLists, inputs: Given, opts: object = 0) -> CoarseWork:
        """Fill the root's list of tensors with all ranks' tensors, which have one size."""
        own, root = only(listed(inputs), "gather"), root_of(opts)
        require_dense([own], "gather")
        targets, copies = [], Copies()
        if root == self._rank:
            parts = only(nested(outputs), "gather")
            require_count(parts, self._size, "gather: output")
            require_alike([own, *parts], "gather")
            targets = [copies.targets(parts)]
        out = targets[0].array if targets else None
        steps = self._lane.steps.gather(out, copies.read(own), number_of(own), root)
        joints = [Joint(CollectiveKind.GATHER, own.nbytes, root=root)]
        return self._launch("gather", targets and nested(outputs), [steps], joints, opts, copies, targets)

    def scatter(self, outputs: Given, inputs: GivenLists, opts: object = 0) -> CoarseWork:
        """Fill each rank's tensor with the root's tensor in its place."""
        outputs, root = listed(outputs), root_of(opts)
        output, full, copies = only(outputs, "scatter"), None, Copies()
        require_dense([output], "scatter")
        if root == self._rank:
            parts = only(nested(inputs), "scatter")
            require_count(parts, self._size, "scatter: input")
            require_alike([output, *parts], "scatter")
            for part in parts:
                require_numel(part, output.numel(), "scatter: input")
            full = copies.joined(parts)
        target = copies.target(output, is_read=False)
        steps = self._lane.steps.scatter(target.array, full, number_of(output), root)
        joints = [Joint(CollectiveKind.SCATTER, output.nbytes, root=root)]
        return self._launch("scatter", outputs, [steps], joints, opts, copies, [target])

    # --- all to all

    def alltoall(self, outputs: Given, inputs: Given, opts: object = None) -> CoarseWork:
        """Send tensor r of the inputs to rank r, and fill output r with the tensor from it."""
        outputs, inputs = listed(outputs), listed(inputs)
        require_count(outputs, self._size, "all_to_all: output")
        require_count(inputs, self._size, "all_to_all: input")
        require_alike([*outputs, *inputs], "all_to_all")
        copies = Copies()
        target, own = copies.targets(outputs), copies.joined(inputs)
        sent = [tensor.numel() * tensor.element_size() for tensor in inputs]
        steps = self._lane.steps.all_to_all(target.array, target.nbytes, own, sent, number_of(inputs[0]))
        joints = [Joint(CollectiveKind.ALL_TO_ALL, own.nbytes, parts=tuple(sent))]
        return self._launch("all_to_all", outputs, [steps], joints, opts, copies, [target])

    def all_to_all_single(
        self,
        output: torch.Tensor,
        own: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: object = None,
    ) -> CoarseWork:
        """Send rows of own to all ranks, and fill rows of output with theirs; without sizes equally many."""
        require_alike([output, own], "all_to_all_single")
        received = split_bytes(output, output_split_sizes, self._size, "all_to_all_single: output")
        sent = split_bytes(own, input_split_sizes, self._size, "all_to_all_single: input")
        copies = Copies()
        target = copies.target(output, is_read=False)
        steps = self._lane.steps.all_to_all(target.array, received, copies.read(own), sent, number_of(own))
        joints = [Joint(CollectiveKind.ALL_TO_ALL, own.nbytes, parts=tuple(sent))]
        return self._launch("all_to_all_single", [output], [steps], joints, opts, copies, [target])

    alltoall_base = all_to_all_single

    # --- from tensors to arrays, and back

    def _reduced(self, tensor: torch.Tensor, op: object, what: str, copies: Copies) -> tuple[Target, Reduction]:
        require_dense([tensor], what)
        real, reduction = reduction_of(tensor, op)
        return copies.target(real, is_read=True), reduction

    def _gathered(self, parts: Tensors, own: torch.Tensor, copies: Copies) -> tuple[Targets, Conditions]:
        require_count(parts, self._size, "all_gather: output")
        require_alike([own, *parts], "all_gather")
        for part in parts:
            require_numel(part, own.numel(), "all_gather: output")
        target = copies.targets(parts)
        return target, self._lane.steps.all_gather(target.array, copies.read(own), number_of(own))

    def _scattered(
        self, output: torch.Tensor, full: Array, counts: list[int], op: object, copies: Copies
    ) -> tuple[Target, Conditions, Joint]:
        real, reduction = reduction_of(output, op)
        scale = 2 if output.is_complex() else 1
        target, storage = copies.target(real, is_read=False), reduction.storage
        steps = self._lane.steps.reduce_scatter(
            target.array.view(storage), full.view(storage), [scale * count for count in counts], reduction
        )
        return target, steps, combined(CollectiveKind.REDUCE_SCATTER, full, reduction)

    def _launch(
        self,
        what: str,
        tensors: Sequence[object],
        steps: Sequence[Conditions],
        joints: Sequence[Joint],
        options: object,
        copies: Copies,
        targets: Sequence[Target | Targets] = (),
    ) -> CoarseWork:
        """Submit a call's steps; then deliver `targets` into their tensors. `tensors` are the call's result."""
        for target in targets:
            target.note_overwritten()
        limit = timeout_of(options, self._timeout)
        pending = self._lane.submit(what, copies.then(steps), joints, limit, lambda: copies.deliver(targets))
        return CoarseWork(pending, tensors)
