"""From a contract's model to weights: what is a path, what a hub name, and what a shape can be built into."""

from pathlib import Path

import msgspec
import pytest

from recipes import model_source
from recipes.finetune import model as models
from tests import finetune_runs
from tests.plans import DEEPSEEK_V2_LITE, GPT2, LLAMA_8B, QWEN_30B_A3B
from toolkit.errors import ToolkitError
from toolkit.model import ModelSpec


def source_of(name: str) -> str:
    return model_source.hub_or_path(finetune_runs.tiny_plan(model=name))


def test_paths_hub_names_and_registry_names(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    assert source_of(str(folder)) == ""  # no config.json: not a model
    (folder / "config.json").write_text("{}")
    assert source_of(str(folder)) == source_of(str(folder / "config.json")) == str(folder)
    assert source_of("meta-llama/Llama-3.1-8B") == "meta-llama/Llama-3.1-8B"
    for name in ("tiny", "", "./gone/model", "a/b/c", "/gone"):
        assert source_of(name) == ""


def test_weights_are_looked_for(tmp_path: Path) -> None:
    assert not model_source.has_weights(str(tmp_path))
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert model_source.has_weights(str(tmp_path))
    assert model_source.has_weights("org/name")
    half = tmp_path / "half"  # a download that was interrupted must not become random weights
    half.mkdir()
    (half / "model.safetensors.index.json").touch()
    assert model_source.has_weights(str(half))


@pytest.mark.parametrize("spec", [GPT2, QWEN_30B_A3B, DEEPSEEK_V2_LITE], ids=lambda spec: spec.name)
def test_other_architectures_are_not_guessed(spec: ModelSpec) -> None:
    with pytest.raises(ToolkitError, match="cannot build"):
        models.llama_like_config(spec, 128)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mistral", "attention_bias": True},
        {"model_type": "qwen2"},  # it always has biases
        {"model_type": "qwen3"},  # it always has norms on queries and keys
        {"attention_bias": True},  # a Llama has the output bias too
        {"gated_mlp": False},
        {"norms_per_layer": 4},
        {"partial_rotary_factor": 0.5},
        {"other_parameters": {"vision tower": 5}},
        {"model_type": "unknown"},
    ],
)
def test_a_shape_that_the_class_cannot_have_is_refused(changes: dict) -> None:
    with pytest.raises(ToolkitError, match="cannot build"):
        models.llama_like_config(msgspec.structs.replace(LLAMA_8B, **changes), 128)


def test_long_context_scaling_is_llamas() -> None:
    """As in config.json of Llama-3.1-8B."""
    rope = models.llama_like_config(LLAMA_8B, 4096)["rope_parameters"]
    assert rope == {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        ({}, 8_030_261_248),  # Llama-3.1-8B
        ({"model_type": "mistral", "vocab_size": 32000, "rope_scaling_factor": 0.0}, 7_241_732_096),  # Mistral-7B-v0.1
        (
            {  # Qwen2.5-0.5B
                "model_type": "qwen2",
                "num_hidden_layers": 24,
                "hidden_size": 896,
                "intermediate_size": 4864,
                "num_attention_heads": 14,
                "num_key_value_heads": 2,
                "head_dim": 64,
                "vocab_size": 151936,
                "tie_word_embeddings": True,
                "attention_bias": True,
                "rope_scaling_factor": 0.0,
            },
            494_032_768,
        ),
        (
            {  # Qwen3-0.6B
                "model_type": "qwen3",
                "num_hidden_layers": 28,
                "hidden_size": 1024,
                "intermediate_size": 3072,
                "num_attention_heads": 16,
                "head_dim": 128,
                "vocab_size": 151936,
                "tie_word_embeddings": True,
                "qk_norm": "head",
                "rope_scaling_factor": 0.0,
            },
            596_049_920,
        ),
    ],
    ids=["llama", "mistral", "qwen2", "qwen3"],
)
def test_a_built_model_has_the_parameters_of_the_published_one(changes: dict, parameters: int) -> None:
    import torch
    import transformers

    spec = msgspec.structs.replace(LLAMA_8B, **changes)
    config = transformers.AutoConfig.for_model(spec.model_type, **models.llama_like_config(spec, 4096))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert models.count_parameters(model) == parameters
    heads = model.model.layers[0].self_attn
    assert heads.head_dim == spec.head_dim


