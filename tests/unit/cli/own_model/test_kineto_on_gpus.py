"""Kineto's traces of a GPU, made by hand: kernels say when gradients were there, collectives how large they are."""

import json

import pytest

from coarse.cli.own_model.source import own_model
from coarse.errors import ConfigError

HOST, ENGINE, DEVICE = (1, 10), (1, 11), (0, 7)


class Written:
    """Events of a step that a host launches and a GPU runs later."""

    def __init__(self):
        self.events = []
        self.number = 0

    def event(self, category, name, thread, begin, end, **args):
        process, number = thread
        where = {"pid": process, "tid": number, "ts": begin, "dur": end - begin}
        self.events.append({"ph": "X", "cat": category, "name": name, **where, "args": args})
        return self.events[-1]

    def operator(self, name, begin, end, thread=HOST, **args):
        return self.event("cpu_op", name, thread, begin, end, **args)

    def kernel(self, launched, thread, begin, end, name="gemm", category="kernel"):
        self.number += 1
        self.event("cuda_runtime", "cudaLaunchKernel", thread, launched, launched + 0.5, correlation=self.number)
        self.event(category, name, DEVICE, begin, end, correlation=self.number, device=0)

    def gradient(self, begin, shape=None, dtype="float"):
        args = {} if shape is None else {"Input Dims": [shape], "Input type": [dtype]}
        self.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", begin, begin + 2, ENGINE)
        self.operator("torch::autograd::AccumulateGrad", begin, begin + 1, ENGINE, **args)

    def write(self, path):
        devices = [{"id": 0, "name": "NVIDIA A100"}]
        path.write_text(json.dumps({"traceEvents": self.events, "deviceProperties": devices}))
        return str(path)


def step(shapes=True):
    """A step of two layers: the host has asked for all by 60 us, and the GPU is done at 400 us."""
    made = Written()
    made.event("user_annotation", "ProfilerStep#4", HOST, 0, 500)
    made.operator("aten::linear", 10, 14, **{"Sequence number": 1})
    made.operator("aten::addmm", 11, 13, **{"Sequence number": 1})
    made.kernel(12, HOST, 20, 120)
    made.operator("aten::linear", 15, 19, **{"Sequence number": 2})
    made.operator("aten::addmm", 16, 18, **{"Sequence number": 2})
    made.kernel(17, HOST, 120, 150)
    for number, begin, kernel in ((2, 30, (150, 250)), (1, 40, (250, 400))):
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        made.operator(name, begin, begin + 3, ENGINE, **{"Sequence number": number})
        made.kernel(begin + 1, ENGINE, *kernel)
        made.gradient(begin + 4, [8, number] if shapes else None)
    return made


def seconds(values):
    return [pytest.approx(value * 1e-6, abs=1e-12) for value in values]


def test_a_gradient_is_there_when_the_kernels_before_it_have_ended(tmp_path):
    own = own_model(step().write(tmp_path / "gpu.json"), None)
    assert own.times.gpu == "NVIDIA A100"
    assert [layer.name for layer in own.model.layers] == ["linear", "linear (2)"]
    assert own.model.shapes == (("linear.0", (8, 1)), ("linear (2).0", (8, 2)))
    assert list(own.times.forward) == seconds([100, 30])
    assert list(own.times.backward) == seconds([150, 100])


def test_kernels_of_nccl_do_not_count(tmp_path):
    made = step()
    made.kernel(36, ENGINE, 260, 900, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)")
    own = own_model(made.write(tmp_path / "gpu.json"), None)
    assert list(own.times.backward) == seconds([150, 100])


