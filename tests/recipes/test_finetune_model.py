"""From a contract's model to weights: what is a path, what a hub name, and what a shape can be built into."""

from pathlib import Path

import msgspec
import pytest

from recipes.finetune import model as models
from tests import finetune_runs
from tests.plans import DEEPSEEK_V2_LITE, GPT2, LLAMA_8B, QWEN_30B_A3B
from toolkit.errors import ToolkitError
from toolkit.model import ModelSpec


def source_of(name: str) -> str:
    return models.hub_or_path(finetune_runs.tiny_plan(model=name))


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
    assert not models.has_weights(str(tmp_path))
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert models.has_weights(str(tmp_path))
    assert models.has_weights("org/name")


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
