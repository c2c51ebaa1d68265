"""Steps that torch.profiler traced here, as models: the module's parameters, in the order in which hooks saw them."""

import gzip
import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from coarse.cli.own_model.source import is_traced, own_model
from coarse.errors import ConfigError
from coarse.hardware.compute import profile_of_step
from coarse.hardware.models import Precision
from coarse.simulation.job import gradients_of

PROGRAM = Path(__file__).with_name("traced_training.py")
NAMES = ("small", "residual")


def trainings():
    """The module of trainings."""
    spec = spec_from_file_location("traced_training", PROGRAM)
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


TRAININGS = trainings()


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """By a model's name: its module, its trace with shapes, and what hooks saw."""
    folder = tmp_path_factory.mktemp("traces")
    torch.manual_seed(0)
    found = {}
    for name in NAMES:
        module, _ = getattr(TRAININGS, name)()
        path = folder / f"{name}.json"
        order = TRAININGS.trace(module, TRAININGS.batch_of(name), path, record_shapes=True)
        found[name] = module, path, order
    return found


def refusal(path, step=None):
    """What is said of a trace that makes no model."""
    with pytest.raises(ConfigError) as refused:
        own_model(str(path), None, step)
    assert str(refused.value).startswith(f"{path}: ")
    return str(refused.value)


def edited(path, to, change):
    """A copy of a trace after a change of its document."""
    document = json.loads(path.read_text())
    change(document)
    to.write_text(json.dumps(document))
    return to


def without_shapes(document):
    for event in document["traceEvents"]:
        event.get("args", {}).pop("Input Dims", None)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_come_in_the_order_of_hooks_with_the_parameters_shapes(traces, name):
    module, path, order = traces[name]
    model = own_model(str(path), None).model
    assert [list(shape) for _, shape in reversed(model.shapes)] == [shape for _, shape in order]
    assert model.num_parameters == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_has_the_bytes_of_the_module_traced_on_the_meta_device(traces, name):
    _, path, _ = traces[name]
    shapes = [
        sorted(shape for _, shape in own_model(text, None).model.shapes) for text in (str(path), f"{PROGRAM}:{name}")
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_is_there_when_the_trace_says_so(traces, name):
    _, path, _ = traces[name]
    own = own_model(str(path), None, 1)
    profile = profile_of_step(
        own.model, own.times.forward, own.times.backward, gpu="CPU", batch=1, precision=Precision.FP32,
        basis="measured", source="",
    )  # fmt: skip
    found = gradients_of(own.model, profile, bucket_bytes=1)  # a bucket for all, below 4 MiB
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]
    (step,) = [event for event in events if event["name"] == "ProfilerStep#1"]
    backward = [
        event for event in events
        if event["name"].startswith("autograd::engine") and step["ts"] <= event["ts"] <= step["ts"] + step["dur"]
    ]  # fmt: skip
    begin_us = min(event["ts"] for event in backward)
    last_us = max(
        event["ts"] + event["dur"] for event in events
        if event["name"] == "torch::autograd::AccumulateGrad" and begin_us <= event["ts"] <= step["ts"] + step["dur"]
    )  # fmt: skip
    assert found[-1].ready_s == pytest.approx((last_us - begin_us) / 1e6, abs=1e-6)
    assert sum(own.times.backward) * 1e6 == pytest.approx(
        max(event["ts"] + event["dur"] for event in backward) - begin_us, abs=1
    )


def test_layers_are_the_operators_of_forward_with_their_gradients(traces):
    _, path, _ = traces["small"]
    model = own_model(str(path), None).model
    layers = [(layer.name, [len(shape) for _, shape in layer.parameters]) for layer in model.layers]
    attention = [("linear", [2, 1]), ("linear (2)", [2, 1]), ("layer_norm", [1, 1])]
    mlp = [("linear (3)", [2, 1]), ("linear (4)", [2, 1]), ("layer_norm (2)", [1, 1])]
    last = [("batch_norm", [1, 1]), ("linear (5)", [2])]
    found = [each for each in layers if each[0] != "end of backward"]
    assert found[0] == ("embedding", [2])
    assert found[1:4] == attention
    assert found[4:7] == mlp
    assert sorted(found[7][1]) == [1, 3]
    assert found[8:] == last


