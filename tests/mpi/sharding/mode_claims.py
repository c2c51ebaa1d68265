"""What each sharding mode moves between nodes, records and refuses; on four workers of two nodes."""

import contextlib
import copy
import functools
import io
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.fsdp import fully_shard as fsdp2_fully_shard

import coarse
import coarse.torch as ct
from coarse.errors import CapacityError, ConfigError, MismatchError, UnsupportedVersionError
from coarse.strategy import Hybrid
from coarse.torch.fsdp.quantised import quantised_nbytes
from coarse.torch.fsdp.unit import units_of
from tests.mpi.sharding import order_claims
from tests.support.claims import Claim, raises
from tests.support.volumes import TrainedShape, iteration_volume

WIDTH, NUM_BLOCKS, ROWS = 64, 3, 4
PHASES = ("forward gather", "backward gather", "gradient reduce-scatter")


class Stack(nn.Module):
    """Blocks whose widths divide by the workers, so that no shard is padded."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_BLOCKS))
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """(rows, WIDTH) -> the same shape."""
        for block in self.blocks:
            inputs = torch.tanh(block(inputs))
        return self.head(inputs)


class Adapted(nn.Module):
    """A frozen layer and two trainable ones of low rank beside it (LoRA)."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(WIDTH, 4, bias=False)
        self.up = nn.Linear(4, WIDTH, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """(rows, WIDTH) -> the same shape."""
        return self.base(inputs) + self.up(self.down(inputs))


def adapted() -> Stack:
    """A frozen model with adapters in every block."""
    stack = Stack().requires_grad_(False)
    stack.blocks = nn.ModuleList(Adapted(block) for block in stack.blocks)
    return stack


def batch(step: int, rank: int) -> Tensor:
    """(ROWS, WIDTH) float32, the inputs of a worker."""
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    """One step on this worker's batch."""
    loss = model(batch(step, ct.rank())).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)


def moved(work: Callable[[], object]) -> dict[str, float]:
    """Bytes that each node receives from the other meanwhile, by phase."""
    ct.barrier()
    before = ct.bytes_between_nodes()
    work()
    ct.barrier()
    after = ct.bytes_between_nodes()
    received = torch.tensor([after[phase][1] - before[phase][1] for phase in PHASES], dtype=torch.float64)
    total = ct.push_pull(received, "received", ct.Sum) / 2
    return dict(zip(PHASES, total.tolist(), strict=True))


def shape_of(model: nn.Module) -> TrainedShape:
    """The volumes of a sharded model, from its units."""
    units = units_of(model)
    trainable = sum(unit.fsdp.trainable_nbytes() for unit in units)
    return TrainedShape(
        num_nodes=2,
        num_workers=4,
        parameter_nbytes=sum(unit.fsdp.gathered_nbytes() for unit in units),
        trainable_nbytes=trainable,
        gradient_nbytes=trainable,
        root_nbytes=sum(unit.fsdp.gathered_nbytes() for unit in units if unit.name == "root"),
    )


# --- bytes


def a_step_moves_what_the_formulas_say(mode: str, collective: str, make: Callable[[], Stack]) -> None:
    model = ct.fully_shard(make(), mode, collective=collective)
    optimizer = optimizer_of(model)
    train(model, optimizer, 0)  # what never changes is gathered here
    wanted = iteration_volume(mode, shape_of(model), is_ring=collective == "ring")
    found = moved(lambda: train(model, optimizer, 1))
    assert found == dict(
        zip(PHASES, (wanted.forward_gather, wanted.backward_gather, wanted.reduce_scatter), strict=True)
    ), (found, wanted)


def fcdp_gathers_of_an_adapted_model_only_the_adapters() -> None:
    gathered = {}
    for mode in ("fsdp", "fcdp"):
        model = ct.fully_shard(adapted(), mode)
        optimizer = optimizer_of(model)
        train(model, optimizer, 0)
        found = moved(functools.partial(train, model, optimizer, 1))
        gathered[mode] = found["forward gather"] + found["backward gather"]
    share = sum(p.numel() for p in adapted().parameters() if p.requires_grad) / sum(
        p.numel() for p in adapted().parameters()
    )
    assert gathered["fcdp"] < share * gathered["fsdp"]


