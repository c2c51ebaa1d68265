"""`coarse shard` answers with a row per mode, and refuses what makes no sense."""

import json

import pytest
from typer.testing import CliRunner

from coarse.cli import shard
from coarse.cli.report.sharded import HEAD
from coarse.hardware.gpt import gpt


def asked(tmp_path, *arguments):
    out = tmp_path / "shard.json"
    done = CliRunner().invoke(shard.app, [*arguments, "--out", str(out)])
    return done, json.loads(out.read_text()) if out.exists() else None


def test_every_mode_has_a_row_that_says_it_is_simulated(tmp_path):
    done, found = asked(tmp_path, "--model", "4x256x4", "--batch", "2")
    assert done.exit_code == 0
    assert [row["mode"] for row in found["rows"]] == ["zero2", "fsdp", "hybrid", "zeropp", "fcdp"]
    assert {row["kind"] for row in found["rows"]} == {"simulated"}
    assert all(word in done.output for name in HEAD for word in name.split())  # none cut, at 80 columns
    for row in found["rows"]:
        assert row["samples_per_s"] * row["iteration_s"] == pytest.approx(2 * 16)


def test_fcdp_sends_what_zero3_sends_but_for_backwards_gathers(tmp_path):
    of = ("--model", "4x256x4", "--modes", "fsdp,fcdp")
    layers = {layer.name: layer.num_parameters for layer in gpt("4x256x4", 256).layers}
    blocks = sum(count for name, count in layers.items() if name.startswith("h.")) / sum(layers.values())
    for schedule, part in (("overlapped", 1 / 2), ("fsdp2", 1 / (1 + blocks))):  # the root's own stay gathered
        _, found = asked(tmp_path, *of, "--schedule", schedule)
        full, cached = found["rows"]
        assert cached["forward_gb"] == full["forward_gb"]
        assert cached["backward_gb"] == pytest.approx(full["backward_gb"] * part, rel=0.01)


def test_adapters_alone_cross_for_fcdp(tmp_path):
    _, found = asked(tmp_path, "--model", "4x256x4", "--modes", "fsdp,fcdp", "--lora-rank", "8")
    full, cached = found["rows"]
    assert cached["forward_gb"] < 0.01 * full["forward_gb"]


def test_a_batch_that_does_not_fit_is_a_row_with_the_reason(tmp_path):
    done, found = asked(tmp_path, "--model", "gpt-30b", "--modes", "zeropp", "--batch", "64")
    assert found["rows"][0]["batch"] == 0
    assert "lower the batch to" in found["rows"][0]["note"]
    assert done.exit_code == 0


def test_batch_0_takes_the_largest_that_fits(tmp_path):
    _, found = asked(tmp_path, "--model", "gpt-30b", "--modes", "zeropp,fcdp", "--batch", "0", "--nodes", "2")
    assert 0 < found["rows"][0]["batch"] < found["rows"][1]["batch"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--modes", "zero9"), "--modes must be one of"),
        (("--machine", "nowhere"), "nowhere"),
        (("--gpus", "9"), "which has 4 nodes of 8"),
        (("--peak-share", "0"), "peak_share must lie in"),
        (("--tau", "1.5", "--modes", "fcdp"), "tau must lie in"),
        (("--in-flight", "0"), "--in-flight must lie in"),
        (("--model", "gpt-1t"), "LAYERSxHIDDENxHEADS"),
        (("--factor", "3", "--modes", "hybrid"), "choose one of 1, 2, 4, 8, 16"),
        (("--straggler", "16=2"), "wanted a worker in 0..15"),
        (("--degrade", "nothing=0.5@0", "--modes", "fsdp"), "no link is called"),
        (("--seed", "3"), "--seed means nothing without --jitter"),
        (("--search", "--factor", "4"), "--factor means nothing with --search"),
        (("--microbatches", "0"), "--microbatches must lie in"),
    ],
)
def test_wrong_input_ends_with_2_and_says_what_was_wanted(tmp_path, arguments, words):
    done, found = asked(tmp_path, "--model", "4x256x4", *arguments)
    assert done.exit_code == 2
    assert words in done.output
    assert found is None


def test_a_search_names_the_fastest_plan_that_fits_and_how_far_it_is_ahead(tmp_path):
    done, found = asked(tmp_path, "--model", "8x1024x8", "--batch", "0", "--search", "--machine", "fcdp-a40-1gbe")
    assert done.exit_code == 0, done.output
    rates = [row["samples_per_s"] for row in found["rows"]]
    assert rates == sorted(rates, reverse=True)
    assert found["ahead"] == pytest.approx(rates[0] / rates[1])
    assert f"It has {found['ahead']:.3f} times the samples/s of the second" in " ".join(done.output.split())
    assert {row["kind"] for row in found["rows"]} == {"simulated"}
    assert {row["factor"] for row in found["rows"]} >= {1, 2, 4, 8, 16}


def test_stragglers_and_jitter_make_the_others_wait(tmp_path):
    of = ("--model", "4x256x4", "--modes", "fsdp,zeropp", "--batch", "64")
    _, quiet = asked(tmp_path, *of)
    done, found = asked(tmp_path, *of, "--straggler", "3=2", "--jitter", "0.1", "--iterations", "4")
    for before, row in zip(quiet["rows"], found["rows"], strict=True):
        assert row["idle_s"] > 0.5 * before["compute_s"]
        assert row["iteration_s"] > before["iteration_s"]
        assert "Milliseconds of 4 iterations of" in row["note"]
        total = row["compute_s"] + row["exposed_s"] + row["idle_s"]
        assert total == pytest.approx(row["iteration_s"])
    assert "idle s" in done.output