def test_names_of_kinetos_categories_of_2021_are_known(tmp_path):
    made = step()
    for event in made.events:
        names = {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel", "user_annotation": "Operator"}
        event["cat"] = names[event["cat"]]
    assert list(own_model(made.write(tmp_path / "gpu.json"), None).times.backward) == seconds([150, 100])


def with_collectives(made, **others):
    """What DDP over NCCL records of two buckets, and of one of integers."""
    for begin, nelems in ((35.5, 16), (45.5, 8)):
        details = {"Collective name": "allreduce", "In msg nelems": nelems, "Out msg nelems": nelems, "dtype": "Float"}
        made.operator("record_param_comms", begin, begin + 0.2, ENGINE, **details | others)
    integers = {"Collective name": "allreduce", "In msg nelems": 3, "dtype": "Int"}
    made.operator("record_param_comms", 45.8, 45.9, ENGINE, **integers)
    made.operator("record_param_comms", 1, 2, HOST, **{"Collective name": "broadcast", "In msg nelems": 99})
    return made


def test_without_shapes_gradients_are_the_buckets_that_nccl_sums(tmp_path):
    own = own_model(with_collectives(step(shapes=False)).write(tmp_path / "gpu.json"), None)
    assert [shape for _, shape in own.model.shapes] == [(8,), (16,)]
    assert list(own.times.backward) == seconds([150, 100])
    assert sum(own.times.forward) == pytest.approx(130e-6)
    assert any("each gradient is a bucket" in note for note in own.notes)


def test_buckets_stand_for_gradients_where_checkpoints_are_reentrant(tmp_path):
    made = with_collectives(step())
    made.operator("CheckpointFunctionBackward", 39, 50, ENGINE)
    own = own_model(made.write(tmp_path / "gpu.json"), None)
    assert [shape for _, shape in own.model.shapes] == [(8,), (16,)]
    assert any("Checkpoints of activations are reentrant" in note for note in own.notes)


def test_collectives_that_sum_something_else_than_the_gradients_are_said(tmp_path):
    equal = own_model(with_collectives(step()).write(tmp_path / "equal.json"), None)
    assert not any("Collectives" in note for note in equal.notes)
    other = own_model(with_collectives(step(), **{"In msg nelems": 5}).write(tmp_path / "other.json"), None)
    assert any("sum 10 elements, and its gradients have 24" in note for note in other.notes)


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ({"In msg size": 12}, "contradicts itself: In msg nelems is 16 of float, 64 bytes, and In msg size is 12"),
        ({"In msg nelems": "many"}, "In msg nelems must be a number of elements, got 'many'"),
        ({"In msg nelems": -1}, "In msg nelems must be a number of elements, got -1"),
    ],
)
def test_sizes_that_contradict_are_refused_by_event(details, said, tmp_path):
    made = with_collectives(step(shapes=False), **details)
    number = next(index for index, event in enumerate(made.events) if event["name"] == "record_param_comms")
    path = made.write(tmp_path / "gpu.json")
    with pytest.raises(ConfigError) as refused:
        own_model(path, None)
    assert f"{path}: event {number} (allreduce)" in str(refused.value)
    assert said in str(refused.value)


def test_a_size_that_agrees_is_taken(tmp_path):
    made = with_collectives(step(shapes=False), **{"In msg size": 64, "In msg nelems": 16})
    assert own_model(made.write(tmp_path / "gpu.json"), None).model.num_parameters == 32


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda events: events[3].update(dur=-4), "event 3 ('cudaLaunchKernel') ends 4 us before it begins"),
        (lambda events: events[3].update(ts="soon"), "('cudaLaunchKernel'): ts must be microseconds, got 'soon'"),
        (lambda events: events[3].pop("dur"), "event 3 ('cudaLaunchKernel'): dur must be microseconds, got None"),
        (lambda events: events.insert(3, 7), "event 3 must be an object, got int"),
        (
            lambda events: [event["args"].update({"Input Dims": [["x"]]}) for event in events],
            "Input Dims must be shapes, got [['x']]",
        ),
        (
            lambda events: [event["args"].update({"Input type": [""], "Input Dims": [[]]}) for event in events],
            "had a tensor as its input",
        ),
        (
            lambda events: events.__setitem__(slice(None), [event for event in events if event["cat"] == "kernel"]),
            "no operators of the host",
        ),
    ],
)
def test_events_that_are_none_are_refused_by_number(change, said, tmp_path):
    made = step()
    change(made.events)
    path = made.write(tmp_path / "gpu.json")
    with pytest.raises(ConfigError) as refused:
        own_model(path, None)
    assert str(refused.value).startswith(f"{path}: ")
    assert said in str(refused.value)