def fcdp_gathers_once_for_accumulated_microbatches_and_evaluations() -> None:
    model = ct.fully_shard(Stack(), "fcdp")
    optimizer = optimizer_of(model)
    train(model, optimizer, 0)

    def accumulate() -> None:
        for microbatch in range(3):
            model(batch(microbatch, ct.rank())).sum().backward()
        with torch.no_grad():
            model(batch(9, ct.rank()))

    shape = shape_of(model)
    assert moved(accumulate)["forward gather"] == shape.parameter_nbytes / 2


def a_write_within_a_forward_counts_or_is_refused(mode: str, make: Callable[[], Stack]) -> None:
    """A hook of one block writes to the next but one, or to the next, which is gathered by then."""
    alone, model = make(), ct.fully_shard(make(), mode=mode)
    for distance in (2, 1):
        for step in range(3):
            hooks = []
            for one in (alone, model) if step == 2 else ():
                block = one.blocks[2]
                edited = [block.weight if make is Stack else block.base.weight]
                hook = one.blocks[2 - distance].register_forward_hook(lambda *_, edited=edited: _halve(*edited))
                hooks.append(hook)
            refuses = bool(hooks) and (distance == 1 or mode == "fcdp")  # which keeps what no step has changed
            with torch.no_grad():
                wanted = alone(batch(step, ct.rank()))
                with raises(ConfigError, "blocks.2", "within a forward") if refuses else contextlib.nullcontext():
                    torch.testing.assert_close(model(batch(step, ct.rank())), wanted)
            for hook in hooks:
                hook.remove()
        with torch.no_grad():
            torch.testing.assert_close(model(batch(9, ct.rank())), alone(batch(9, ct.rank())))


def _halve(parameter: Tensor) -> None:
    with torch.no_grad():
        parameter.mul_(0.5)


@dataclass
class Box:
    """What a unit may take and return."""

    values: Tensor


class Routed(nn.Linear):
    """Keeps a loss beside its output, in which it is made by the output."""

    def forward(self, box: Box) -> Box:
        output = super().forward(box.values)
        self.kept = [super().forward(output).square().mean()]
        return Box(output)


def what_modules_keep_and_what_dataclasses_hold_reaches_their_units(mode: str) -> None:
    torch.manual_seed(1)
    alone = nn.Sequential(*(Routed(WIDTH, WIDTH) for _ in range(3)))
    model = ct.fully_shard(copy.deepcopy(alone), mode=mode, units=[Routed])
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (alone, model)]
    for step in range(4):
        for one, optimizer, ranks in zip((alone, model), optimizers, (range(ct.size()), [ct.rank()]), strict=True):
            loss = one(Box(torch.cat([batch(step, rank) for rank in ranks]))).values.square().mean()
            if step % 2:
                loss = sum(layer.kept[0] for layer in one) + loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for found, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found.full_tensor(), wanted, rtol=1e-4, atol=1e-6)


def caches_that_were_released_are_taken_anew() -> None:
    model = ct.fully_shard(Stack(), "fcdp")
    optimizer = optimizer_of(model)
    train(model, optimizer, 0)
    used_bytes = device_bytes()
    ct.release_caches(model)
    released_bytes = device_bytes()
    assert released_bytes <= used_bytes - shape_of(model).parameter_nbytes
    wanted = iteration_volume("fcdp", shape_of(model))
    assert moved(lambda: train(model, optimizer, 1))["forward gather"] == wanted.forward_gather
    assert device_bytes() >= released_bytes + shape_of(model).parameter_nbytes


def device_bytes() -> float:
    """Bytes in use on the devices of this worker's node."""
    ct.barrier()
    return sum(device["memory_used_bytes"] for device in coarse.statistics()["devices"].values())


# --- quantised gathers


