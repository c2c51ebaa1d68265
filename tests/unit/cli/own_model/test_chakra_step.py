"""Chakra's traces as models: what the graph says of gradients and their times, and graphs that say nothing."""

import pytest

from coarse.cli.own_model.source import own_model
from coarse.errors import ConfigError
from tests.support.chakra_schema import MESSAGES, attribute, collective, compute, written


def model_of(tmp_path, nodes):
    path = tmp_path / "step.0.et"
    path.write_bytes(written(nodes))
    return own_model(str(path), None)


def data_parallel(passes=1):
    """Three layers as ASTRA-sim's converter of text writes them: 10 us forward, 20 us and 5 us backward each."""
    nodes, sums, last = [], {}, None
    for number_of_pass in range(passes):
        for layer in range(3):
            deps = [each for each in (last, sums.get(layer)) if each is not None]
            nodes.append(compute(len(nodes), f"COMP_NODE_conv{layer}_FWD", 10 + number_of_pass, *deps))
            last = nodes[-1].id
        for layer in reversed(range(3)):
            nodes.append(compute(len(nodes), f"COMP_NODE_conv{layer}_BWD_WG", 20, last))
            nodes.append(collective(len(nodes), f"COMM_COLL_NODE_conv{layer}_ALLREDUCE", 400 + 4 * layer, nodes[-1].id))
            sums[layer] = nodes[-1].id
            if layer:
                nodes.append(compute(len(nodes), f"COMP_NODE_conv{layer}_BWD_IG", 5, nodes[-2].id))
                last = nodes[-1].id
        last = sums[0]
    return nodes


def us(values):
    return [pytest.approx(value * 1e-6) for value in values]


def test_layers_have_the_times_of_their_compute_nodes(tmp_path):
    own = model_of(tmp_path, data_parallel())
    assert [shape for _, shape in own.model.shapes] == [(100,), (101,), (102,)]
    assert sum(own.times.forward) == pytest.approx(30e-6)
    assert list(own.times.backward) == us([25, 25, 20])
    assert own.model.shapes[0][0] == "COMM_COLL_NODE_conv0_ALLREDUCE"


def test_the_middle_of_several_passes_is_taken(tmp_path):
    own = model_of(tmp_path, data_parallel(passes=3))
    assert own.model.num_parameters == 303
    assert sum(own.times.forward) == pytest.approx(33e-6)
    assert "the middle one of its 3 steps" in own.times.source
    assert not any("other gradients" in note for note in own.notes)


def test_a_step_of_another_model_is_told_of(tmp_path):
    nodes = data_parallel(passes=2)
    nodes[-1] = collective(nodes[-1].id, "another", 4000, *nodes[-1].data_deps)
    own = model_of(tmp_path, nodes)
    assert any("1 of 2 steps have other gradients" in note for note in own.notes)


def test_nodes_in_any_order_make_the_same_model(tmp_path):
    nodes = data_parallel()
    assert model_of(tmp_path, nodes).times.backward == model_of(tmp_path, nodes[::-1]).times.backward


def test_what_waits_for_sums_is_the_optimizer_and_does_not_count(tmp_path):
    nodes = data_parallel()
    sums = [node.id for node in nodes if node.type == 7]
    own = model_of(tmp_path, [*nodes, compute(99, "optimizer", 1000, *sums)])
    assert own.times.backward == model_of(tmp_path, nodes).times.backward


def test_without_names_of_backward_forward_is_a_third(tmp_path):
    nodes = data_parallel()
    for node in nodes:
        node.name = f"node {node.id}"
    own = model_of(tmp_path, nodes)
    assert sum(own.times.forward) == pytest.approx((3 * 10 + 3 * 20 + 2 * 5) / 3 * 1e-6)
    assert sum(own.times.forward) + sum(own.times.backward) == pytest.approx(100e-6)
    assert any("a third of the compute" in note for note in own.notes)


def test_a_host_runs_beside_its_device(tmp_path):
    """The host asks for all within 4 us; backward begins on the device when forward has ended there."""
    on_host = [attribute("is_cpu_op", bool_val=True)]
    node = MESSAGES["Node"]
    nodes = [
        node(id=1, name="aten::mm", type=4, duration_micros=2, attr=on_host),
        compute(2, "gemm", 100, 1),
        node(id=3, name="autograd::engine::evaluate_function: MmBackward0", type=4, duration_micros=2, data_deps=[1],
             attr=on_host),
        compute(4, "gemm", 150, 3),
        node(id=5, name="c10d::allreduce_", type=7, data_deps=[3], attr=on_host),
        collective(6, "ncclKernel_AllReduce", 40, 5, 4),
    ]  # fmt: skip
    own = model_of(tmp_path, nodes)
    assert own.model.num_parameters == 10
    assert (sum(own.times.forward), sum(own.times.backward)) == (pytest.approx(102e-6), pytest.approx(150e-6))


