"""Traces of steps that train two models, such as a GAN's, made by torch.profiler: no model's gradients are lost."""

import json

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from coarse.cli.own_model.source import own_model

STEPS = 3


def traced_gan(path, *, freezes, steps_between=True, has_marks=True, num_real=1):
    """Trace a critic of 2 parameters and a generator of 4; the shapes that hooks saw in a step, in order."""
    generator = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6))
    critic = nn.Linear(6, 1)
    seen = []
    for parameter in (*generator.parameters(), *critic.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.shape)))
    optimizers = [torch.optim.Adam(model.parameters()) for model in (critic, generator)]
    marks = {"schedule": schedule(wait=0, warmup=1, active=STEPS, repeat=1)} if has_marks else {}
    if has_marks:
        marks["on_trace_ready"] = lambda profiler: profiler.export_chrome_trace(str(path))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, **marks) as profiler:
        for _ in range(STEPS + has_marks):
            seen.clear()
            for _ in range(num_real):
                critic(torch.randn(3, 6)).mean().backward()
            if steps_between:
                optimizers[0].step()
            critic.requires_grad_(not freezes)
            critic(generator(torch.randn(3, 5))).mean().backward()
            critic.requires_grad_(True)
            for optimizer in optimizers[steps_between:]:
                optimizer.step()
            if has_marks:
                profiler.step()
    if not has_marks:
        profiler.export_chrome_trace(str(path))
    return seen[2 * (num_real - 1) :]  # of several microbatches of the critic's the last


def shapes_of(own):
    """A model's, in the order of backward."""
    return [tuple(shape) for _, shape in reversed(own.model.shapes)]


@pytest.mark.parametrize(
    ("freezes", "steps_between", "num_real"), [(True, True, 1), (False, True, 1), (True, True, 2), (True, False, 1)]
)
def test_the_gradients_of_all_models_of_a_step_are_sent(freezes, steps_between, num_real, tmp_path):
    path = tmp_path / "gan.json"
    seen = traced_gan(path, freezes=freezes, steps_between=steps_between, num_real=num_real)
    own = own_model(str(path), None)
    assert shapes_of(own) == seen
    (note,) = [each for each in own.notes if "backward passes" in each]
    assert f"has {1 + num_real} backward passes, of which 2 send gradients" in note


def test_both_models_forwards_and_backwards_are_in_the_steps_time(tmp_path):
    path = tmp_path / "gan.json"
    traced_gan(path, freezes=True)
    own = own_model(str(path), None, 2)
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]
    (step,) = [event for event in events if event["name"] == "ProfilerStep#2"]
    engine = [
        event for event in events
        if event["name"].startswith("autograd::engine") and step["ts"] <= event["ts"] <= step["ts"] + step["dur"]
    ]  # fmt: skip
    begin, end = min(event["ts"] for event in engine), max(event["ts"] + event["dur"] for event in engine)
    assert sum(own.times.backward) == pytest.approx((end - begin) / 1e6, abs=1e-5)
    assert 0 < sum(own.times.forward) < (begin - step["ts"]) / 1e6


def test_parameters_that_both_passes_accumulate_are_sent_once_where_no_optimizer_steps_between(tmp_path):
    path = tmp_path / "accumulated.json"
    seen = traced_gan(path, freezes=False, steps_between=False)
    own = own_model(str(path), None)
    assert shapes_of(own) == seen[2:]
    assert any("gradients are those of the last" in note for note in own.notes)


def test_steps_of_another_model_that_nobody_marked_are_told_of(tmp_path):
    path = tmp_path / "unmarked.json"
    traced_gan(path, freezes=True, has_marks=False)
    own = own_model(str(path), None)
    assert own.model.num_parameters == 5 * 7 + 7 + 7 * 6 + 6
    (note,) = [each for each in own.notes if "other gradients" in each]
    assert f"{STEPS} of {2 * STEPS} steps" in note
    assert "profiler.step()" in note