def quantised_gathers_move_a_quarter_of_float32_and_print_their_error() -> None:
    exact, model = Stack(), ct.fully_shard(Stack(), "zeropp", quantised=True)
    wanted = torch.stack([exact(batch(0, rank)).square().mean() for rank in range(ct.size())])[ct.rank()]
    optimizer = optimizer_of(model)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        loss = train(model, optimizer, 0)
        found = moved(lambda: train(model, optimizer, 1))
    assert 0 < abs(loss - wanted.item()) < 0.02 * wanted.item()
    units = units_of(model)
    assert found["forward gather"] == sum(
        2 * quantised_nbytes(unit.fsdp.gathered_nbytes() // 4 // ct.size()) for unit in units
    )
    assert found["backward gather"] == 0
    assert ("int8 gathers change the parameters by 0." in printed.getvalue()) is (ct.rank() == 0)


# --- what is recorded


def the_trace_shows_the_next_gather_in_flight_while_a_unit_computes(mode: str, folder: Path) -> None:
    model = ct.fully_shard(Stack(), mode)
    optimizer = optimizer_of(model)
    train(model, optimizer, 0)  # the order of units is known afterwards
    path = folder / f"{mode}{ct.rank()}.json"
    with ct.TransferRecorder(model) as recorder:
        train(model, optimizer, 1)
        recorder.write(path)
    spans = {event["name"]: event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"}
    for index in range(NUM_BLOCKS - 1):
        computing = spans[f"forward of blocks.{index}"]
        gather = spans[f"forward gather of blocks.{index + 1}"]
        assert gather["args"]["submitted_s"] * 1e6 < computing["ts"] + computing["dur"]
        computing, gather = spans[f"backward of blocks.{index + 1}"], spans[f"backward gather of blocks.{index}"]
        assert gather["args"]["submitted_s"] * 1e6 < computing["ts"] + computing["dur"]
    kinds = {"fsdp": "gather between nodes", "zeropp": "gather on the node", "fcdp": "host load"}
    assert spans["backward gather of blocks.0"]["cat"] == kinds[mode]
    assert all(unit.recorder is None for unit in units_of(model))


# --- units


def a_script_that_shards_bottom_up_trains_equally(mode: str) -> None:
    whole, model = ct.fully_shard(Stack(), mode), Stack()
    for block in model.blocks:
        ct.fully_shard(block, mode)
    ct.fully_shard(model, mode)
    optimizers = optimizer_of(whole), optimizer_of(model)
    for step in range(3):
        assert train(whole, optimizers[0], step) == train(model, optimizers[1], step)
    assert [unit.name for unit in units_of(model)] == [unit.name for unit in units_of(whole)]


def a_root_without_parameters_or_sharded_by_torch_hides_no_change() -> None:
    for shard_root in (lambda model: ct.fully_shard(model, "fcdp"), fsdp2_fully_shard):
        alone, model = (nn.Sequential(Stack().blocks, Stack().head) for _ in range(2))
        for net in (alone, model):
            net.forward = functools.partial(Stack.forward, SimpleNamespace(blocks=net[0], head=net[1]))
        for block in model[0]:
            ct.fully_shard(block, "fcdp")
        ct.fully_shard(model[1], "fcdp")
        shard_root(model)
        optimizer = optimizer_of(model)
        for step in range(3):
            wanted = torch.stack([alone(batch(step, rank)).square().mean() for rank in range(ct.size())])
            wanted.mean().backward()
            optimizer_alone = optimizer_of(alone)
            optimizer_alone.step()
            optimizer_alone.zero_grad()
            torch.testing.assert_close(train(model, optimizer, step), wanted[ct.rank()].item())


def fsdp2s_options_go_through(option: str, value: object) -> None:
    for mode in ("fsdp", "zeropp", "fcdp"):
        assert losses(mode, **{option: value}) == plain_losses(mode)


def losses(mode: str, **options: object) -> list[float]:
    """The losses of three steps of a model that is sharded with these options."""
    model = ct.fully_shard(Stack(), mode, **options)
    optimizer = optimizer_of(model)
    return [train(model, optimizer, step) for step in range(3)]


@functools.cache
def plain_losses(mode: str) -> list[float]:
    """The same without options."""
    return losses(mode)


def units_are_those_that_are_chosen() -> None:
    names = ["root", "blocks.0", "blocks.1", "blocks.2"]
    assert [unit.name for unit in units_of(ct.fully_shard(Stack()))] == names
    chosen = ct.fully_shard(Stack(), units=lambda module: isinstance(module, nn.Linear) and module.bias is None)
    assert [unit.name for unit in units_of(chosen)] == ["root", "head"]
    assert [unit.name for unit in units_of(ct.fully_shard(Stack(), units=[]))] == ["root"]
    joined = Stack()
    ct.fully_shard([joined.blocks[0], joined.blocks[1]])
    assert len(units_of(ct.fully_shard(joined))) == 2
    assert {unit.name for unit in units_of(ct.fully_shard(adapted()))} >= {"blocks.0", "blocks.0.adapters"}


def an_optimizer_made_before_is_warned_of_once() -> None:
    for mode in ("fsdp", "fcdp"):
        model = Stack()
        early = optimizer_of(model)
        ct.fully_shard(model, mode)
        late = optimizer_of(model)
        model(batch(0, ct.rank())).square().mean().backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                early.step()
                late.step()
        texts = [str(warning.message) for warning in caught]
        assert len(texts) == 1, texts
        assert "7 of its 7, such as 'blocks.0.weight'" in texts[0]
        assert "make the optimizer after fully_shard" in texts[0]


# --- bad input


def an_unknown_choice_is_refused_with_those_there_are() -> None:
    with raises(ConfigError, "'fsdp', 'hybrid', 'zeropp', 'fcdp'", "'zero'"):
        ct.fully_shard(Stack(), "zero")
    with raises(ConfigError, "hierarchical", "'tree'"):
        ct.fully_shard(Stack(), collective="tree")
    with raises(ConfigError, "tau", "[0, 1]", 1.5):
        ct.AcceleratorCache(tau=1.5)
    with raises(ConfigError, "tau", "[0, 1]"):
        ct.AcceleratorCache(tau=float("nan"))
    with raises(ConfigError, "'fcdp'", "'fsdp'"):
        ct.fully_shard(Stack(), cache=ct.AcceleratorCache(), account=ct.DeviceAccount(10**9))
    with raises(ConfigError, "account"):
        ct.fully_shard(Stack(), "fcdp", cache=ct.AcceleratorCache())
    with raises(ConfigError, "'zeropp'", "'fcdp'"):
        ct.fully_shard(Stack(), "fcdp", quantised=True)
    with raises(ConfigError, "reads", "'parts', 'whole'", "'half'"):
        ct.fully_shard(Stack(), "fcdp", reads="half")
    with raises(ConfigError, "reads", "'fcdp'", "'fsdp'"):
        ct.fully_shard(Stack(), reads="whole")
    with raises(ConfigError, "reads='whole'", "cache"):
        cache = ct.AcceleratorCache()
        ct.fully_shard(Stack(), "fcdp", reads="parts", cache=cache, account=ct.DeviceAccount(10**9))
    with raises(ConfigError, "a list of modules", 3):
        ct.fully_shard(3)
    with raises(ConfigError, "DeviceMesh", "'all'"):
        ct.fully_shard(Stack(), mesh="all")
    with raises(ConfigError, "units", "LSTM"):
        ct.fully_shard(Stack(), units=[nn.LSTM])


def a_module_that_is_sharded_already_is_refused() -> None:
    model = ct.fully_shard(Stack())
    with raises(ConfigError, "sharded already"):
        ct.fully_shard(model)
    with raises(ConfigError, "sharded already"):
        ct.fully_shard(nn.Sequential(model), units=[Stack])


def sharded_tensors_are_refused_with_a_remedy() -> None:
    model = ct.fully_shard(Stack())
    weight = model.head.weight
    calls = (
        lambda: ct.DistributedOptimizer(optimizer_of(model), model.named_parameters()),
        lambda: ct.broadcast_parameters(model.named_parameters()),
        lambda: ct.broadcast_(weight.data, 0, "head.weight"),
        lambda: ct.allgather(weight, "head.weight"),
        lambda: ct.push_pull(weight, "head.weight"),
    )
    for call in calls:
        with raises(TypeError, "weight", "DTensor", ".to_local()", "not wrapped"):
            call()


def a_mesh_that_does_not_fit_is_refused() -> None:
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    with raises(ConfigError, "one dimension", "(2, 2)", "hybrid"):
        ct.fully_shard(Stack(), "fcdp", mesh=square)
    with raises(ConfigError, "replicas times shards", "(4,)"):
        ct.fully_shard(Stack(), "hybrid", mesh=init_device_mesh("cpu", (4,)))
    crossed = torch.distributed.device_mesh.DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("replicate", "shard"))
    with raises(ConfigError, "2 nodes", "whole nodes"):
        ct.fully_shard(Stack(), "hybrid", mesh=crossed)
    with raises(ConfigError, "over 4 workers", "(2, 2)", "leave out the mesh"):
        ct.fully_shard(Stack(), Hybrid(factor=4), mesh=square)
    with raises(ConfigError, "factor of 3", "choose one of 1, 2, 4"):
        ct.fully_shard(Stack(), Hybrid(factor=3))


def a_node_without_room_for_the_cache_says_how_many_bytes_it_wants() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(2**18, 2**18, bias=False), nn.Tanh()) for _ in range(2)))
    with raises(CapacityError, 2 * 4 * 2**36, "memory devices"):
        ct.fully_shard(model, "fcdp")
    a_step_moves_what_the_formulas_say("fcdp", "hierarchical", Stack)  # nothing is left behind


