"""One memory device sums alone: there is no ring among devices to measure."""

from coarse.hardware.compute import compute_profile
from coarse.hardware.models import Precision, model_named
from coarse.hardware.presets import load_preset
from coarse.simulation.scenario import Scenario


def test_by_the_papers_formula_a_lone_device_takes_all():
    model = model_named("resnet50")
    scenario = Scenario(
        machine=load_preset("aws-p3"),
        model=model,
        profile=compute_profile(model, "v100", 64, Precision.FP32),
        mode="coarse",
        num_workers=2,
        num_devices=1,
        policy="paper",
    )
    assert scenario.job().num_to_devices == len(scenario.gradients)
