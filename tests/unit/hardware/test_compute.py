import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.hardware.compute import (
    PEAK_FLOPS_PER_S,
    PEAK_SHARE,
    PUBLISHED,
    PUBLISHED_SHARES,
    THROUGHPUTS,
    Basis,
    compute_profile,
    parse_profile,
    profile_at_peak_share,
    profile_json,
    profile_of_iteration,
)
from coarse.hardware.models import Precision, bert_large, model_named, resnet50, uniform
from coarse.hardware.presets import accelerator_named, load_preset

FP32, FP16 = Precision.FP32, Precision.FP16
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.parametrize("row", THROUGHPUTS, ids=lambda row: f"{row.gpu}-{row.model}-{row.precision}-{row.batch}")
def test_a_profile_reproduces_each_known_throughput(row):
    profile = compute_profile(model_named(row.model), row.gpu, row.batch, row.precision)
    iteration_s = profile.total_forward_s + profile.total_backward_s
    assert row.batch / iteration_s == pytest.approx(row.samples_per_s)
    assert (profile.basis, profile.source) == (row.basis, row.source)


def test_backward_takes_twice_as_long_as_forward_in_every_layer():
    profile = compute_profile(bert_large(), "v100", 2, FP32)
    for forward_s, backward_s in zip(profile.forward_s, profile.backward_s, strict=True):
        assert backward_s == pytest.approx(2 * forward_s)


def test_time_is_split_by_arithmetic():
    model = resnet50()
    profile = compute_profile(model, "p100", 64, FP32)
    rates = {
        layer.flops_per_sample / seconds
        for layer, seconds in zip(model.layers, profile.forward_s, strict=True)
    }
    assert max(rates) == pytest.approx(min(rates))


def test_no_known_throughput_exceeds_the_peak_of_its_gpu():
    for row in PUBLISHED:
        peak = {"v100": 15.7e12, "p100": 10.6e12, "t4": 8.1e12, "a100": 19.5e12}[row.gpu]
        peak = {"v100": 125e12, "t4": 65e12, "a100": 312e12}[row.gpu] if row.precision is FP16 else peak
        assert 3 * model_named(row.model).flops_per_sample * row.samples_per_s < peak


def test_a_batch_between_two_measured_ones_is_derived_from_both():
    profile = compute_profile(bert_large(), "v100", 4, FP32)
    expected_s = 2 / 5.48 + (7 / 7.56 - 2 / 5.48) * 2 / 5
    assert profile.total_forward_s + profile.total_backward_s == pytest.approx(expected_s)
    assert profile.basis is Basis.DERIVED


@pytest.mark.parametrize("batch", [1, 70])
def test_a_batch_beyond_the_measured_ones_is_an_assumption_at_the_nearest_rate(batch):
    profile = compute_profile(bert_large(), "v100", batch, FP32)
    rate = batch / (profile.total_forward_s + profile.total_backward_s)
    assert rate == pytest.approx(5.48 if batch == 1 else 7.56)
    assert profile.basis is Basis.ASSUMPTION


@pytest.mark.parametrize("batch", [2, 4])
def test_what_is_scaled_by_peaks_is_an_assumption_that_says_so(batch):
    profile = compute_profile(bert_large(), "p100", batch, FP32)
    assert profile.basis is Basis.ASSUMPTION
    assert "scaled by p100's peak FLOPS over V100's (0.592)" in profile.source


@pytest.mark.parametrize(("precision", "batch", "ratio"), [(FP16, 2, 0.296), (FP16, 4, 0.267), (FP32, 2, 0.241)])
def test_a_t4_trains_bert_at_the_share_of_a_v100_that_its_inference_has(precision, batch, ratio):
    t4, v100 = (compute_profile(bert_large(), gpu, batch, precision) for gpu in ("t4", "v100"))
    assert v100.total_backward_s / t4.total_backward_s == pytest.approx(ratio, abs=0.001)
    assert t4.basis is Basis.DERIVED


@pytest.mark.parametrize("name", ["v100", "V100", "Tesla V100-SXM2-16GB"])
def test_a_gpu_is_known_by_a_word_of_its_name(name):
    assert compute_profile(bert_large(), name, 2, FP32) == compute_profile(bert_large(), "v100", 2, FP32)