def a_torch_without_a_hook_is_refused_by_its_version() -> None:
    hook = FSDPModule.set_custom_all_gather
    del FSDPModule.set_custom_all_gather
    try:
        with raises(UnsupportedVersionError, torch.__version__, "set_custom_all_gather", "2.9"):
            ct.fully_shard(Stack())
    finally:
        FSDPModule.set_custom_all_gather = hook


def what_differs_between_workers_is_an_error_on_all() -> None:
    with raises(ConfigError, "'zero'"):
        ct.fully_shard(Stack(), "zero" if ct.rank() == 2 else "fsdp")
    with raises(MismatchError, "fcdp", "zeropp", "rank 3"):
        ct.fully_shard(Stack(), "zeropp" if ct.rank() == 3 else "fcdp")


# ---


def of(check: Callable[..., None], *given: object) -> Claim:
    """A check with arguments as a claim with a name."""
    claim = functools.partial(check, *given)
    words = (getattr(word, "__name__", word) for word in given if not isinstance(word, Path))
    claim.__name__ = " ".join(map(str, (check.__name__, *words)))  # type: ignore[attr-defined]
    return claim


def claims(folder: Path) -> Iterator[Claim]:
    """Every claim."""
    for mode in ("fsdp", "zeropp", "fcdp"):
        for collective in ("hierarchical", "ring"):
            yield of(a_step_moves_what_the_formulas_say, mode, collective, Stack)
        yield of(a_step_moves_what_the_formulas_say, mode, "hierarchical", adapted)
        yield of(the_trace_shows_the_next_gather_in_flight_while_a_unit_computes, mode, folder)
    yield of(a_step_moves_what_the_formulas_say, "hybrid", "hierarchical", Stack)
    for mode in ("fsdp", "fcdp"):
        yield of(a_script_that_shards_bottom_up_trains_equally, mode)
        yield of(what_modules_keep_and_what_dataclasses_hold_reaches_their_units, mode)
        for make in (Stack, adapted):
            yield of(a_write_within_a_forward_counts_or_is_refused, mode, make)
    yield of(fcdp_gathers_of_an_adapted_model_only_the_adapters)
    yield of(a_root_without_parameters_or_sharded_by_torch_hides_no_change)
    yield of(fcdp_gathers_once_for_accumulated_microbatches_and_evaluations)
    yield of(caches_that_were_released_are_taken_anew)
    yield of(quantised_gathers_move_a_quarter_of_float32_and_print_their_error)
    for value in (True, False, 2):
        yield of(fsdp2s_options_go_through, "reshard_after_forward", value)
    yield of(fsdp2s_options_go_through, "offload_policy", CPUOffloadPolicy(pin_memory=False))
    yield of(units_are_those_that_are_chosen)
    yield of(an_optimizer_made_before_is_warned_of_once)
    yield of(an_unknown_choice_is_refused_with_those_there_are)
    yield of(a_module_that_is_sharded_already_is_refused)
    yield of(sharded_tensors_are_refused_with_a_remedy)
    yield of(a_mesh_that_does_not_fit_is_refused)
    yield of(a_node_without_room_for_the_cache_says_how_many_bytes_it_wants)
    yield of(a_torch_without_a_hook_is_refused_by_its_version)
    yield of(what_differs_between_workers_is_an_error_on_all)
    yield from order_claims.claims()