@pytest.mark.slow
def test_weights_follow_from_seed_and_name_alone() -> None:
    import torch
    import transformers

    def weights(layers: int, seed: int) -> dict:
        spec = msgspec.structs.replace(finetune_runs.MODEL, num_hidden_layers=layers)
        config = transformers.AutoConfig.for_model("llama", **models.llama_like_config(spec, 128))
        model = transformers.AutoModelForCausalLM.from_config(config)
        models.initialise(model, seed, 0.02)
        return dict(model.named_parameters())

    shallow, deep, other = weights(1, 42), weights(2, 42), weights(1, 43)
    for name, value in shallow.items():
        assert torch.equal(value, deep[name])
        if value.dim() > 1:
            assert not torch.equal(value, other[name])
            assert value.std().item() == pytest.approx(0.02, rel=0.05)
            assert abs(value.mean().item()) < 0.001
        else:
            assert torch.equal(value, torch.ones_like(value))


def saved(folder: Path) -> str:
    """A model of the tiny shape with weights, in a folder."""
    import transformers

    config = transformers.AutoConfig.for_model(
        "llama", **models.llama_like_config(finetune_runs.MODEL, 128), eos_token_id=257, pad_token_id=257
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.slow
def test_weights_rotary_base_and_padding_are_as_the_contract_says(tmp_path: Path) -> None:
    import torch

    from recipes.byte_tokenizer import ByteTokenizer

    name = saved(tmp_path / "saved")
    tokenizer = ByteTokenizer()

    def load(**contract: object) -> tuple:
        made = finetune_runs.tiny_plan("ddp", ranks=1, precision="fp32", model=name, **contract)
        model = msgspec.structs.replace(made.model, rope_theta=made.contract.rope_theta or made.model.rope_theta)
        return models.load_model(msgspec.structs.replace(made, model=model), tokenizer)

    own, said = load()
    assert said == f"weights from {name}"
    assert own.config.rope_parameters["rope_theta"] == 10000.0
    # saved with padding = end, of which torch would never learn the embedding
    assert own.config.pad_token_id == own.get_input_embeddings().padding_idx == tokenizer.pad_token_id
    drawn, said = load(init="random")
    assert "init is random" in said
    longer, _ = load(rope_theta=500000.0)
    assert longer.config.rope_parameters["rope_theta"] == 500000.0
    assert longer.model.rotary_emb.inv_freq[1] < own.model.rotary_emb.inv_freq[1]
    weight = own.model.layers[0].mlp.up_proj.weight
    assert torch.equal(weight, longer.model.layers[0].mlp.up_proj.weight)
    again, _ = load(init="random")
    random = drawn.model.layers[0].mlp.up_proj.weight
    assert not torch.equal(weight, random) and torch.equal(random, again.model.layers[0].mlp.up_proj.weight)


@pytest.mark.slow
def test_adapters_have_the_rank_targets_and_dropout_of_the_contract() -> None:
    from recipes.byte_tokenizer import ByteTokenizer

    made = finetune_runs.tiny_plan(
        "ddp", ranks=1, method="lora", lora_rank=4, lora_alpha=8, lora_dropout=0.25, lora_targets="attention"
    )
    model, _ = models.load_model(made, ByteTokenizer())
    config = model.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (4, 8, 0.25)
    assert config.target_modules == {"q_proj", "k_proj", "v_proj", "o_proj"}
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained == 4 * 4 * (2 * (128 + 128) + 2 * (128 + 64))  # layers, rank, A and B of q and o, of k and v
