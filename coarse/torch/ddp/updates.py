"""DistributedOptimizer whose workers step alone, and sum their steps' changes at times (DiLoCo, 2023).

After a step for which the strategy's round asks it, each bucket's update, parameters less their values after its last
exchange, is averaged over all workers. The strategy's outer optimizer makes of the mean the update that all workers
take. So they are equal after an exchange if they were equal before the first step, for any steps in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import numpy as np
import torch

from coarse.errors import ConfigError
from coarse.parallel.data.bucket_plan import BucketPlan, hinted, plan_buckets
from coarse.parallel.data.choice import wired
from coarse.parallel.data.reducer import DeviceReducer, Flight, Reducer
from coarse.protocol.dtypes import DType, Op
from coarse.session import current
from coarse.strategy.rounds import By, Round, first_to_devices
from coarse.strategy.strategy import Exchanges, Strategy, require_round_of
from coarse.torch.ddp.claims import claims_of
from coarse.torch.ddp.closure import Closure
from coarse.torch.ddp.optimizer import OPTIMIZERS, DistributedOptimizer, strategy_for
from coarse.torch.ddp.peers import peers_of
from coarse.torch.groups.process_sets import ProcessSet, global_process_set
from coarse.torch.tensors import NamedTensors, format_of, names_of, tensor_of

ANCHOR, OUTER, STEPS = "coarse_anchor", "coarse_outer", "coarse_steps"
"""Keys of an optimizer's state: each parameter's values after its last exchange, and the outer optimizer's state; in
the first group the number of steps that were made."""


class UpdateOptimizer(DistributedOptimizer):
    """DistributedOptimizer of a job whose strategy exchanges updates.

    DistributedOptimizer makes one there. Its parameters must be equal on all workers before the first step. Gradients,
    `no_sync`, `skip_sync` and gradient accumulation are each worker's own, and so is `state_dict`, of which each worker
    keeps its own: it has the wrapped optimizer's state, and beside it the anchors and the outer optimizer's state.
    `ct.snapshot` refuses it. Parameters of half types are exchanged as float32.
    """

    is_shared: ClassVar[bool] = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedTensors | None = None,
        compression: object = None,
        backward_passes_per_step: int = 1,
        op: Op = Op.AVERAGE,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: object = None,
        sparse_as_dense: bool = False,
        process_set: ProcessSet = global_process_set,
        *,
        gradients_in_device_memory: bool = True,
        prefix: str = "",
        parameters_in_device_memory: bool = False,
        switch: object = None,
        strategy: Strategy | None = None,
    ) -> None:
        self._inner = optimizer
        self._runtime = runtime = current()
        self._strategy = strategy_for(strategy, runtime)
        _refuse(
            compression=getattr(compression, "wire_dtype", None) is not None, op=op is not Op.AVERAGE,
            gradient_predivide_factor=gradient_predivide_factor != 1.0,
            process_set=process_set is not global_process_set,
            parameters_in_device_memory=parameters_in_device_memory, switch=switch is not None,
        )  # fmt: skip
        numbered = ((f"unnamed.{number}", parameter) for number, parameter in enumerate(self._all_parameters()))
        self._names = names_of(list(numbered) if named_parameters is None else named_parameters)
        self._claims = claims_of(runtime)
        self._prefix = self._claims.claim_prefix(prefix, "")
        self._peers = peers_of(process_set, None)
        self._anchors: dict[torch.Tensor, torch.Tensor] = {}
        self._outer: dict[str, np.ndarray] = {}
        """State of the outer optimizer, (n,), by bucket's name."""
        self._plans: list[BucketPlan] = []
        self._memories: list[np.ndarray] = []
        self._under_way: list[tuple[int, Flight]] = []
        """Buckets of an exchange that are still to be waited for: it goes on after a StallError."""
        self._reducer = self._new_reducer()
        try:
            self._watch_new_parameters()
        except BaseException:
            self.close()
            raise

    # --- stepping

    def step(self, closure: Closure | None = None, **options: Any) -> Any:  # noqa: ANN401
        """Step alone, by a closure's gradients if there is one; then exchange updates if the round asks it.

        After a StallError, call it again: it goes on with the exchange, and makes no other step.
        """
        if self._under_way:
            self._finish_exchange()
            return None
        result = self._inner.step(**options) if closure is None else self._inner.step(closure, **options)
        number = self.num_steps
        self._inner.param_groups[0][STEPS] = number + 1
        self._begin_exchange(require_round_of(self._strategy, number, self._decided))
        self._finish_exchange()
        return result

    @property
    def num_steps(self) -> int:
        """Number of steps that were made, with those before a checkpoint that was loaded."""
        return int(self._inner.param_groups[0].get(STEPS, 0))

    def synchronize(self) -> None:
        """Do nothing: gradients are each worker's own."""

    def synchronize_for_scaler(self) -> None:
        """Do nothing: each worker scales by itself."""

    @contextmanager
    def skip_sync(self) -> Iterator[None]:
        """Return a context in which nothing differs."""
        yield

    skip_synchronize = skip_sync

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which nothing differs."""
        return nullcontext()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Do nothing: a worker accumulates in its own steps."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero or forget gradients, as the wrapped optimizer does."""
        self._inner.zero_grad(set_to_none)

    @property
    def last_absent(self) -> dict[str, int]:
        """Empty dictionary: gradients are not exchanged."""
        return {}

    def close(self) -> None:
        """Free the prefix and the parameters, and the buckets' device memory once all workers have closed."""
        self._claims.release(self._prefix, self._names)
        self._reducer.close()
        self._plans, self._memories, self._under_way = [], [], []

    # --- state

    @property
    def state(self) -> dict[torch.Tensor, dict[str, Any]]:  # type: ignore[override]
        """State of the wrapped optimizer, anchor, and part of the outer optimizer's state, by parameter."""
        inner = self._inner.state
        own = self._own_state()
        return {p: {**inner.get(p, {}), **own.get(p, {})} for p in {**inner, **own}}

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state dict, with `coarse_anchor` and `coarse_outer` in each state."""
        found = self._inner.state_dict()
        own, numbers = self._own_state(), self._numbers()
        state = {number: dict(found["state"].get(number, {})) for number in {*found["state"], *numbers}}
        for number, parameter in numbers.items():
            state[number] |= own.get(parameter, {})
        return {**found, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of `state_dict`.

        Anchors that it lacks are the parameters as they are, so load these before.
        """
        rest, own = {}, {}
        for number, entry in state_dict["state"].items():
            own[number] = {key: value for key, value in entry.items() if key in (ANCHOR, OUTER)}
            plain = {key: value for key, value in entry.items() if key not in own[number]}
            if plain:
                rest[number] = plain
        self._inner.load_state_dict({**state_dict, "state": rest})
        self._outer = {}
        for number, parameter in self._numbers().items():
            if parameter in self._anchors:
                self._anchors[parameter].copy_(own.get(number, {}).get(ANCHOR, parameter.detach()))
        for plan in self._plans:
            self._load_outer(plan, {self._names[p]: own.get(n, {}).get(OUTER) for n, p in self._numbers().items()})

    # --- within

    @property
    def _decided(self) -> Round:
        count = len(self._plans)
        return first_to_devices(count if self._strategy.uses_devices else 0, count)

    def _new_reducer(self) -> Reducer:
        client = self._runtime.require_client()
        if self._strategy.uses_devices:
            return wired(DeviceReducer(client), self._runtime, self._strategy)
        from coarse.parallel.data.allreduce import AllreduceReducer  # they start MPI, which only init() may
        from coarse.parallel.data.allreduce_stream import AllreduceStream

        by_ring = self._runtime.config.worker_collective == "ring"
        stream = AllreduceStream(self._runtime.worker_comm, client.link, by_ring=by_ring)
        found = AllreduceReducer(stream, client.protocol.client, client.count_push)
        return wired(found, self._runtime, self._strategy)

    def _watch_new_parameters(self) -> None:
        """Make buckets of the parameters that have none yet, and note their values."""
        wanted = [p for p in self._all_parameters() if p.requires_grad and p not in self._anchors]
        unnamed = [p for p in self._all_parameters() if p not in self._names]
        if unnamed:
            raise ValueError(
                f"{len(unnamed)} parameters of the optimizer are not among named_parameters; pass the names of all of "
                "them, such as model.named_parameters()"
            )
        order = {name: number for number, name in enumerate(self._names.values())}
        wanted.sort(key=lambda parameter: order[self._names[parameter]])
        entries = [(self._names[p], format_of(p)) for p in wanted]
        self._peers.require_same([*entries, ("the option strategy", repr(self._strategy))], "parameter")
        self._claims.claim_parameters({self._names[p]: p for p in wanted}, self._prefix)
        plans = plan_buckets(
            [(self._names[p], int(_wire_of(self._names[p], p)), p.numel()) for p in wanted],
            prefix=self._prefix, op=Op.AVERAGE, bucket_bytes=self._runtime.config.bucket_bytes, num_ranks=1,
            first_index=len(self._plans),
        )  # fmt: skip
        plans = hinted(plans, self._strategy, self._runtime.placement.cluster, self._runtime.facts)
        self._memories += [self._reducer.memory_of(plan.descriptor, plan.num_exact) for plan in plans]
        self._plans += plans
        self._anchors |= {parameter: parameter.detach().clone() for parameter in wanted}
        self._by_name = {self._names[parameter]: parameter for parameter in self._anchors}

    @torch.no_grad()
    def _begin_exchange(self, decided: Round) -> None:
        exchanged = [index for index, by in enumerate(decided.by) if by is not By.NOBODY]
        if not self._strategy.uses_devices and 0 < len(exchanged) < len(self._plans):
            raise ConfigError(
                f"{type(self._strategy).__name__}.round leaves some buckets out, and workers that sum by themselves "
                "exchange all or none; let devices sum them (uses_devices)",
                key="mode",
            )
        for index in exchanged:
            for part, parameter in self._parts(index):
                part.copy_((parameter.detach() - self._anchors[parameter]).reshape(-1))
            self._under_way.append((index, self._reducer.start(index)))

    @torch.no_grad()
    def _finish_exchange(self) -> None:
        if not self._under_way:
            return
        if (rounds := self._reducer.rounds) is not None:
            rounds.all_started()
        while self._under_way:
            index, flight = self._under_way[0]
            flight.wait()
            self._take(index)
            self._under_way.pop(0)
        if rounds is not None:
            rounds.begin_round()

    def _take(self, index: int) -> None:
        """Give a bucket's parameters the update that the strategy makes of its mean."""
        plan, memory = self._plans[index], self._memories[index]
        mean = memory[: plan.layout.num_elements]
        update, state = self._strategy.outer(mean.copy(), self._outer.get(plan.descriptor.name))
        if update.shape != mean.shape or (state is not None and state.shape != mean.shape):
            raise ConfigError(
                f"{type(self._strategy).__name__}.outer must return an update, and a state or None, of {mean.shape}, "
                f"got {update.shape} and {None if state is None else state.shape}; correct the strategy",
                key="mode",
            )
        memory[: plan.layout.num_elements] = update
        if state is not None:
            self._outer[plan.descriptor.name] = np.array(state, mean.dtype)
        for part, parameter in self._parts(index):
            anchor = self._anchors[parameter]
            anchor.add_(part.view(parameter.shape).to(anchor.device))
            parameter.copy_(anchor)

    def _parts(self, index: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return (a parameter's part of a bucket's memory, flat; the parameter) for each."""
        plan = self._plans[index]
        flat = tensor_of(self._memories[index], plan.descriptor.dtype)
        slots = zip(plan.names, plan.layout.slots, strict=True)
        return [(flat[s.offset_elements :][: s.num_elements], self._by_name[name]) for name, s in slots]

    def _numbers(self) -> dict[int, torch.Tensor]:
        """Return parameters by their numbers in a state dict."""
        return dict(enumerate(self._all_parameters()))

    def _own_state(self) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
        found = {parameter: {ANCHOR: anchor} for parameter, anchor in self._anchors.items()}
        for plan in self._plans:
            outer = self._outer.get(plan.descriptor.name)
            if outer is None:
                continue
            for name, slot in zip(plan.names, plan.layout.slots, strict=True):
                parameter = self._by_name[name]
                part = torch.from_numpy(outer[slot.offset_elements :][: slot.num_elements])
                found[parameter][OUTER] = part.view(parameter.shape)
        return found

    def _load_outer(self, plan: BucketPlan, parts: dict[str, torch.Tensor | None]) -> None:
        came = [parts.get(name) for name in plan.names]
        if not any(part is not None for part in came):
            return
        state = np.zeros(plan.layout.num_elements, DType(plan.descriptor.dtype).storage)
        for part, slot in zip(came, plan.layout.slots, strict=True):
            if part is not None:
                state[slot.offset_elements :][: slot.num_elements] = part.detach().reshape(-1).cpu().numpy()
        self._outer[plan.descriptor.name] = state


OPTIMIZERS[Exchanges.UPDATES] = UpdateOptimizer


def _wire_of(name: str, parameter: torch.Tensor) -> DType:
    if not parameter.dtype.is_floating_point:
        raise TypeError(f"{name!r}: updates are of real floating-point parameters, got {parameter.dtype}")
    return DType.FLOAT64 if parameter.dtype is torch.float64 else DType.FLOAT32


def _refuse(**options: bool) -> None:
    """Raise ConfigError for options that mean nothing where updates are exchanged."""
    if wrong := [name for name, is_given in options.items() if is_given]:
        raise ConfigError(
            f"the job's strategy exchanges updates and not gradients, for which {', '.join(wrong)} means nothing; "
            "leave it out, or take another mode"
        )
