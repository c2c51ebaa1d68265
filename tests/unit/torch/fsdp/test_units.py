"""Which modules are gathered together, and what is told of their shards: without workers."""

import pytest
import torch
from torch import nn

from coarse.errors import ConfigError
from coarse.torch.fsdp.checksum import checksum
from coarse.torch.fsdp.mesh import workers_by_node
from coarse.torch.fsdp.quantised import dequantise, quantise, quantised_nbytes
from coarse.torch.fsdp.units import plan_units
from coarse.torch.wrappers import require_no_ddp


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    def forward(self, inputs):
        return self.inner(inputs)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(4, 5, bias=False)


def names(model: nn.Module, units=None) -> list[str]:
    return [unit.name for unit in plan_units(model, units)]


def test_repeated_blocks_of_the_outermost_list_are_units_from_within_and_the_root_is_last():
    assert names(Model()) == ["layers.2", "layers.1", "layers.0", ""]


def test_the_two_linear_layers_of_one_larger_block_are_no_units():
    assert names(Layer()) == [""]


def test_the_layers_of_a_plain_stack_are_units():
    assert names(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))) == ["2", "0", ""]


def test_classes_and_functions_choose_units_inner_ones_first():
    assert names(Model(), [nn.Linear])[-2:] == ["layers.0.inner.0", ""]
    assert names(Model(), [Layer, nn.Sequential])[:2] == ["layers.2.inner", "layers.2"]
    assert names(Model(), lambda module: isinstance(module, nn.Embedding)) == ["embedding", ""]
    assert names(Model(), []) == [""]


@pytest.mark.parametrize("units", [[nn.LSTM], lambda module: False, 3, ["Linear"]])
def test_units_that_are_none_are_refused(units):
    with pytest.raises(ConfigError, match="units"):
        plan_units(Model(), units)


def test_a_block_tied_to_something_outside_is_left_to_the_root():
    model = Model()
    model.layers[1].inner[0].weight = model.layers[2].inner[0].weight
    assert names(model) == ["layers.0", ""]


def test_a_tie_within_the_root_or_within_a_block_changes_nothing():
    model = Model()
    model.head.weight = model.embedding.weight
    model.layers[1].inner[0].weight = model.layers[1].inner[2].weight
    assert names(model) == names(Model())


def test_trainable_modules_of_a_frozen_block_are_a_unit_beside_it():
    model = Model().requires_grad_(False)
    for layer in model.layers:
        layer.inner.append(nn.Linear(4, 2, bias=False))
        layer.inner.append(nn.Linear(2, 4, bias=False))
    planned = {unit.name: unit for unit in plan_units(model, None)}
    assert list(planned)[:2] == ["layers.2.adapters", "layers.2"]
    assert planned["layers.0.adapters"].modules == (model.layers[0].inner[3], model.layers[0].inner[4])
    assert list(planned)[-1] == ""
    assert "adapters" not in planned


def test_a_block_in_which_all_or_nothing_is_trainable_is_one_unit():
    assert names(Model()) == names(Model().requires_grad_(False))


def test_parts_of_an_attention_layer_are_never_units_since_it_does_not_call_them():
    attention = nn.MultiheadAttention(4, 1)
    attention.in_proj_weight.requires_grad_(False)
    assert names(nn.Sequential(attention)) == [""]


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend="eager")


def test_of_a_compiled_block_the_wrapper_is_the_unit():
    model = Model()
    for place, layer in enumerate(model.layers):
        model.layers[place] = compiled(layer)
    for units in (None, [Layer], lambda module: isinstance(module, Layer)):
        planned = plan_units(model, units)
        assert [unit.name for unit in planned] == ["layers.2", "layers.1", "layers.0", ""]
        assert planned[0].modules == (model.layers[2],)
    assert names(model, [nn.Linear])[-2:] == ["head", ""]  # those within the blocks run in their graphs


def test_blocks_of_a_model_that_is_compiled_as_a_whole_are_units():
    assert names(compiled(Model())) == names(Model())
    assert names(compiled(Model()), [Layer]) == names(Model())


def test_adapters_within_a_compiled_block_are_no_units_and_a_compiled_adapter_is_one_by_its_wrapper():
    model = Model().requires_grad_(False)
    for place, layer in enumerate(model.layers):
        layer.inner.append(compiled(nn.Linear(4, 4)) if place else nn.Linear(4, 4))
    model.layers[0] = compiled(model.layers[0])
    planned = {unit.name: unit.modules for unit in plan_units(model, None)}
    assert list(planned) == ["layers.2.adapters", "layers.2", "layers.1.adapters", "layers.1", "layers.0", ""]
    assert planned["layers.1.adapters"] == (model.layers[1].inner[3],)


def test_a_model_wrapped_for_data_parallel_training_is_refused_by_name():
    wrapped = object.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)
    wrapped.module = Model()
    with pytest.raises(ConfigError, match="this model is wrapped in DistributedDataParallel"):
        require_no_ddp(wrapped)
    with pytest.raises(ConfigError, match=r"'1' of this Sequential is wrapped"):
        require_no_ddp(nn.Sequential(Layer(), wrapped))
    require_no_ddp(Model())


# --- checksums


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("numel", [1, 7, 64, 40_000])
def test_edits_that_keep_sums_change_the_checksum(dtype, numel):
    values = torch.arange(1, numel + 1).to(dtype)
    found = {checksum([values]), checksum([-values]), checksum([values.flip(0)]), checksum([values.roll(1)])}
    last = values.clone()
    last[-1] += 2**6 if dtype == torch.int8 else last[-1]
    found.add(checksum([last]))
    assert len(found) == (5 if numel > 2 else 3)


def test_equal_bytes_have_equal_checksums_wherever_they_lie():
    values = torch.randn(1000, dtype=torch.float64)
    shifted = torch.cat([torch.zeros(3, dtype=torch.uint8), values.view(torch.uint8)])[3:]
    assert checksum([values]) == checksum([values.clone()]) == checksum([shifted])
    assert checksum([values[:500], values[500:]]) != checksum([values[500:], values[:500]])
    assert checksum([torch.empty(0)]) == checksum([torch.empty(0)])


# --- quantised


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("numel", [1, 255, 256, 1000])
def test_quantised_values_come_back_within_half_a_step_of_their_block(dtype, numel):
    torch.manual_seed(numel)
    exact = (torch.randn(numel) * torch.logspace(-3, 3, numel)).to(dtype)
    sent, back = quantise(exact), torch.empty(numel, dtype=dtype)
    assert sent.numel() == quantised_nbytes(numel)
    dequantise(sent, back)
    for begin in range(0, numel, 256):
        block = exact[begin : begin + 256].double()
        rounding = 2**-8 * block.abs().max() if dtype == torch.bfloat16 else 1e-6 * block.abs().max()
        step = block.abs().max() / 127
        assert ((back[begin : begin + 256].double() - block).abs() <= step / 2 + rounding).all()


def test_zeros_stay_zeros():
    back = torch.ones(300)
    dequantise(quantise(torch.zeros(300)), back)
    assert not back.any()


# --- nodes


def test_workers_are_listed_by_node_and_uneven_nodes_are_refused():
    assert workers_by_node([0, 1, 0, 1]) == [[0, 2], [1, 3]]
    with pytest.raises(ConfigError, match="2, 1 workers"):
        workers_by_node([0, 0, 1])
