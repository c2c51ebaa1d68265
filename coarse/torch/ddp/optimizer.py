"""DistributedOptimizer: a torch optimizer whose gradients all workers share."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from coarse.errors import ConfigError
from coarse.parallel.data.bucket_plan import hinted
from coarse.parallel.data.reducer import ReducerSource
from coarse.protocol.dtypes import Op
from coarse.protocol.records import Descriptor
from coarse.session import current
from coarse.strategy.named import on_workers
from coarse.strategy.strategy import Exchanges, Strategy, require_rounds
from coarse.torch.compression import NoCompression, checked_compression
from coarse.torch.ddp.buckets import Bucket, BucketOfCopies, BucketOfViews, places_of, plan_buckets
from coarse.torch.ddp.claims import claims_of
from coarse.torch.ddp.closure import Closure, SharedClosure, loss_name
from coarse.torch.ddp.grad_scaler import HANDED, handing_on, teach_scalers
from coarse.torch.ddp.gradients import GradientExchange
from coarse.torch.ddp.peers import peers_of
from coarse.torch.ddp.sparse_gradients import Named, SparseGradients
from coarse.torch.device_state import DeviceState
from coarse.torch.groups.process_sets import ProcessSet, global_process_set
from coarse.torch.on_gpu import gpu_array_of, gpu_of, zeros_on_gpu
from coarse.torch.tensors import NamedTensors, format_of, names_of, signature, torch_type_of

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.parallel.data.reducer import DualSync
    from coarse.runtime import Runtime


class DistributedOptimizer(torch.optim.Optimizer):
    """Optimizer wrapper that combines gradients over all workers before the wrapped optimizer steps.

    Each bucket of gradients is pushed from a hook of autograd, so that communication overlaps backward.
    State, parameter groups, state dicts and hooks are the wrapped optimizer's own; learning-rate
    schedulers and GradScaler take either of the two.

    A `.grad` changed or replaced between backward and `synchronize` is an InFlightError. Torch does not
    see a change through `.grad.data`, hence nor does that check, and ranks may come to differ by it.

    Args:
        optimizer: the optimizer to wrap; don't step it by itself any more.
        named_parameters: names of (at least) all its parameters, the same on every rank; without, they are numbered.
        compression: Compression.fp16 or bf16 halve the bytes of float32 gradients, which are then copied in and out;
            Compression.none (or an op, as `op`).
        backward_passes_per_step: number of passes that accumulate before gradients are exchanged.
        op: coarse.Average, or coarse.Sum.
        gradient_predivide_factor: gradients are divided by it before they are summed, and averages multiplied by it
            afterwards, which keeps large sums within the range of half types.
        num_groups, groups: taken for the sake of Horovod's scripts; buckets of bucket_bytes group gradients already.
        sparse_as_dense: make sparse gradients dense, but for SparseAdam's step without a closure. Else they are
            gathered from all ranks and stay sparse; parameters that have them leave their buckets after the first step.
        process_set: some of the workers, who combine gradients among themselves and not by the memory devices; others
            who make it step alone. Members construct, step and close it together.
        gradients_in_device_memory: make `.grad` a view of it, so that a push moves no bytes; else buckets are copied in
            and out. For parameters on a GPU it is a view of a bucket there, which streams copy while backward computes.
        prefix: stands before the keys' names; by default optimizers are numbered as they are made.
        parameters_in_device_memory: keep parameters and optimizer state there, for `snapshot`, whose
            text says who may write to them while it runs.
        switch: a memory device that adds buckets and sends the sums back, as SwitchML's and SHARP's switches do, in
            place of the configuration's mode.
        strategy: a Strategy in place of the job's, which may decide who sums buckets and when (docs/strategies.md);
            the job's decides where tensors lie.

    Raises:
        MismatchError: the ranks' parameters differ in name, shape, type or order (on all ranks).
        ValueError: names that repeat or lack; a prefix or parameters that another DistributedOptimizer
            has, which was not closed.
    """

    def __new__(cls, *_: object, strategy: Strategy | None = None, **__: object) -> "DistributedOptimizer":
        """Make one of a subclass where the strategy exchanges updates instead of gradients."""
        exchanges = strategy_for(strategy, current()).exchanges
        return object.__new__(OPTIMIZERS.get(exchanges, cls) if cls is DistributedOptimizer else cls)

    _is_of_all = True
    _gathers_sparse: ClassVar[bool] = True
    """True if sparse gradients may stay sparse."""
    _device_state: DeviceState | None = None
    is_shared: ClassVar[bool] = True
    """True if all workers have the same parameters and states after each step."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedTensors | None = None,
        compression: type[NoCompression] | Op = NoCompression,
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
        switch: ReducerSource | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        if isinstance(compression, Op):
            op, compression = compression, NoCompression
        self._compression = checked_compression(compression)
        _check(optimizer, op, backward_passes_per_step, gradient_predivide_factor)
        runtime = current()
        assert runtime.client_index is not None
        self._strategy = strategy_for(strategy, runtime)
        _check_wires(self._strategy, self._compression)
        self._peers = peers_of(process_set, switch)
        _check_of_all(process_set if parameters_in_device_memory else global_process_set)
        self._inner = optimizer
        self._op, self._is_of_all = Op(op), process_set is global_process_set
        self._runtime, self._lag = runtime, self._strategy.lag
        self._names = names_of(_numbered(optimizer) if named_parameters is None else named_parameters)
        self._predivide = float(gradient_predivide_factor)
        self._wants_sparse = sparse_as_dense and isinstance(optimizer, torch.optim.SparseAdam)
        self._is_skipping = self._had_closure = False
        self._in_device_memory = gradients_in_device_memory
        self._watched: set[torch.Tensor] = set()
        self._claims = claims_of(runtime)
        self._prefix = self._claims.claim_prefix(prefix, self._peers.label)
        self._places = places_of(self._names)
        on_gpu = next((gpu_of(parameter) for parameter, place in self._places.items() if place), None)
        self._reducer = self._peers.reducer(self._prefix, on_gpu, self._strategy)
        gathers = self._gathers_sparse and not sparse_as_dense and not self._lag
        self._sparse = SparseGradients(self._prefix, self._op, self._peers) if gathers else None
        self._rest: list[Bucket] = []
        """Buckets that are made anew without parameters whose gradients turned out to be sparse."""
        self._exchange = GradientExchange(
            self._reducer, op=self._op, rank=runtime.client_index, num_ranks=self._peers.size, place=self._peers.rank,
            num_passes=backward_passes_per_step, sparse=self._sparse, take_out=self._take_out_sparse,
            sparse_as_dense=sparse_as_dense,
        )  # fmt: skip
        try:
            self._watch_new_parameters()
            if parameters_in_device_memory:
                self._device_state = DeviceState(optimizer, self._names, self._prefix)
        except BaseException:
            self.close()
            raise
        teach_scalers()

    # --- stepping

    def step(self, closure: Closure | None = None, **options: Any) -> Any:  # noqa: ANN401
        """Synchronise gradients that are not synchronised, a closure's gradients and loss too, then step.

        A gradient that some ranks lacked counts as zero there (see `last_absent`); one that all ranks lacked is None.
        After a StallError, call it again. It returns the wrapped optimizer's result: the loss that a closure returns is
        that of all ranks, combined as the gradients are.
        """
        if self._is_skipping:
            self._exchange.require_landed()
        elif closure is None:
            self.synchronize()
        if closure is not None:
            self._had_closure |= not self._is_skipping
            shared = SharedClosure(closure, self.synchronize, self._op, loss_name(self._prefix), self._peers)
            options["closure"] = closure if self._is_skipping else shared
        with (
            handing_on(self, self._inner) if HANDED & self.__dict__.keys() else nullcontext(),
            self._made_sparse() if self._wants_sparse and closure is None else nullcontext(),
            self._without_those_to_come() if self._lag and closure is None else nullcontext(),
        ):
            result = self._inner.step(**options)
        self._exchange.is_synchronised = False  # the next gradients are to be
        if (timer := self._reducer.timer) is not None:
            timer.on_stepped()
        return result

    def synchronize(self) -> None:
        """Push the buckets that backward has not completed; return once `.grad` holds the combined gradients."""
        if self._exchange.is_synchronised:
            return
        self._require_none_frozen()
        self._exchange.synchronize()

    @contextmanager
    def _without_those_to_come(self) -> Iterator[None]:
        """Remove gradients of buckets whose first sum has yet to come, in place of zeros, within the context."""
        to_come = [p for bucket in self._exchange.buckets if not bucket.has_sum for p in bucket.parameters]
        gradients = [(parameter, parameter.grad) for parameter in to_come]
        for parameter in to_come:
            parameter.grad = None
        try:
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient

    @contextmanager
    def _made_sparse(self) -> Iterator[None]:
        """Make gradients that `sparse_as_dense` has made dense sparse within the context."""
        gradients = [(p, p.grad) for p in self._all_parameters() if p.grad is not None]
        for parameter, gradient in gradients:
            parameter.grad = gradient.to_sparse(1)
        try:
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient

    def _require_none_frozen(self) -> None:
        for parameter in self._frozen:
            if parameter.requires_grad and self._peers.is_member:
                raise ValueError(
                    f"{self._names[parameter]!r} was frozen when the DistributedOptimizer was made, so its "
                    "gradient is not exchanged; close() it and make a new one, or unfreeze it before"
                )

    def synchronize_for_scaler(self) -> None:
        """Synchronise gradients of which some have come; see [Note: a scaler looks at gradients]."""
        if self._exchange.has_arrivals:
            self.synchronize()

    @contextmanager
    def skip_sync(self) -> Iterator[None]:
        """Have step() use the gradients as they are, within the context: for changes after `synchronize()`."""
        was_skipping, self._is_skipping = self._is_skipping, True
        try:
            yield
        finally:
            self._is_skipping = was_skipping

    skip_synchronize = skip_sync
    """Name of `skip_sync` in Horovod."""

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes per exchange of gradients, from the next step on; on all ranks.

        Raises:
            ValueError: fewer than 1.
            InFlightError: a gradient has come since the last step.
        """
        _check_passes(passes)
        self._exchange.set_num_passes(passes)

    def no_sync(self) -> AbstractContextManager[None]:
        """Let backward accumulate on this rank, uncounted and without communication, within the context."""
        return self._exchange.silence()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero gradients where they are, or forget them where `set_to_none`.

        A forgotten parameter without a gradient in the next step is not updated, as in torch.
        """
        self._exchange.clear(set_to_none=set_to_none)
        for parameter in self._frozen:
            if parameter.grad is not None:
                parameter.grad = None if set_to_none else torch.zeros_like(parameter.grad)

    @property
    def last_absent(self) -> dict[str, int]:
        """Number of ranks without a gradient in the last step, for each parameter that some ranks lacked."""
        return dict(self._exchange.last_absent)

    @property
    def dual_sync(self) -> "DualSync | None":
        """Measurements and the choice of devices' buckets by them; None before and without a decision."""
        return self._reducer.dual_sync

    @property
    def is_of_all(self) -> bool:
        """True if all workers share its gradients, not those of a process set alone."""
        return self._is_of_all

    @property
    def parameter_names(self) -> dict[torch.Tensor, str]:
        """Name of each named parameter."""
        return dict(self._names)

    def close(self) -> None:
        """Take all hooks off, and free the prefix, the parameters and the buckets' device memory.

        The memory is freed once all workers have closed theirs. Gradients, parameters and state get separate memory,
        and the wrapped optimizer goes on alone.
        """
        self._claims.release(self._prefix, self._names)
        if self._device_state is not None:
            self._device_state.close()
        self._exchange.close()
        if self._had_closure:
            self._peers.forget(loss_name(self._prefix))

    # --- the wrapped optimizer's own

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of the wrapped optimizer.

        Reading them synchronises nothing: call `synchronize` before you change gradients that you find through them.
        """
        return self._inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._inner.param_groups = groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, which must have been among the named ones; all ranks do so together."""
        self._inner.add_param_group(param_group)
        self._watch_new_parameters()

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state dict, which any optimizer of its class can load."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of the wrapped optimizer's class."""
        self._inner.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name != "_inner":
            return getattr(self._inner, name)
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._inner!r})"

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a DistributedOptimizer belongs to its process and cannot be copied; save its state_dict()")

    # --- within

    def _all_parameters(self) -> list[torch.Tensor]:
        return [p for group in self._inner.param_groups for p in group["params"]]

    def _watch_new_parameters(self) -> None:
        """Make buckets of the parameters that have none yet."""
        wanted = {p for p in self._all_parameters() if p.requires_grad and p not in self._watched}
        if not self._peers.is_member:
            wanted = set()
        unnamed = [p for p in self._all_parameters() if p not in self._names]
        if unnamed:
            kinds = ", ".join(signature(p) for p in unnamed[:5])
            raise ValueError(
                f"{len(unnamed)} parameters of the optimizer are not among named_parameters ({kinds}); "
                "pass the names of all of them, such as model.named_parameters()"
            )
        named = [(name, p) for p, name in self._names.items() if p in wanted]
        if self._peers.is_member:
            entries = [(name, self._statement_of(p)) for name, p in named]
            options = [("the option switch", repr(self._peers.switch)), ("the option strategy", repr(self._strategy))]
            self._peers.require_same([*entries, *options], "parameter")
        self._claims.claim_parameters(dict(named), self._prefix)
        buckets: list[Bucket] = []
        self._make_buckets(named, buckets)
        self._exchange.add(buckets)
        self._watched |= wanted
        self._frozen = [p for p in self._all_parameters() if p not in self._watched]

    def _take_out_sparse(self) -> None:
        """Remake buckets, on all ranks, without the parameters whose gradients turned out to be sparse.

        New ones are made when all ranks have given the old ones' memory back. After a StallError it may be called
        again.
        """
        exchange = self._exchange
        assert self._sparse is not None
        sparse = {parameter for _, parameter in exchange.newly_sparse} | {slot.parameter for slot in self._sparse.slots}
        exchange.drop_buckets()
        self._sparse.meet()
        named = [(name, p) for p, name in self._names.items() if p in self._watched - sparse]
        self._make_buckets(named, self._rest)
        self._sparse.part()
        buckets, self._rest = self._rest, []
        exchange.replace(buckets)

    def _make_buckets(self, named: Named, made: list[Bucket]) -> None:
        """Add buckets of these parameters to those that are made."""
        plans = plan_buckets(
            named,
            prefix=self._prefix,
            op=self._op,
            bucket_bytes=self._runtime.config.bucket_bytes,
            num_ranks=self._peers.size,
            first_index=len(self._exchange.buckets),
            compression=self._compression,
            places=self._places,
            block_elements=1 if self._peers.switch is None else self._peers.switch.block_elements,
        )
        runtime, parameters = self._runtime, dict(named)
        plans = hinted(plans, self._strategy, runtime.placement.cluster, runtime.facts)
        for plan in plans[len(made) :]:
            members = tuple(parameters[name] for name in plan.names)
            memory = self._memory_of_bucket(plan.descriptor, plan.num_exact, members)
            kind = self._kind_of_bucket(members, memory, plan.descriptor.dtype)
            made.append(kind(plan, members, memory, predivide=self._predivide))

    def _memory_of_bucket(
        self, descriptor: Descriptor, num_exact: int, parameters: Sequence[torch.Tensor]
    ) -> np.ndarray | torch.Tensor:
        """Return a bucket's memory: on the GPU of its parameters, where the reducer takes it from there."""
        if not self._reducer.takes_gpus or not self._places[parameters[0]]:
            return self._reducer.memory_of(descriptor, num_exact)
        flat = zeros_on_gpu(parameters[0], descriptor.shape, torch_type_of(descriptor.dtype))
        self._reducer.use(descriptor, gpu_array_of(flat))
        return flat

    def _statement_of(self, parameter: torch.Tensor) -> str:
        """Return the facts about a parameter that must be equal on all ranks."""
        owner = self._claims.owner_of(parameter)
        number = self._places[parameter]
        place = "" if not number else " on a GPU" if number == 1 else f" on a GPU, number {number} of its model's"
        return format_of(parameter) + place + (f", with another optimizer of prefix {owner!r}" if owner else "")

    def _kind_of_bucket(
        self, parameters: Sequence[torch.Tensor], memory: np.ndarray | torch.Tensor, wire: int
    ) -> type[Bucket]:
        if not self._in_device_memory or any(parameter.dtype != torch_type_of(wire) for parameter in parameters):
            return BucketOfCopies
        if isinstance(memory, torch.Tensor) or all(parameter.device.type == "cpu" for parameter in parameters):
            return BucketOfViews
        warnings.warn(
            f"gradients on {parameters[0].device} cannot live in device memory of the host and are "
            "copied; pass gradients_in_device_memory=False to say so",
            stacklevel=4,
        )
        return BucketOfCopies