def test_every_known_throughput_names_its_source():
    assert all(row.source and row.samples_per_s > 0 for row in THROUGHPUTS)
    keys = [(row.gpu, row.model, row.precision, row.batch) for row in THROUGHPUTS]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("model", "gpu", "precision"),
    [
        *((bert_large(), "h100", FP32), (resnet50(), "V1000", FP32)),
        *((bert_large(), "p100", FP16), (uniform(2, 2), "v100", FP32)),
    ],
)
def test_an_unknown_throughput_is_refused_with_the_known_ones(model, gpu, precision):
    with pytest.raises(ConfigError, match=r"no throughput is known of .*v100 bert-large fp32.*measure"):
        compute_profile(model, gpu, 2, precision)


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_of_nothing_is_refused(batch):
    with pytest.raises(ConfigError, match="at least 1 sample"):
        compute_profile(resnet50(), "v100", batch, FP32)


def test_a_profile_survives_being_written_and_read():
    profile = compute_profile(resnet50(), "t4", 64, FP16)
    assert parse_profile(profile_json(profile), where="a.json") == profile


@given(key=st.sampled_from(["gpu", "batch", "precision", "layers", "forward_s", "basis", "source"]), value=ANY_JSON)
def test_a_damaged_profile_is_a_config_error_that_names_the_file(key, value):
    profile = compute_profile(resnet50(), "v100", 64, FP32)
    document = {**json.loads(profile_json(profile)), key: value}
    said = refusal(json.dumps(document))
    assert not said or said.startswith("a.json: ")


def refusal(text):
    """What is said of a text that is no profile; nothing of one that is."""
    try:
        parse_profile(text, where="a.json")
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", "{", '{"gpu": "v100", "more": 1}'])
def test_text_that_is_no_profile_is_refused_with_the_file(text):
    with pytest.raises(ConfigError, match=r"a\.json: "):
        parse_profile(text, where="a.json")


V100 = load_preset("aws-p3").accelerator


def test_a_share_of_the_peak_takes_three_times_forwards_flops():
    profile = profile_at_peak_share(uniform(4, 1000), V100, 10, FP16, 0.5)
    assert profile.total_forward_s * 2 == pytest.approx(profile.total_backward_s)
    assert profile.total_forward_s == pytest.approx(10 * 4 * 2000 / (0.5 * V100.fp16_flops_per_s))
    assert profile.basis is Basis.ASSUMPTION


def test_the_default_share_lies_about_the_mean_of_what_published_trainings_attain():
    shares = [
        3 * model_named(row.model).flops_per_sample * row.samples_per_s / PEAK_FLOPS_PER_S[row.gpu, row.precision]
        for row in PUBLISHED
        if (row.gpu, row.precision) in PEAK_FLOPS_PER_S
    ]
    assert (round(min(shares), 2), round(max(shares), 2)) == PUBLISHED_SHARES
    assert sum(shares) / len(shares) == pytest.approx(PEAK_SHARE, abs=0.05)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.01, math.nan])
def test_a_share_outside_of_0_to_1_is_refused(share):
    with pytest.raises(ConfigError, match="--peak-share must lie in"):
        profile_at_peak_share(uniform(1, 1), V100, 1, FP32, share)


def test_an_iteration_that_was_measured_keeps_its_seconds():
    profile = profile_of_iteration(bert_large(), 0.5, gpu="mine", batch=2, precision=FP32)
    assert profile.total_forward_s + profile.total_backward_s == pytest.approx(0.5)
    assert profile.basis is Basis.MEASURED


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_an_iteration_of_no_time_is_refused(seconds):
    with pytest.raises(ConfigError, match="--iteration-s must be"):
        profile_of_iteration(bert_large(), seconds, gpu="mine", batch=2, precision=FP32)


def test_a_gpu_of_a_preset_is_found_by_its_words():
    assert accelerator_named("Tesla V100-SXM2-16GB") == V100
    with pytest.raises(ConfigError, match=r"'h9000' is not known; there are .*V100"):
        accelerator_named("h9000")
