"""Hugging Face checkpoints through megatron-core: names, refusals, and real transfers on two processes."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from recipes.pretrain import config as core_configs
from recipes.pretrain import convert
from recipes.pretrain.hugging_face import architecture
from recipes.pretrain.hugging_face.described import described
from recipes.pretrain.hugging_face.names import FAMILIES, Pieces, pieces
from tests.plans import GPT2, LLAMA_8B, QWEN_30B_A3B
from toolkit.errors import ToolkitError

ROOT = Path(__file__).parents[2]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
QWEN_MOE = LLAMA | {
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}

ATTENTION = ("self_attention.linear_qkv.weight", "self_attention.linear_proj.weight")
LOCAL = {
    "dense": ("input_layernorm.weight", "pre_mlp_layernorm.weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"),
    "experts": (
        "input_layernorm.weight",
        "pre_mlp_layernorm.weight",
        "mlp.router.weight",
        *(f"mlp.experts.local_experts.{e}.linear_fc{n}.weight" for e in (0, 1) for n in (1, 2)),
    ),
}
ENGINE = {
    "dense": (
        "self_attention.linear_qkv.layer_norm_weight",
        "mlp.linear_fc1.layer_norm_weight",
        "mlp.linear_fc1.weight",
        "mlp.linear_fc2.weight",
    ),
    "experts": (
        "self_attention.linear_qkv.layer_norm_weight",
        "pre_mlp_layernorm.weight",
        "mlp.router.weight",
        *(f"mlp.experts.linear_fc{n}.weight{e}" for e in (0, 1) for n in (1, 2)),
    ),
}
HUGGING_FACE = {
    "dense": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    "mixtral": (
        "block_sparse_moe.gate",
        *(f"block_sparse_moe.experts.{e}.w{n}" for e in (0, 1) for n in (1, 2, 3)),
    ),
    "qwen2_moe": ("mlp.gate", *(f"mlp.experts.{e}.{n}_proj" for e in (0, 1) for n in ("gate", "up", "down"))),
    "qwen3_moe": ("mlp.gate", *(f"mlp.experts.{e}.{n}_proj" for e in (0, 1) for n in ("gate", "up", "down"))),
}


@pytest.mark.parametrize("names", [LOCAL, ENGINE], ids=["local", "transformer-engine"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_of_a_layer_is_named_once(family: str, names: dict) -> None:
    kind = "experts" if family in HUGGING_FACE else "dense"
    found = [pieces(f"decoder.layers.11.{name}", family) for name in ATTENTION + names[kind]]
    targets = [name.removeprefix("model.layers.11.") for one in found if one for name in one.names]
    shared = {f"self_attn.{letter}_proj.weight" for letter in "qkvo"}
    shared |= {"input_layernorm.weight", "post_attention_layernorm.weight"}
    assert len(targets) == len(set(targets))
    assert set(targets) == shared | {f"{name}.weight" for name in HUGGING_FACE.get(family, HUGGING_FACE["dense"])}


def test_what_has_no_place_is_not_guessed() -> None:
    assert pieces("output_layer.weight", "llama") == Pieces("whole", ("lm_head.weight",))
    for name in ("decoder.layers.0.mlp.router.expert_bias", "mtp.layers.0.eh_proj.weight", "decoder.layers.0.mlp.x"):
        assert pieces(name, "qwen3_moe") is None
    assert pieces("decoder.layers.0.mlp.router.weight", "llama") is None  # a Llama has no experts
    assert pieces("decoder.layers.0.mlp.shared_experts.gate_weight", "qwen3_moe") is None  # Qwen2-MoE has it


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' has no mapping"),
        (LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rotary positions of type 'yarn'"),
        (LLAMA | {"rope_scaling": LLAMA3 | {"low_freq_factor": 2.0}}, "low_freq_factor of the rotary scaling is 2.0"),
        (LLAMA | {"quantization_config": {"bits": 4}}, "is quantised"),
        (LLAMA | {"attention_bias": True}, "biases on some projections only"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_function_is_refused(config: dict, said: str) -> None:
    with pytest.raises(ToolkitError, match=said):
        architecture.spec_of(config, "it")


def test_gates_that_do_not_add_up_to_one_are_told_apart() -> None:
    made = {}
    for norms in (True, False):
        config = QWEN_MOE | {"norm_topk_prob": norms}
        spec = architecture.spec_of(config, "it")
        from tests.plans import DGX
        from toolkit.strategy import Strategy

        made[norms] = architecture.sections(config, spec, 4096, Strategy(framework="megatron"), DGX)["transformer"]
    assert made[True]["moe_router_pre_softmax"] is False
    assert made[False]["moe_router_pre_softmax"] is True


def test_a_megatron_file_of_another_model_is_refused(tmp_path: Path) -> None:
    plan_file = sorted((ROOT / "slurm" / "plans").glob("llama*.megatron_core.json"))
    if not plan_file:
        from tests.plans import all_plans
        from toolkit.emit.megatron import core_config

        plan = all_plans()["long"]
        core = msgspec.convert(core_config(plan), core_configs.CoreConfig)
    else:
        plan, core, _ = core_configs.load(
            plan_file[0].with_name(plan_file[0].name.replace(".megatron_core", "")), plan_file[0]
        )
    config = LLAMA | {"rope_scaling": LLAMA3}
    architecture.check(core, plan, config, "it")
    with pytest.raises(ToolkitError) as raised:
        architecture.check(core, plan, config | {"rms_norm_eps": 1e-6, "vocab_size": 32000}, "it")
    said = str(raised.value)
    assert "transformer.layernorm_epsilon is 1e-05 in the megatron file, it needs 1e-06" in said
    assert "it has 32000 tokens" in said


def test_shapes_have_configurations() -> None:
    made = architecture.config_of(LLAMA_8B, 4096)
    assert made["architectures"] == ["LlamaForCausalLM"]
    assert made["rope_parameters"] == LLAMA3 | {"rope_theta": 500000.0}
    experts = architecture.config_of(QWEN_30B_A3B, 4096)
    assert (experts["num_experts"], experts["norm_topk_prob"], experts["moe_intermediate_size"]) == (128, True, 768)
    for config, spec in ((made, LLAMA_8B), (experts, QWEN_30B_A3B)):
        back = architecture.spec_of(config, spec.name)
        fields = ("num_hidden_layers", "num_experts", "intermediate_size", "head_dim", "qk_norm", "rope_scaling_factor")
        assert [getattr(back, name) for name in fields] == [getattr(spec, name) for name in fields]
    with pytest.raises(ToolkitError, match="no mapping"):
        architecture.config_of(GPT2, 1024)


def run(*arguments: str, processes: int = 1) -> subprocess.CompletedProcess:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [sys.executable, *launcher, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def transfers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """One start of two processes for all families and layouts."""
    folder = tmp_path_factory.mktemp("families")
    done = run("tests.recipes.hugging_face_worker", str(folder), processes=2)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, json.loads((folder / "results.json").read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_logits_are_those_of_transformers_and_tensors_come_back_bit_for_bit(transfers: tuple[Path, dict]) -> None:
    _, results = transfers
    assert len(results) >= 14
    assert [name for name, one in results.items() if not one["same"]] == []
    # logits are sums of 64 products in fp32 (eps 1.2e-7), added in another order
    assert {name: one["error"] for name, one in results.items() if one["error"] > 1.0e-6} == {}
    assert all(one["scale"] > 0.1 for one in results.values())  # not the logits of zeros


def differing(one: Path, two: Path) -> list[str]:
    """Tensors that are not the same bit for bit."""
    from recipes.pretrain.hugging_face.files import Weights

    a, b = Weights(one), Weights(two)
    both = a.names & b.names
    return sorted(a.names ^ b.names) + [name for name in sorted(both) if not (a.read(name) == b.read(name)).all()]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("name", "there", "back"), [("llama", "tp", "pp"), ("qwen3-moe", "", "ep")])
def test_the_command_goes_there_and_back(
    name: str, there: str, back: str, transfers: tuple[Path, dict], tmp_path: Path
) -> None:
    folder, _ = transfers
    way, result = str(tmp_path / "there"), tmp_path / "back"
    for command, source, out, axis in (("to-megatron", str(folder / name), way, there), ("to-hf", way, result, back)):
        layout = (f"--{axis}", "2") if axis else ()
        done = run("recipes.pretrain.convert", command, source, "--out", str(out), *layout, processes=2 if axis else 1)
        assert done.returncode == 0, done.stderr
    assert differing(folder / name, result) == []
    again = run("recipes.pretrain.convert", "to-hf", way, "--out", str(result))
    assert (again.returncode, again.stderr.count("exists")) == (2, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_file_is_written_tensor_by_tensor_and_read_by_the_library(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from recipes.pretrain.hugging_face import files

    made = {
        f"layer.{n}": torch.randn(n % 5 + 1, 7).to([torch.float32, torch.bfloat16, torch.float16][n % 3])
        for n in range(2500)  # more than the header of one file has room for
    } | {"transposed": torch.arange(6.0).view(2, 3).T, "scalar": torch.tensor(3.0)}
    writer = files.Writer(tmp_path, rank=0)
    for name, tensor in made.items():
        writer.add(name, tensor)
    writer.flush()
    assert len(writer.written) > 1
    files.finish(tmp_path, writer.written)
    found = {name: tensor for path in tmp_path.glob("*.safetensors") for name, tensor in load_file(path).items()}
    weights = files.Weights(tmp_path)
    assert set(found) == set(made) == weights.names
    for name, tensor in made.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        assert torch.equal(weights.read(name), tensor)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_damaged_folders_are_sentences(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from recipes.pretrain.hugging_face import files

    whole, index = tmp_path / "a.safetensors", tmp_path / files.INDEX
    save_file({"one": torch.ones(3), "two": torch.ones(2, 2)}, whole)
    assert files.Weights(tmp_path).shape("two") == [2, 2]
    for text in ("{", "[]", "{}", '{"weight_map": 5}', '{"weight_map": {"one": 5}}'):
        index.write_text(text)
        with pytest.raises(ToolkitError, match="cannot read"):
            files.Weights(tmp_path)
    index.write_text(json.dumps({"weight_map": {"one": "gone.safetensors"}}))
    with pytest.raises(ToolkitError, match="lacks gone.safetensors"):
        files.Weights(tmp_path)
    index.write_text(json.dumps({"weight_map": {"one": "a.safetensors", "three": "a.safetensors"}}))
    weights = files.Weights(tmp_path)  # the index names a tensor that the file does not have
    for ask in (lambda: weights.read("three"), lambda: weights.shape("three"), weights.dtype):
        with pytest.raises(ToolkitError, match="a.safetensors has no sound tensor three"):
            ask()
    index.unlink()
    for size in (0, 7, 40, whole.stat().st_size - 1):
        whole.write_bytes(whole.read_bytes()[:size])
        with pytest.raises(ToolkitError, match="cannot read"):
            files.Weights(tmp_path)


def test_nothing_wanted_is_replaced(tmp_path: Path) -> None:
    """With --force, a folder that is converted into itself would be gone before it is read by anybody."""
    source, file = tmp_path / "source", tmp_path / "file"
    source.mkdir()
    file.touch()
    (tmp_path / "link").symlink_to(source)
    for out, force, said in (
        (source, True, "is, or holds, what is converted"),
        (tmp_path, True, "is, or holds, what is converted"),
        (tmp_path / "link", True, "is, or holds, what is converted"),
        (file, True, "is a file"),
        (tmp_path / "a".ljust(300, "a"), True, "cannot look at"),
    ):
        with pytest.raises(ToolkitError, match=said):
            convert._require_place(source, out, force)
    (tmp_path / "out").mkdir()
    with pytest.raises(ToolkitError, match="exists"):
        convert._require_place(source, tmp_path / "out", False)
    convert._require_place(source, tmp_path / "out", True)
    convert._require_place(source, tmp_path / "new", False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot read"),
        ("[]", "cannot read"),
        ("{}", "cannot read"),
        ('{"transformer": 3}', "cannot read"),
        ('{"transformer": {"params_dtype": "int4"}}', "has params_dtype 'int4'"),
    ],
)
def test_a_checkpoint_that_says_nothing_sound_of_itself_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ToolkitError, match="says nothing of its model"):
        described(tmp_path / "checkpoint-3")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "megatron_core.json").write_text(text)
    with pytest.raises(ToolkitError, match=said):
        described(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_tensors_without_a_place_are_named(transfers: tuple[Path, dict], tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from recipes.pretrain.hugging_face.files import Weights

    folder, _ = transfers
    weights = Weights(folder / "llama")
    tensors = {name: weights.read(name) for name in weights.names}
    tensors["model.layers.0.self_attn.extra.weight"] = torch.ones(2)
    del tensors["model.layers.3.mlp.up_proj.weight"]
    source = tmp_path / "changed"
    source.mkdir()
    save_file(tensors, source / "model.safetensors")
    (source / "config.json").write_text((folder / "llama" / "config.json").read_text())
    done = run("recipes.pretrain.convert", "to-megatron", str(source), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "1 tensors are not in" in done.stderr and "model.layers.3.mlp.up_proj.weight" in done.stderr
    assert "have no place in the model: model.layers.0.self_attn.extra.weight" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_bad_arguments_are_sentences(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for arguments, said in (
        (("to-megatron", str(tmp_path / "gone"), "--out", str(tmp_path / "out")), "gone does not exist"),
        (("to-hf", str(tmp_path / "config.json"), "--out", str(tmp_path / "out")), "config.json is not a folder"),
        (("to-hf", str(tmp_path), "--out", str(tmp_path / "config.json" / "x")), "config.json is a file: there can be"),
        (("to-hf", str(tmp_path), "--out", str(tmp_path / "out")), "is not a distributed checkpoint"),
        (("to-megatron", str(tmp_path), "--out", str(tmp_path / "out"), "--tp", "2"), "1 process is no multiple"),
    ):
        done = run("recipes.pretrain.convert", *arguments)
        assert done.returncode == 2
        assert said in done.stderr and "Traceback" not in done.stderr