OPTIMIZERS: dict[Exchanges, type[DistributedOptimizer]] = {}
"""Subclass for each kind of a strategy's exchange; coarse.torch.ddp.updates adds its own."""


def strategy_for(own: Strategy | None, runtime: "Runtime") -> Strategy:
    """Return the job's strategy, or an optimizer's own as the job's devices can follow it.

    Raises:
        ConfigError: the devices cannot follow it.
    """
    if own is None:
        require_rounds(runtime.strategy)
        return runtime.strategy
    if not isinstance(own, Strategy):
        raise ConfigError(f"strategy must be an instance of a coarse.strategy.Strategy, got {own!r}", key="strategy")
    found = on_workers(own, runtime.strategy)
    require_rounds(found)
    return found


def _numbered(optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
    """Return the optimizer's parameters by names that are equal on all ranks, which build the same model."""
    return [
        (f"unnamed.{number}.{place}", parameter)
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
    ]


def _check(optimizer: object, op: object, backward_passes_per_step: int, predivide: float) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"a torch optimizer was wanted, {type(optimizer).__name__} came")
    if isinstance(optimizer, DistributedOptimizer):
        raise ValueError("the optimizer is a DistributedOptimizer already; wrap it once")
    if op not in (Op.AVERAGE, Op.SUM):
        raise ValueError(f"gradients combine by coarse.Average or coarse.Sum, got {getattr(op, 'name', op)}")
    _check_passes(backward_passes_per_step)
    if not 0 < predivide < math.inf:
        raise ValueError(f"gradient_predivide_factor must be above 0, got {predivide}")
    if predivide != 1.0 and op is not Op.AVERAGE:
        raise ValueError(f"gradient_predivide_factor {predivide} goes with op=coarse.Average alone; leave one out")


def _check_of_all(process_set: ProcessSet) -> None:
    if process_set is not global_process_set:
        raise ConfigError(
            f"parameters_in_device_memory is for optimizers of all workers, and this one is of {process_set}; leave "
            "one of the two out"
        )


def _check_wires(strategy: Strategy, compression: type[NoCompression]) -> None:
    if compression.wire_dtype is not None and strategy.has_wires:
        raise ConfigError(
            f"{type(strategy).__name__} says what travels of gradients, and compression says {compression.__name__}; "
            "leave one of the two out",
            key="compression",
        )


def _check_passes(backward_passes_per_step: int) -> None:
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, got {backward_passes_per_step}")