def test_forward_and_backward_of_layers_make_up_the_passes(traces):
    _, path, _ = traces["small"]
    own = own_model(str(path), None, 1)
    assert min(*own.times.forward, *own.times.backward) >= 0
    assert f"{sum(own.times.forward) * 1e3:.4g} ms of forward" in own.times.source
    assert f"{sum(own.times.backward) * 1e3:.4g} ms of backward" in own.times.source
    by_name = {layer.name: seconds for layer, seconds in zip(own.model.layers, own.times.forward, strict=True)}
    assert sum(seconds > 0 for seconds in by_name.values()) == 10


def test_modules_name_layers_where_the_trace_has_them(tmp_path):
    module, _ = TRAININGS.residual()
    path = tmp_path / "modules.json.gz"
    settings = {"record_shapes": True, "with_stack": True, "with_modules": True}
    TRAININGS.trace(module, TRAININGS.batch_of("residual"), path, **settings)
    names = [layer.name for layer in own_model(str(path), None).model.layers if layer.parameters]
    assert names == ["Conv2d_0.conv2d", "Conv2d_1.conv2d", "Conv2d_2.conv2d", "Linear_0.linear"]


def test_the_median_step_is_taken_unless_another_is_asked_for(traces):
    _, path, _ = traces["small"]
    events = json.loads(path.read_text())["traceEvents"]
    took = {event["name"]: event["dur"] for event in events if event["name"].startswith("ProfilerStep#")}
    assert len(took) == TRAININGS.STEPS
    for number in (1, 2, 3):
        assert f"ProfilerStep#{number} (as asked)" in own_model(str(path), None, number).times.source
    median = sorted(took, key=took.get)[len(took) // 2]
    assert f"{median} (the median of {len(took)} by duration)" in own_model(str(path), None).times.source
    assert "--step 7 is not in the trace, which has 1, 2, 3; choose one" in refusal(path, 7)


def test_steps_that_nobody_marked_end_with_the_optimizer(tmp_path):
    module, _ = TRAININGS.residual()
    path = tmp_path / "unmarked.json"
    order = TRAININGS.trace(module, TRAININGS.batch_of("residual"), path, record_shapes=True, has_marks=False)
    own = own_model(str(path), None)
    assert "up to Optimizer.step (the median of 3 by duration)" in own.times.source
    assert [list(shape) for _, shape in reversed(own.model.shapes)] == [shape for _, shape in order]


def test_gradients_of_several_microbatches_are_those_of_the_last(tmp_path):
    module, _ = TRAININGS.residual()
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    TRAININGS.trace(module, TRAININGS.batch_of("residual"), one, record_shapes=True)
    TRAININGS.trace(module, TRAININGS.batch_of("residual"), two, record_shapes=True, num_passes=2)
    found = [own_model(str(path), None) for path in (one, two)]
    assert found[0].model.shapes == found[1].model.shapes
    assert any("has 2 backward passes" in note for note in found[1].notes)
    assert not any("backward passes" in note for note in found[0].notes)
    events = [event for event in json.loads(two.read_text())["traceEvents"] if event.get("ph") == "X"]
    label = found[1].times.source.partition(", ")[2].partition(" (")[0]
    (step,) = [event for event in events if event["name"] == label]
    within = [event for event in events if step["ts"] <= event["ts"] <= step["ts"] + step["dur"]]
    begin_us = min(event["ts"] for event in within if event["name"].startswith("autograd::engine"))
    accumulated = sorted(event["ts"] for event in within if event["name"] == "torch::autograd::AccumulateGrad")
    half = len(accumulated) // 2
    assert accumulated[half - 1] - begin_us < sum(found[1].times.forward) * 1e6  # the first backward is a part of it
    assert accumulated[-1] - accumulated[half] < sum(found[1].times.backward) * 1e6


def test_frozen_parameters_are_not_sent(tmp_path):
    module, _ = TRAININGS.residual()
    module.stem.weight.requires_grad_(False)
    path = tmp_path / "frozen.json"
    module.first.weight.register_hook(lambda gradient: gradient)
    optimizer = torch.optim.SGD([each for each in module.parameters() if each.requires_grad], 0.1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        module(TRAININGS.batch_of("residual")).square().mean().backward()
        optimizer.step()
    profiler.export_chrome_trace(str(path))
    trained = sum(parameter.numel() for parameter in optimizer.param_groups[0]["params"])
    assert own_model(str(path), None).model.num_parameters == trained


class Checkpointed(torch.nn.Module):
    """Two layers whose activations backward computes again."""

    def __init__(self, is_reentrant):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(12, 12), torch.nn.Linear(12, 12)])
        self.is_reentrant = is_reentrant

    def forward(self, images):
        hidden = images.clone().requires_grad_() if self.is_reentrant else images
        for layer in self.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=self.is_reentrant)
        return hidden


