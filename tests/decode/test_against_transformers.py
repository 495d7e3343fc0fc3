"""The oracle of the decoders: transformers builds the same configuration on the meta device, and counts it."""

import copy
import random
from typing import Any

import pytest

from tests.decode import transformers_defaults
from tests.decode.random_configs import small, small_vision
from toolkit.decode import decode_config, families, vision
from toolkit.decode.reader import published_defaults
from toolkit.estimate.parameters import count_parameters

# families of remote code, which transformers itself does not hold: tested by published totals elsewhere
REMOTE = {
    "aquila", "baichuan", "bailing_moe", "chatglm", "deepseek", "exaone_v3", "internlm", "internlm2", "internvl_chat",
    "kimi_k2", "minicpm", "orion", "phi3small", "qwen", "xverse", "yi",
}  # fmt: skip
PARTS = {"qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text", "glm4v_text", "glm4v_moe_text"}
LARGEST_ELSEWHERE = {"deepseek_v32", "glm_moe_dsa", "recurrent_gemma", "zamba", "zamba2"}


def language_families() -> list[str]:
    return [f for f in families.known() if f not in vision.FAMILIES and f not in REMOTE | PARTS]


def build(family: str, config: dict[str, Any]) -> Any:
    """The module that transformers builds, or None where its configuration class refuses the random values."""
    import torch
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    transformers.logging.set_verbosity_error()
    auto = transformers.AutoModelForImageTextToText if family in vision.FAMILIES else transformers.AutoModelForCausalLM
    try:
        with torch.device("meta"):
            return auto.from_config(transformers.CONFIG_MAPPING[family].from_dict(copy.deepcopy(config)))
    except (StrictDataclassError, ValueError, TypeError, ZeroDivisionError, AssertionError):
        return None


@pytest.mark.slow
def test_random_configurations_of_every_language_family() -> None:
    for family in language_families():
        compared = 0
        for seed in range(12):
            config = small(family, random.Random(seed))
            model = build(family, config)
            if model is None:
                continue
            count = count_parameters(decode_config(config, family))
            assert count.total == model.num_parameters(), (family, config)
            if family not in LARGEST_ELSEWHERE:
                assert count.largest_tensor == max(p.numel() for p in model.parameters()), (family, config)
            compared += 1
        assert compared >= 5, family


@pytest.mark.slow
def test_random_configurations_of_every_vision_family() -> None:
    for family in vision.FAMILIES.keys() - REMOTE:
        compared = 0
        for seed in range(12):
            config = small_vision(family, random.Random(seed))
            model = build(family, config)
            if model is None:
                continue
            assert count_parameters(decode_config(copy.deepcopy(config), family)).total == model.num_parameters(), (
                config
            )
            compared += 1
        assert compared >= 5, family


@pytest.mark.slow
def test_every_family_is_in_transformers_or_known_as_remote() -> None:
    from transformers import CONFIG_MAPPING

    assert {f for f in families.known() if f not in CONFIG_MAPPING and f not in PARTS} == REMOTE
    assert REMOTE.isdisjoint(published_defaults())


@pytest.mark.slow
def test_the_transcribed_defaults_are_those_of_the_configuration_classes() -> None:
    written = transformers_defaults.TARGET.read_text(encoding="utf-8")
    assert written == transformers_defaults.text(), "run: python -m tests.decode.transformers_defaults"


# built by transformers, decoded by nobody here: the rule that sorts parameters by name must not lose any
UNKNOWN = [
    "jetmoe", "xlstm", "rwkv", "longcat_flash", "gemma4_text", "mimo_v2_flash", "mllama", "laguna", "zaya", "axk1",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family", UNKNOWN)
def test_unknown_families_are_counted_on_the_meta_device(family: str) -> None:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as SEEING

    assert family not in families.known()
    config = CONFIG_MAPPING[family]()
    auto = AutoModelForImageTextToText if family in SEEING else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    spec = decode_config({"model_type": family}, family)
    count = count_parameters(spec)
    assert count.total == model.num_parameters()
    assert count.largest_tensor == max(p.numel() for p in model.parameters())
    assert any("counted on the meta device by transformers" in note for note in spec.notes)