def test_operations_take_the_place_of_durations_that_are_missing(tmp_path):
    nodes = data_parallel()
    for node in nodes:
        if node.type == 4:
            node.attr.append(attribute("num_ops", int64_val=node.duration_micros * 1000))
            node.duration_micros = 0
    own = model_of(tmp_path, nodes)
    assert own.times.are_operations
    assert (sum(own.times.forward), list(own.times.backward)) == (30_000, [25_000, 25_000, 20_000])


@pytest.mark.parametrize(("kind", "is_gradient"), [(0, True), (1, True), (7, True), (8, True), (2, False), (5, False)])
def test_gradients_are_what_collectives_sum(kind, is_gradient, tmp_path):
    nodes = [*data_parallel(), collective(50, "more", 4000, 5, kind=kind)]
    assert (model_of(tmp_path, nodes).model.num_parameters == 1303) is is_gradient


def test_the_type_of_a_gradient_is_that_of_its_inputs(tmp_path):
    info = MESSAGES["Info"](shapes="[[50], [50]]", types="['Tensor(c10::Half)', 'Tensor(c10::Half)']")
    nodes = [compute(1, "fwd", 5), compute(2, "bwd", 5, 1), collective(3, "sum", 200, 2, inputs=info)]
    own = model_of(tmp_path, nodes)
    assert own.model.num_parameters == 100
    assert not any("taken to be float32" in note for note in own.notes)


def test_control_dependencies_on_nodes_that_were_left_out_are_said(tmp_path):
    nodes = data_parallel()
    nodes[0].ctrl_deps.append(777)
    assert any(note.startswith("1 control dependencies") for note in model_of(tmp_path, nodes).notes)


def tensor_parallel():
    """An all-reduce of what forward computes, and of what backward passes on, between layers."""
    return [
        compute(1, "l0_FWD", 5), collective(2, "activations", 64, 1), compute(3, "l1_FWD", 5, 2),
        compute(4, "l1_BWD", 5, 3), collective(5, "input gradients", 64, 4), compute(6, "l0_BWD", 5, 5),
        collective(7, "weights", 64, 6),
    ]  # fmt: skip


def contradicting(**inputs):
    return [compute(1, "fwd", 5), compute(2, "bwd", 5, 1), collective(3, "w", 64, 2, inputs=MESSAGES["Info"](**inputs))]


BAD = {
    "circle": ([compute(1, "a", 5, 2), compute(2, "b", 5, 1)], "a circle: record 2 ('a') waits for record 3 ('b')"),
    "unknown": ([compute(1, "a", 5, 9)], "record 2 ('a') depends on node 9, and there is none"),
    "twice": ([compute(1, "a", 5), compute(1, "b", 5)], "records 2 and 3 both have id 1"),
    "empty": ([], "none of 0 COMP nodes has duration_micros or num_ops above 0"),
    "no times": ([compute(1, "a", 0)], "none of 1 COMP nodes has duration_micros"),
    "inference": ([compute(1, "a_FWD", 5), compute(2, "b_FWD", 5, 1)], "no gradient: of 2 nodes 0 are collectives"),
    "forward's sums": (
        [compute(1, "a_FWD", 5), collective(2, "sum", 64, 1), compute(3, "a_BWD", 5, 1)],
        "none waits for compute of backward",
    ),
    "tensor-parallel": (tensor_parallel(), "tensor-parallel or sharded"),
    "sizes": (
        contradicting(shapes="[[8]]", types="['Tensor(float)']"),
        "record 4 ('w') contradicts itself: comm_size is 64, and its inputs [[8]] of ['Tensor(float)'] have 32 bytes",
    ),
    "negative": ([compute(1, "bwd", 5), collective(2, "w", -4, 1)], "record 3: comm_size must be at least 0, got -4"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_trace_that_makes_no_model_is_refused_by_record(name, tmp_path):
    nodes, said = BAD[name]
    with pytest.raises(ConfigError) as refused:
        model_of(tmp_path, nodes)
    assert str(refused.value).startswith(f"{tmp_path / 'step.0.et'}: ")
    assert said in str(refused.value)


def test_a_duration_that_contradicts_its_exact_one_is_refused(tmp_path):
    node = compute(1, "a_BWD", 5)
    node.attr.append(attribute("duration_s", double_val=5.4e-6))
    assert sum(model_of(tmp_path, [node, collective(2, "w", 8, 1)]).times.backward) == pytest.approx(5.4e-6)
    node.duration_micros = 500
    with pytest.raises(ConfigError, match=r"record 2 .* duration_micros is 500 and duration_s is 5.4e-06"):
        model_of(tmp_path, [node, collective(2, "w", 8, 1)])
