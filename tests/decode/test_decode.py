"""What the decoders assume, refuse and say; hostile configurations never end in a traceback."""

import copy
import importlib.util
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decode.random_configs import small, small_vision
from toolkit.decode import decode_config, families, vision
from toolkit.decode.reader import published_defaults
from toolkit.errors import ToolkitError
from toolkit.estimate.parameters import count_parameters

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "tie_word_embeddings": False,
}  # fmt: skip
CLIP = {
    "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
    "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768, "vocab_size": 32000,
}  # fmt: skip
SIGLIP = {
    "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
    "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip


def problems_of(config: Any) -> list[str]:
    with pytest.raises(ToolkitError) as caught:
        decode_config(config, "it")
    return [problem.message for problem in caught.value.problems]


# configs as their publishers wrote them: parts leave out what the family's configuration class has as default
STUBS = {
    "llava-1.5-7b": (
        {"model_type": "llava", "image_token_index": 32000, "tie_word_embeddings": False, "vision_config": CLIP,
         "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
         "vision_feature_layer": -2, "vocab_size": 32064},
        7_063_427_072, "text_config.hidden_size is not in the config: 4096 assumed, the default of llama",
    ),
    "gemma-3-4b": (
        {"model_type": "gemma3", "mm_tokens_per_image": 256, "vision_config": SIGLIP,
         "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                         "num_hidden_layers": 34, "sliding_window": 1024}},
        4_300_079_472, "text_config.num_attention_heads is not in the config: 8 assumed, the default of gemma3_text",
    ),
    "gemma-3-12b": (
        {"model_type": "gemma3", "vision_config": SIGLIP,
         "text_config": {"hidden_size": 3840, "intermediate_size": 15360, "model_type": "gemma3_text",
                         "num_attention_heads": 16, "num_hidden_layers": 48, "num_key_value_heads": 8}},
        12_187_325_040, "text_config.head_dim is not in the config: 256 assumed, the default of gemma3_text",
    ),
    "paligemma-3b-224": (
        {"model_type": "paligemma", "projection_dim": 2048, "hidden_size": 2048, "vocab_size": 257216,
         "text_config": {"hidden_size": 2048, "intermediate_size": 16384, "model_type": "gemma",
                         "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
                         "vocab_size": 257216},
         "vision_config": {"hidden_size": 1152, "intermediate_size": 4304, "model_type": "siglip_vision_model",
                           "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
                           "projection_dim": 2048, "vision_use_head": False}},
        2_923_466_480, "vision_config.image_size is not in the config: 224 assumed, the default of siglip_vision_model",
    ),
    "idefics2-8b": (
        {"model_type": "idefics2", "perceiver_config": {"model_type": "idefics2"}, "tie_word_embeddings": False,
         "text_config": {"model_type": "mistral", "sliding_window": 4096, "vocab_size": 32003},
         "vision_config": {"hidden_size": 1152, "image_size": 980, "intermediate_size": 4304,
                           "model_type": "idefics2", "num_attention_heads": 16, "num_hidden_layers": 27,
                           "patch_size": 14}},
        8_402_768_112, "text_config.num_key_value_heads is not in the config: 8 assumed, the default of mistral",
    ),
    "qwen2-vl-7b": (
        {"model_type": "qwen2_vl", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
         "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
         "vision_config": {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3,
                           "hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}},
        8_291_375_616, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STUBS)
def test_stub_configurations_take_documented_defaults_and_say_so(name: str) -> None:
    config, total, note = STUBS[name]
    spec = decode_config(config, name)
    assert count_parameters(spec).total == total
    assert not note or note in spec.notes


# remote code: totals of the published weights
REMOTE = {
    "glm-4-9b": (
        {"model_type": "chatglm", "add_bias_linear": False, "add_qkv_bias": True, "ffn_hidden_size": 13696,
         "hidden_size": 4096, "kv_channels": 128, "multi_query_attention": True, "multi_query_group_num": 2,
         "num_attention_heads": 32, "num_layers": 40, "padded_vocab_size": 151552, "post_layer_norm": True,
         "rmsnorm": True, "tie_word_embeddings": False}, 9_399_951_360),
    "chatglm3-6b": (
        {"model_type": "chatglm", "add_bias_linear": False, "add_qkv_bias": True, "ffn_hidden_size": 13696,
         "hidden_size": 4096, "kv_channels": 128, "multi_query_attention": True, "multi_query_group_num": 2,
         "num_attention_heads": 32, "num_layers": 28, "padded_vocab_size": 65024, "post_layer_norm": True,
         "rmsnorm": True, "tie_word_embeddings": False}, 6_243_584_000),
    "internlm2-7b": (
        {"model_type": "internlm2", "bias": False, "hidden_size": 4096, "intermediate_size": 14336,
         "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 92544,
         "tie_word_embeddings": False}, 7_737_708_544),
    "baichuan-7b": (
        {"model_type": "baichuan", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
         "num_attention_heads": 32, "vocab_size": 64000, "tie_word_embeddings": False}, 7_000_559_616),
    "exaone-3.5-7.8b": (
        {"model_type": "exaone", "hidden_size": 4096, "intermediate_size": 14336, "num_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 102400, "tie_word_embeddings": False},
        7_818_448_896),
    "qwen-7b": (
        {"model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
         "num_attention_heads": 32, "vocab_size": 151936, "tie_word_embeddings": False}, 7_721_324_544),
}  # fmt: skip


@pytest.mark.parametrize("name", REMOTE)
def test_families_of_remote_code(name: str) -> None:
    config, total = REMOTE[name]
    assert count_parameters(decode_config(config, name)).total == total


def test_all_problems_are_told_at_once() -> None:
    config = LLAMA | {"hidden_size": "4096", "num_hidden_layers": -2, "vocab_size": 0, "mlp_bias": "no"}
    del config["intermediate_size"]
    messages = problems_of(config)
    assert any("hidden_size is '4096', not a whole number" in message for message in messages)
    assert any("num_hidden_layers is -2" in message for message in messages)
    assert any("vocab_size is 0" in message for message in messages)
    assert any("mlp_bias is 'no', not true or false" in message for message in messages)
    assert any("intermediate_size is missing" in message for message in messages)


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"]
)
def test_a_missing_core_key_of_a_whole_model_is_never_guessed(key: str) -> None:
    config = {name: value for name, value in LLAMA.items() if name != key}
    assert any(key in message and "missing" in message for message in problems_of(config))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide num_attention_heads 4"),
        ({"model_type": "mistral", "num_key_value_heads": None}, "8 (the default of mistral: it is not in the config)"),
        ({"hidden_size": 66}, "hidden_size 66 is not a multiple of num_attention_heads 4"),
        ({"hidden_size": True}, "hidden_size is True, not a whole number"),
        ({"hidden_size": 64.5}, "hidden_size is 64.5, not a whole number"),
        ({"hidden_size": 10**30}, "hidden_size is 1000000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"model_type": 7}, "model_type of it is 7, not a text"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
    ],
)
def test_impossible_values(change: dict[str, Any], said: str) -> None:
    assert any(said in message for message in problems_of(LLAMA | change))


def test_more_experts_per_token_than_experts() -> None:
    config = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5}
    assert any("num_experts_per_tok 5 is more than the 4 experts" in message for message in problems_of(config))


@pytest.mark.parametrize("config", [None, [], "llama", 3, [LLAMA]])
def test_what_is_no_object(config: Any) -> None:
    assert "is not an object" in problems_of(config)[0]


def test_an_unknown_architecture_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # as on a machine without transformers
    with pytest.raises(ToolkitError) as caught:
        decode_config(LLAMA | {"model_type": "lamma"}, "it")
    (problem,) = caught.value.problems
    assert "'lamma' is not known" in problem.message
    assert "llama" in problem.remedy
    assert "transformers" in problem.remedy


def test_a_known_family_in_an_unknown_variant_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = small("doge", random.Random(0)) | {"is_moe": True}
    assert "doge with is_moe is not known here" in problems_of(config)[0]


def test_without_model_type() -> None:
    plain = {key: value for key, value in LLAMA.items() if key != "model_type"}
    spec = decode_config(plain, "it")
    assert spec.model_type == "llama"
    assert "read as llama" in spec.notes[0]
    named = decode_config(plain | {"architectures": ["Qwen2ForCausalLM"]}, "it")
    assert named.model_type == "qwen2"
    assert "from architectures Qwen2ForCausalLM" in named.notes[0]
    assert "no model_type" in problems_of(plain | {"some_new_key": 3})[0]
    assert "not known" in problems_of(plain | {"architectures": ["ZebraForCausalLM"]})[0]


def test_spelling_of_model_type_is_forgiven() -> None:
    assert decode_config(LLAMA | {"model_type": "Yi"}, "it").model_type == "yi"
    assert decode_config(LLAMA | {"model_type": "LLaMA"}, "it").model_type == "llama"


def test_tied_defaults_differ_by_family() -> None:
    gpt2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 100}
    assert decode_config(gpt2, "it").tie_word_embeddings
    assert (
        "tie_word_embeddings is not in the config: true assumed, the default of gpt2" in decode_config(gpt2, "it").notes
    )
    plain = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    assert not decode_config(plain, "it").tie_word_embeddings


def test_structural_keys_that_the_family_ignores_are_told() -> None:
    spec = decode_config(LLAMA | {"num_local_experts": 8, "output_router_logits": True}, "it")
    assert spec.notes == ("keys that a llama model does not use were ignored: num_local_experts",)


def test_layers_with_a_window_are_counted() -> None:
    window = {"sliding_window": 16, "num_hidden_layers": 6}
    gemma = decode_config(LLAMA | window | {"model_type": "gemma2", "head_dim": 16}, "it")
    assert (gemma.sliding_window, gemma.sliding_window_layers) == (16, 3)
    mistral = decode_config(LLAMA | window | {"model_type": "mistral"}, "it")
    assert (mistral.sliding_window, mistral.sliding_window_layers) == (16, 6)
    off = decode_config(LLAMA | window | {"model_type": "qwen2", "use_sliding_window": False}, "it")
    assert (off.sliding_window, off.sliding_window_layers) == (0, 0)
    kinds = ["full_attention"] * 5 + ["sliding_attention"]
    assert (
        decode_config(LLAMA | window | {"model_type": "mistral", "layer_types": kinds}, "it").sliding_window_layers == 1
    )


def test_what_the_builder_needs_comes_along() -> None:
    rope = {"rope_type": "llama3", "factor": 8.0}
    spec = decode_config(
        LLAMA | {"rope_theta": 500000.0, "rope_scaling": rope, "rms_norm_eps": 1e-5, "hidden_act": "silu"}, "it"
    )
    assert (spec.rope_theta, spec.rope_scaling_factor, spec.norm_epsilon, spec.hidden_act) == (5e5, 8.0, 1e-5, "silu")


JUNK = [
    None, True, False, 0, -1, 1, 2.5, 1e308, float("inf"), float("nan"), "", "8", "auto", "x" * 300, [], [1], ["a"],
    [None], {}, {"a": 1}, [[1]], 10**30, -(10**30), 2**40, "\0", {"hidden_size": -1},
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_random_damage_gives_a_count_or_a_sentence(data: st.DataObject) -> None:
    """Keys of every family removed or replaced by anything that JSON can hold."""
    family = data.draw(st.sampled_from(sorted(published_defaults().keys() & set(families.known()))))
    pick = random.Random(data.draw(st.integers(0, 9)))
    config = copy.deepcopy(small_vision(family, pick) if family in vision.FAMILIES else small(family, pick))
    for _ in range(data.draw(st.integers(1, 4))):
        table = config
        parts = [value for value in config.values() if isinstance(value, dict) and value]
        if parts and data.draw(st.booleans()):
            table = data.draw(st.sampled_from(parts))
        key = data.draw(st.sampled_from(sorted(table)))
        if key == "model_type" and table is config:
            continue  # another family: other tests
        if data.draw(st.booleans()):
            del table[key]
        else:
            table[key] = copy.deepcopy(data.draw(st.sampled_from(JUNK)))
        if not table:
            break
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)  # no counting elsewhere
        try:
            spec = decode_config(config, "it")
        except ToolkitError as error:
            assert all(str(problem) for problem in error.problems)
            return
    count = count_parameters(spec)
    assert sum(count.by_part().values()) == count.total > 0
    assert count.active <= count.total