def test_what_backward_computes_again_is_no_pass_of_forward(tmp_path):
    path = tmp_path / "checkpointed.json"
    order = TRAININGS.trace(Checkpointed(False), torch.randn(4, 12), path, record_shapes=True)
    own = own_model(str(path), None)
    assert [list(shape) for _, shape in reversed(own.model.shapes)] == [shape for _, shape in order]
    assert not any("backward passes" in note for note in own.notes)


def test_gradients_of_activations_that_look_like_those_of_parameters_are_refused(tmp_path):
    path = tmp_path / "reentrant.json"
    TRAININGS.trace(Checkpointed(True), torch.randn(4, 12), path, record_shapes=True)
    assert "use_reentrant=False" in refusal(path)


def test_types_other_than_float32_are_said(traces, tmp_path):
    _, path, _ = traces["small"]

    def half(document):
        for event in document["traceEvents"]:
            if event.get("name") == "torch::autograd::AccumulateGrad":
                event["args"]["Input type"] = ["c10::BFloat16"]

    own = own_model(str(edited(path, tmp_path / "half.json", half)), None)
    (note,) = [each for each in own.notes if "BFloat16" in each]
    assert "coarse sends float32" in note


def test_a_list_of_events_and_a_packed_file_are_the_same_trace(traces, tmp_path):
    _, path, _ = traces["small"]
    listed, packed = tmp_path / "small.json", tmp_path / "small.pt.trace.json.gz"
    listed.write_text(json.dumps(json.loads(path.read_text())["traceEvents"]))
    packed.write_bytes(gzip.compress(path.read_bytes()))
    wanted = own_model(str(path), None)
    for other in (listed, packed):
        found = own_model(str(other), None)
        assert (found.model, found.times.backward) == (wanted.model, wanted.times.backward)
        assert is_traced(str(other), None)


@pytest.fixture(scope="module")
def ddp(tmp_path_factory):
    """The folder of two ranks that trained by DDP over Gloo."""
    folder = tmp_path_factory.mktemp("ddp")
    done = subprocess.run([sys.executable, PROGRAM, folder], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.test_all
@pytest.mark.parametrize("rank", [0, 1])
def test_ddp_over_gloo_has_the_order_of_hooks(ddp, rank):
    order = json.loads((ddp / f"hooks.{rank}.json").read_text())
    own = own_model(str(ddp / f"shapes.{rank}.json"), None)
    assert [list(shape) for _, shape in reversed(own.model.shapes)] == [shape for _, shape in order]
    assert own.model.num_parameters == 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10


def test_time_in_collectives_is_not_compute(ddp, tmp_path):
    path = ddp / "shapes.0.json"
    own = own_model(str(path), None, 1)

    def slower(document):
        """Gloo's first call in backward of step 1 takes a second more, and all later begins a second later."""
        events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
        (step,) = [event for event in events if event["name"] == "ProfilerStep#1"]
        call = min(
            (event for event in events if event["name"] == "c10d::allreduce_" and event["ts"] > step["ts"]),
            key=lambda event: event["ts"],
        )
        at = call["ts"] + call["dur"] / 2
        for event in events:
            if event["ts"] > at:
                event["ts"] += 1e6
            elif event["ts"] + event["dur"] > at:
                event["dur"] += 1e6

    late = own_model(str(edited(path, tmp_path / "late.json", slower)), None, 1)
    assert sum(late.times.backward) == pytest.approx(sum(own.times.backward), abs=1e-5)


def test_shapes_that_are_missing_are_asked_for(ddp, traces, tmp_path):
    for path in (ddp / "plain.0.json", edited(traces["small"][1], tmp_path / "plain.json", without_shapes)):
        said = refusal(path)
        assert "torch.profiler.profile(record_shapes=True)" in said
        assert "AccumulateGrad, has no Input Dims" in said


def test_a_trace_of_inference_is_refused_with_what_to_trace(tmp_path):
    module, _ = TRAININGS.residual()
    TRAININGS.trace(module, TRAININGS.batch_of("residual"), tmp_path / "eval.json", trains=False, record_shapes=True)
    said = refusal(tmp_path / "eval.json")
    assert "no backward pass" in said
    assert "record_shapes=True" in said
