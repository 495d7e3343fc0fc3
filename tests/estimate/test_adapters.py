"""LoRA counts: by hand, what is refused, and peft itself on every family."""

import random

import pytest

from tests.decode.random_configs import small
from toolkit.decode import decode_config
from toolkit.errors import ToolkitError
from toolkit.estimate.parameters import count_parameters, lora_parameters
from toolkit.registry.models import load_model


def test_llama_2_7b_by_hand() -> None:
    model = load_model("llama-2-7b")
    attention = 32 * 4 * (4096 + 4096)
    mlp = 32 * 3 * (4096 + 11008)
    assert lora_parameters(model, 16, "attention") == 16 * attention == 16_777_216
    assert lora_parameters(model, 16, "all-linear") == 16 * (attention + mlp) == 39_976_960


def test_rank_is_a_factor_and_adapters_are_small() -> None:
    model = load_model("llama-3.1-8b")
    one = lora_parameters(model, 1)
    assert lora_parameters(model, 64) == 64 * one
    assert lora_parameters(model, 64) < count_parameters(model).total / 40


@pytest.mark.parametrize(
    ("name", "rank", "targets", "said"),
    [
        ("llama-2-7b", 0, "all-linear", "rank is 0"),
        ("llama-2-7b", 8, "everything", "unknown LoRA targets 'everything'"),
        ("mamba-130m", 8, "all-linear", "peft does not adapt"),
    ],
)
def test_refused(name: str, rank: int, targets: str, said: str) -> None:
    with pytest.raises(ToolkitError, match=said):
        lora_parameters(load_model(name), rank, targets)


# refused here because peft refuses them, or because their shape does not list all matrices
REFUSED = {"mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h"}
UNLISTED = {
    "afmoe", "doge", "deepseek_v32", "glm_moe_dsa", "kimi_linear", "minimax", "recurrent_gemma", "zamba", "zamba2",
}  # fmt: skip


@pytest.mark.slow
def test_peft_places_as_many() -> None:
    """Every language family, small: trainable parameters of peft's all-linear adapters on the meta device."""
    import torch
    from peft import LoraConfig, get_peft_model

    from tests.decode.test_against_transformers import build, language_families

    compared = set()
    for family in language_families():
        if family in REFUSED | UNLISTED:
            with pytest.raises(ToolkitError):
                lora_parameters(decode_config(small(family, random.Random(1)), family), 3)
            continue
        for seed in range(4):
            config = small(family, random.Random(seed))
            model = build(family, config)
            spec = decode_config(config, family)
            if model is None or spec.counted_layers:
                continue
            with torch.device("meta"):
                adapted = get_peft_model(model, LoraConfig(r=3, target_modules="all-linear"))
            trainable = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
            assert lora_parameters(spec, 3) == trainable, (family, config)
            compared.add(family)
    assert len(compared) >= 70
