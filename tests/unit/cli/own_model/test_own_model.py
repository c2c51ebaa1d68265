"""--model of one's own: a config.json or a function, counted, predicted, or refused with the remedy."""

import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from typer.testing import CliRunner

from coarse.cli import predict, shard
from coarse.cli.own_model.source import own_model
from coarse.errors import ConfigError
from coarse.hardware.models import Precision

MODULES = Path(__file__).with_name("modules_for_traces.py")
COMMON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
COMMON |= {"intermediate_size": 96, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 100, "n_inner": 96},
    "opt": {**COMMON, "ffn_dim": 96, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    "bert": {**COMMON, "type_vocab_size": 2, "architectures": ["BertModel"]},
    "llama": {**COMMON, "num_key_value_heads": 2, "head_dim": 8, "attention_bias": True, "mlp_bias": True},
    "mistral": {**COMMON, "num_key_value_heads": 2},
    "qwen2": {**COMMON, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "gpt_neox": COMMON,
    "qwen3": {**COMMON, "num_key_value_heads": 2, "head_dim": 16},
}
OF_EXPERTS = {**COMMON, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
MIXTURES = {
    "mixtral": {**OF_EXPERTS, "num_local_experts": 4},
    "olmoe": OF_EXPERTS,
    "qwen2_moe": {**OF_EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
    "qwen3_moe": {**OF_EXPERTS, "moe_intermediate_size": 32},
}
BERT_LARGE = {
    **{"model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
    **{"intermediate_size": 4096, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2},
}


def written(folder, entries, name="config.json"):
    path = folder / name
    path.write_text(json.dumps(entries))
    return path


def function(name):
    return f"{MODULES}:{name}"


def called(app, *arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def predicted(out, *arguments):
    """A quick prediction: what was printed, and its only row."""
    done = called(predict.app, "--modes", "allreduce", "--workers", 2, "--out", out, *arguments)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split()), json.loads((out / "run.json").read_text())


@pytest.mark.parametrize("model_type", SMALL)
def test_what_is_counted_from_a_configuration_is_what_transformers_build(model_type, tmp_path):
    from coarse.cli.own_model.built import inputs_of, module_of
    from coarse.cli.own_model.traced import traced

    entries = {"model_type": model_type, **SMALL[model_type]}
    counted = own_model(str(written(tmp_path, entries)), 16).model
    module = module_of(entries, model_type)
    built = traced(module, inputs_of(module, model_type, 16), name="built", where=model_type).model
    shapes = [sorted(sorted(shape) for _, shape in model.shapes) for model in (counted, built)]
    assert shapes[0] == shapes[1]  # GPT-2 stores its matrices transposed
    assert counted.flops_per_sample == built.flops_per_sample


@pytest.mark.parametrize("model_type", MIXTURES)
def test_the_parameters_of_a_mixture_are_those_that_transformers_build(model_type, tmp_path):
    from coarse.cli.own_model.built import module_of

    entries = {"model_type": model_type, **MIXTURES[model_type]}
    counted = own_model(str(written(tmp_path, entries)), 16).model
    module = module_of(entries, model_type)
    assert sorted(shape for _, shape in counted.shapes) == sorted(tuple(p.shape) for p in module.parameters())


def test_another_type_is_built_by_transformers(tmp_path):
    entries = {**COMMON, "model_type": "gemma", "num_key_value_heads": 2, "head_dim": 16}
    found = own_model(str(written(tmp_path, entries)), 16)
    block = 2 * 64 + 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96
    assert found.model.num_parameters == 100 * 64 + 64 + 2 * block
    assert "built by transformers as GemmaForCausalLM" in found.notes[0]


def test_an_image_model_reads_one_image_without_a_sequence(tmp_path):
    entries = {"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    path = written(tmp_path, {**entries, "intermediate_size": 64, "image_size": 32, "patch_size": 8})
    assert own_model(str(path), None).model.sample == "32 x 32 image"


def test_bert_large_by_its_configuration_is_predicted_as_the_built_in_one(tmp_path):
    path = written(tmp_path, BERT_LARGE, "mine.json")
    _, own = predicted(tmp_path / "own", "--model", path, "--sequence", 384, "--iteration-s", 0.365)
    _, known = predicted(tmp_path / "known", "--model", "bert-large", "--iteration-s", 0.365)
    assert own["rows"][0]["iteration_s"] == pytest.approx(known["rows"][0]["iteration_s"], rel=1e-9)
    assert own["rows"][0]["compute_s"] == pytest.approx(0.365)


def test_the_output_says_what_each_number_rests_on(tmp_path):
    path = written(tmp_path, {"model_type": "gpt2", **SMALL["gpt2"]})
    output, run = predicted(tmp_path / "out", "--model", path.parent, "--sequence", 32, "--peak-share", 0.5)
    assert "67,264 parameters" in output
    assert "(derived)" in output
    assert "(V100, fp32): assumption; three times forward's FLOPs at 0.5 of V100's 15.7 TFLOP/s" in output
    assert "67,264 parameters" in run["inputs"]["model's numbers"]


@pytest.mark.parametrize(
    ("more", "interval"),
    [
        ((), "compute 0.517241 to 2.72727"),
        (("--peak-share", 0.3), "compute 0.9 to 1.1"),
        (("--iteration-s", 0.1), "compute 0.9 to 1.1"),
        (("--interval", "compute=0.8:1.2"), "compute 0.8 to 1.2"),
    ],
)
def test_the_share_of_the_peak_that_nobody_stated_may_be_any_that_was_published(more, interval, tmp_path):
    config = written(tmp_path, {"model_type": "gpt2", **SMALL["gpt2"]})
    _, run = predicted(tmp_path, "--model", config, "--sequence", 32, "--samples", 1, *more)
    (note,) = [note for note in run["notes"] if note.startswith("Ranges: ")]
    assert interval in note
    assert note.count("compute ") == 1


def test_layers_come_in_order_of_forward_with_their_products():
    model = own_model(function("resnet_like"), None).model
    names = ["0.conv1", "0.bn1", "0.conv2", "0.bn2", "0.projection"]
    assert [layer.name for layer in model.layers] == [*names, *(name.replace("0.", "1.") for name in names), "4"]
    products = {layer.name: layer.flops_per_sample for layer in model.layers}
    assert products["0.conv1"] == 2 * 16 * 3 * 9 * 16**2
    assert products["1.projection"] == 2 * 32 * 16 * 8**2
    assert products["4"] == 2 * 32 * 10
    assert sum(products.values()) == sum(products[name] for name in products if "bn" not in name)


def test_a_convolution_keeps_its_input_and_a_normalisation_its_own():
    model = own_model(function("resnet_like"), None).model
    kept = {layer.name: layer.saved_numel for layer in model.layers}
    assert kept["0.conv1"] == 3 * 32**2
    assert kept["1.projection"] == 32 * 8**2  # ReLU's outcome behind it; the first convolution keeps its input
    assert 16 * 16**2 <= kept["0.bn1"] <= 2 * 16 * 16**2 + 2 * 16  # and ReLU's outcome, mean and deviation


@pytest.mark.parametrize("name", ["resnet_like", "attention"])
def test_activations_are_the_bytes_that_autograd_saves_where_tensors_have_memory(name):
    spec = spec_from_file_location("modules_for_traces", MODULES)
    modules = module_from_spec(spec)
    spec.loader.exec_module(modules)
    module, given = getattr(modules, name)()
    inputs = given if isinstance(given, dict) else {"input": torch.zeros(given)}
    kept, own = {}, {tensor.data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    with saved_tensors_hooks(lambda tensor: kept.setdefault(tensor.data_ptr(), tensor), lambda tensor: tensor):
        module(**inputs)
    found = own_model(function(name), None).model.activation_bytes_per_sample(Precision.FP32)
    num_samples = len(next(iter(inputs.values())))
    nbytes = sum(tensor.untyped_storage().nbytes() for start, tensor in kept.items() if start not in own)
    assert num_samples * found == pytest.approx(nbytes, rel=0.01)  # a layer's share is rounded up


def test_a_shared_table_counts_once_and_its_head_computes():
    model = own_model(function("tied"), 10).model
    assert model.num_parameters == 100 * 16 + 16 * 16 + 16
    assert [layer.flops_per_sample for layer in model.layers] == [0, 2 * 10 * 16**2, 2 * 10 * 16 * 100]


def test_parameters_that_another_submodule_reads_count_there():
    model = own_model(function("attention"), None).model
    assert model.num_parameters == 4 * 64 * 64 + 4 * 64
    assert len(model.layers) == 1


def test_a_mixture_that_coarse_does_not_count_is_refused_with_what_to_do_about_a_file(tmp_path):
    pytest.importorskip("transformers")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    experts = {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 50}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "minimax", **shape, **experts}))
    with pytest.raises(ConfigError, match="routes of a mixture of experts do, cannot run there: name a function"):
        own_model(str(file), 8)


def test_what_dropout_keeps_is_counted():
    model = own_model(function("dropped"), None).model
    assert model.activation_bytes_per_sample(Precision.FP32) == 4 * (4 + 8 + 8)  # two inputs, and the mask


def test_frozen_parameters_are_left_out_and_said_to_be():
    found = own_model(function("frozen"), None)
    assert found.model.num_parameters == 20
    assert "20 parameters have no gradient" in found.notes[-1]


def test_a_function_that_needs_values_is_called_where_there_are_some():
    assert own_model(function("from_values"), None).model.num_parameters == 72


BAD_FUNCTIONS = {
    "without_parameters": "has no parameters",
    "a_number": "wanted a torch.nn.Module, or (module, inputs), got int",
    "failing": "the function failed: KeyError",
    "of_other_inputs": "forward failed on torch's meta device",
    "of_wrong_inputs": "got str",
    "of_no_sample": "the number of samples",
    "without_products": "no matrix product",
    "by_value": "not depend on values",
    "detached": "return a tensor with a gradient",
    "tied": "add --sequence",
    "absent": "has no attribute 'absent'",
    "IMAGES": "is tuple; name a function",
}


@pytest.mark.parametrize("name", BAD_FUNCTIONS)
def test_a_function_that_gives_no_model_ends_with_2_and_the_remedy(name, tmp_path):
    done = called(predict.app, "--model", function(name), "--out", tmp_path / "out")
    assert done.exit_code == 2
    (message,) = done.stderr.splitlines()
    assert BAD_FUNCTIONS[name] in message
    assert function(name) in message
    assert not (tmp_path / "out").exists()


BAD_FILES = {
    '{"model_type"': "this is not JSON",
    "\x00": "this is not JSON",
    "[1]": "got list",
    '{"traceEvents": []}': "which says its 'model_type', got None",
    '{"model_type": "nonsense"}': "cannot build model_type 'nonsense'",
    '{"model_type": "gpt2", "n_embd": 4}': "'n_head' is missing",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_a_file_that_is_no_configuration_ends_with_2_and_its_path(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    done = called(predict.app, "--model", tmp_path, "--sequence", 4, "--out", tmp_path / "out")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert BAD_FILES[text] in done.stderr
    assert f"{tmp_path}/config.json" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "GPT2"), "add --sequence, such as 512"),
        (("--model", "GPT2", "--sequence", "0"), "--sequence must lie in"),
        (("--model", "GPT2", "--sequence", "33"), "1 to 32 tokens, got 33"),
        (("--model", "GPT2", "--sequence", "8", "--peak-share", "1.5"), "--peak-share must lie in"),
        (("--model", "GPT2", "--sequence", "8", "--iteration-s", "0"), "--iteration-s must lie in"),
        (("--model", "GPT2", "--sequence", "8", "--iteration-s", "1", "--peak-share", "0.5"), "leave one out"),
        (("--model", "GPT2", "--sequence", "8", "--gpu", "h9000"), "the peak of 'h9000' is not known"),
        (("--model", "GPT2", "--sequence", "8", "--modes", "luwu"), "--sequence means nothing for LuWu's modes"),
        (("--model", "resnet50", "--sequence", "8"), "--sequence means nothing for resnet50"),
        (("--model", "resnet50", "--peak-share", "0.5"), "--peak-share means nothing for resnet50"),
        (("--model", "nowhere"), "MODULE:FUNCTION"),
        (("--model", "nowhere.json"), "nowhere.json"),
        (("--model", "nowhere.py:f", "--sequence", "8"), "nowhere.py"),
    ],
)
def test_options_that_make_no_sense_end_with_2(arguments, words, tmp_path):
    path = written(tmp_path, {"model_type": "gpt2", **SMALL["gpt2"]})
    asked = [str(path) if argument == "GPT2" else argument for argument in arguments]
    done = called(predict.app, *asked, "--out", tmp_path / "out")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert words in done.stderr


def test_shard_gathers_a_model_of_ones_own_block_by_block(tmp_path):
    path = written(tmp_path, {"model_type": "gpt2", **SMALL["gpt2"]})
    asked = ("--modes", "fsdp,fcdp", "--nodes", 2, "--batch", 2, "--out", tmp_path / "out.json")
    done = called(shard.app, "--model", path, "--sequence", 32, *asked)
    assert done.exit_code == 0, done.output
    known = called(shard.app, "--model", "2x64x4", "--sequence", 32, *asked)
    assert known.exit_code == 0
    assert "of 4 units gathered" in done.output  # the embeddings, two blocks, the head
    assert "of 4 units gathered" in known.output
    assert "67,264 parameters" in " ".join(done.output.split())


def test_shard_refuses_adapters_beside_a_model_of_ones_own(tmp_path):
    path = written(tmp_path, {"model_type": "gpt2", **SMALL["gpt2"]})
    done = called(shard.app, "--model", path, "--sequence", 32, "--lora-rank", 4, "--out", tmp_path / "out.json")
    assert done.exit_code == 2
    assert "leave --lora-rank out" in done.stderr


def test_a_type_that_is_counted_needs_no_torch(tmp_path):
    path = written(tmp_path, {"model_type": "gpt2", **SMALL["gpt2"]})
    program = (
        "import sys; from coarse.cli.own_model.source import own_model; "
        "print(own_model(sys.argv[1], 32).model.num_parameters, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["67264", "False"]


@pytest.mark.parametrize(
    ("package", "importing", "asked"), [("transformers", "built", "FILE"), ("torch", "traced", function("tied"))]
)
def test_a_package_that_is_missing_ends_with_2_and_how_to_install_it(package, importing, asked, tmp_path, monkeypatch):
    path = written(tmp_path, {**COMMON, "model_type": "gemma"})
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"coarse.cli.own_model.{importing}", raising=False)
    model = path if asked == "FILE" else asked
    done = called(predict.app, "--model", model, "--sequence", 8, "--out", tmp_path / "out")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert f"this needs {package}: pip install" in done.stderr
