"""Small random configurations of every family, as a publisher could write them."""

from __future__ import annotations

import random
from typing import Any

from toolkit.decode.reader import published_defaults

# switches that choose something other than parameters, or a variant that is refused
FIXED = {
    "is_moe",
    "add_cross_attention",
    "use_mem_rope",
    "use_long_context",
    "use_cache",
    "prefix_lm",
    "use_mem_eff_path",
}
REFUSED = {
    "afmoe": {"attention_bias"},
    "ernie4_5_moe": {"use_bias"},
    "deepseek_v2": {"mlp_bias"},
    "aria_text": {"mlp_bias"},
    "hy_v3": {"mlp_bias"},
    "deepseek_v32": {"mlp_bias"},
    "glm_moe_dsa": {"mlp_bias"},
}


def small(family: str, pick: random.Random, core: bool = True) -> dict[str, Any]:
    """A configuration of a language model family with small numbers and random switches."""
    known = published_defaults()[family]
    defaults, aliases = known["defaults"], known.get("aliases", {})
    fields = set(defaults) | set(aliases)
    heads = pick.choice([2, 4, 6])
    groups = pick.choice([g for g in (1, 2, 3, heads) if heads % g == 0])
    hidden = heads * 2 * pick.choice([4, 8, 12])
    layers = pick.choice([3, 4, 6, 8])
    experts = pick.choice([4, 6])
    values: dict[str, Any] = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": pick.randrange(90, 300),
        "intermediate_size": 2 * pick.randrange(20, 90),
        "num_key_value_heads": groups,
        "head_dim": 2 * pick.choice([4, 8, 10]),
        "max_position_embeddings": pick.choice([64, 128]),
        "num_experts": experts,
        "num_local_experts": experts,
        "n_routed_experts": experts,
        "moe_num_experts": experts,
        "num_experts_per_tok": pick.choice([1, 2]),
        "moe_k": 2,
        "moe_topk": 2,
        "moe_intermediate_size": pick.randrange(16, 60),
        "shared_expert_intermediate_size": pick.randrange(16, 60),
        "shared_intermediate_size": pick.randrange(16, 60),
        "moe_shared_expert_intermediate_size": pick.randrange(16, 60),
        "intermediate_size_mlp": pick.randrange(16, 60),
        "n_shared_experts": pick.choice([1, 2]),
        "num_shared_experts": pick.choice([1, 2]),
        "moe_num_shared_experts": pick.choice([1, 2]),
        "first_k_dense_replace": pick.choice([0, 1, 2]),
        "num_dense_layers": pick.choice([1, 2]),
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "decoder_sparse_step": pick.choice([1, 2]),
        "interleave_moe_layer_step": pick.choice([1, 2]),
        "q_lora_rank": pick.choice([None, 12]),
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 12,
        "num_kv_heads": groups,
        "ffn_hidden_size": pick.choice([None, 44]),
        "n_inner": pick.choice([None, 44]),
        "ffn_dim": 52,
        "d_model": hidden,
        "dff": 36,
        "attention_heads": heads,
        "num_layers": layers,
        "word_embed_proj_dim": pick.choice([hidden, 20]),
        "state_size": 8,
        "ssm_state_size": 8,
        "mamba_d_state": 8,
        "conv_kernel": 3,
        "mamba_d_conv": 3,
        "conv_L_cache": 3,
        "num_heads": 4,
        "expand": 2,
        "n_groups": 2,
        "mamba_n_groups": 2,
        "mamba_ngroups": 2,
        "mamba_n_heads": 4,
        "n_mamba_heads": 4,
        "mamba_num_heads": 4,
        "mamba_head_dim": 6,
        "mamba_d_ssm": pick.choice([None, 40]),
        "mamba_dt_rank": pick.choice(["auto", 5]),
        "time_step_rank": pick.choice(["auto", 5]),
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 8,
        "linear_num_heads": 2,
        "linear_head_dim": 6,
        "adapter_rank": 3,
        "num_mem_blocks": pick.choice([1, 2]),
        "lru_width": pick.choice([None, 2 * hidden]),
        "intermediate_multiple_size": pick.choice([3, 4]),
        "sliding_window": pick.choice([None, 16]),
        "block_multiple_of": 8,
    }
    chosen = {
        key: value for key, value in values.items() if key in fields or key in CORE or key in OPTIONAL.get(family, ())
    }
    for key in aliases:  # one spelling only, as a publisher would write it
        if key in chosen and aliases[key] in chosen:
            del chosen[key]
    switches = [key for key, value in defaults.items() if isinstance(value, bool) and key not in FIXED]
    for key in switches:
        if key not in REFUSED.get(family, ()):
            chosen[key] = pick.random() < 0.5
    return {"model_type": family} | _special(family, chosen, pick)


CORE = {"num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size"}
# keys whose default is null in the configuration class, so that the table of defaults does not list them
_KV, _DIM = "num_key_value_heads", "head_dim"
_BOTH = """
    llama mistral ministral ministral3 granite smollm3 ernie4_5 exaone exaone4 arcee seed_oss mixtral gpt_oss
    llama4_text hyperclovax hunyuan_v1_dense hunyuan_v1_moe internlm3 iquestcoder dots1 diffllama flex_olmo mellum
    hy_v3 exaone_moe
"""
_GROUPS = """
    phi phi3 stablelm cohere cohere2 olmo olmo2 olmo3 apertus bitnet doge nanochat jais2 nemotron granitemoe
    granitemoeshared granitemoehybrid olmoe olmo_hybrid zamba zamba2 recurrent_gemma ernie4_5_moe aria_text helium
"""
OPTIONAL: dict[str, tuple[str, ...]] = dict.fromkeys(_BOTH.split(), (_KV, _DIM)) | dict.fromkeys(
    _GROUPS.split(), (_KV,)
)
OPTIONAL |= {
    "falcon": ("num_kv_heads", "ffn_hidden_size"),
    "gpt2": ("n_inner",),
    "gptj": ("n_inner",),
    "codegen": ("n_inner",),
    "gpt_bigcode": ("n_inner",),
    "deepseek_v2": ("q_lora_rank", "num_experts_per_tok"),
    "kimi_linear": ("q_lora_rank", "num_experts"),
    "glm4_moe": (_DIM,),
    "dots1": (_KV, _DIM, "n_routed_experts", "num_experts_per_tok", "n_shared_experts"),
    "solar_open": (_DIM,),
    "qwen3_moe": (_DIM,),
    "falcon_h1": (_DIM,),
    "bamba": (_DIM,),
    "minimax": (_DIM,),
    "minimax_m2": (_DIM,),
    "nemotron_h": (),
    "mamba": ("time_step_rank",),
    "falcon_mamba": ("time_step_rank",),
    "jamba": ("mamba_dt_rank",),
    "zamba": (_KV, "mamba_dt_rank"),
    "recurrent_gemma": (_KV, "lru_width"),
    "olmo_hybrid": (
        _KV,
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
    ),
}


def _special(family: str, values: dict[str, Any], pick: random.Random) -> dict[str, Any]:
    """What a family needs to be consistent with itself."""
    hidden, layers = values.get("hidden_size", 32), values.get("num_hidden_layers", 4)
    values = dict(values) | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if family in ("mamba", "falcon_mamba", "mamba2"):
        values.pop("intermediate_size", None)
        values.pop("num_attention_heads", None)
        values["expand"] = 2
    if family == "mamba2":
        values["head_dim"] = hidden * 2 // 4
    if family == "nemotron_h":
        values.pop("num_hidden_layers", None)
        values["hybrid_override_pattern"] = "".join(pick.choice("M*E-") for _ in range(layers)) + "M"
        values["mlp_bias"] = False
    if family in ("zamba", "zamba2"):
        values["layers_block_type"] = [pick.choice(["linear_attention", "hybrid"]) for _ in range(layers - 1)] + [
            "hybrid"
        ]
        values["num_key_value_heads"] = values.get("num_attention_heads")
        values["intermediate_size"] = 44
        values["tie_word_embeddings"] = True
        values.pop("head_dim", None)
    if family == "dbrx":
        values["tie_word_embeddings"] = False
    if family == "internlm3":
        values["bias"] = values["qkv_bias"] = pick.random() < 0.5
    if family == "zamba":
        values["attention_head_dim"] = 2 * hidden // values["num_attention_heads"]
        values["n_mamba_heads"] = 2
    if family == "granitemoehybrid":
        values["layer_types"] = [pick.choice(["linear_attention", "full_attention"]) for _ in range(layers)]
        values["num_local_experts"] = pick.choice([0, 4])
        values["position_embedding_type"] = "rope"
    if family == "bamba":
        values["attn_layer_indices"] = [1, 3]
    if family == "falcon_h1":
        values["projectors_bias"] = values["mamba_proj_bias"]
    if family in ("lfm2", "lfm2_moe"):
        values["layer_types"] = [pick.choice(["conv", "full_attention"]) for _ in range(layers)]
        values.pop("num_dense_layers" if family == "lfm2" else "block_multiple_of", None)
    if family in ("deepseek_v32", "glm_moe_dsa"):
        values["q_lora_rank"] = 12
        values["first_k_dense_replace"] = 1
    if family == "kimi_linear":
        values["layer_types"] = [pick.choice(["linear_attention", "full_attention"]) for _ in range(layers)]
    if family == "dbrx":
        values["attn_config"] = {"kv_n_heads": 1, "rope_theta": 10000.0}
        values["ffn_config"] = {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": hidden}
        values.pop("intermediate_size", None)
    if family in ("gpt_neo",):
        values["attention_types"] = [[["global", "local"], values["num_layers"] // 2]]
        values["num_layers"] = values["num_layers"] // 2 * 2
    if family in (
        "bloom",
        "mpt",
        "codegen",
        "gptj",
        "gpt2",
        "gpt-sw3",
        "gpt_bigcode",
        "openai-gpt",
        "falcon",
        "xglm",
        "opt",
    ):
        values.pop("intermediate_size", None)
    if family in ("mpt",):
        values["max_seq_len"] = values.pop("max_position_embeddings", 64)
    if family in ("gptj", "codegen"):
        values["rotary_dim"] = 4
    if family == "recurrent_gemma":
        values["block_types"] = ["recurrent", "attention"]
    if family == "deepseek_v2":
        values["topk_method"] = "greedy"
    return values


def small_vision(family: str, pick: random.Random) -> dict[str, Any]:
    """A configuration of a vision-language family: a small language model, a small tower, random switches."""
    from toolkit.decode.vision import FAMILIES

    parts = FAMILIES[family]
    same = {
        "qwen2_vl_text": "qwen2",
        "qwen2_5_vl_text": "qwen2",
        "qwen3_vl_text": "qwen3",
        "qwen3_vl_moe_text": "qwen3_moe",
        "glm4v_text": "glm4",
        "glm4v_moe_text": "glm4_moe",
    }
    text = small(same.get(parts.text, parts.text), pick) | {"model_type": parts.text}
    if parts.fixed:
        text.pop("head_dim", None) if "glm4v" in family or "qwen2" in family else None
        text.pop("use_sliding_window", None)
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 1]}
    if family in ("glm4v", "glm4v_moe"):
        text = {
            key: value for key, value in text.items() if key not in ("attention_bias", "use_qk_norm", "layer_types")
        }
    if family == "paligemma":
        text["head_dim"] = 8
    heads = pick.choice([2, 4])
    wide = heads * pick.choice([4, 8])
    patch, cells = pick.choice([2, 4]), pick.choice([2, 4])
    vision: dict[str, Any] = {
        "model_type": parts.vision,
        "hidden_size": wide,
        "intermediate_size": pick.randrange(10, 40),
        "num_hidden_layers": pick.choice([2, 3]),
        "num_attention_heads": heads,
        "image_size": patch * cells,
        "patch_size": patch,
    }
    if parts.vision == "siglip_vision_model":
        vision["vision_use_head"] = pick.random() < 0.5
    if parts.vision == "internvl_vision":
        vision |= {
            "attention_bias": pick.random() < 0.5,
            "use_qk_norm": pick.random() < 0.5,
            "use_mean_pooling": pick.random() < 0.5,
            "use_mask_token": pick.random() < 0.5,
            "use_absolute_position_embeddings": pick.random() < 0.5,
            "norm_type": pick.choice(["layer_norm", "rms_norm"]),
            "image_size": [patch * cells] * 2,
            "patch_size": [patch] * 2,
        }
    if parts.vision == "llama4_vision_model":
        vision |= {
            "projector_input_dim": 24,
            "projector_output_dim": 24,
            "vision_output_dim": 24,
            "pixel_shuffle_ratio": 0.5,
        }
        vision["intermediate_size"] = 4 * wide
    if parts.vision == "qwen2_vl_vision":
        vision = {
            "depth": 2,
            "embed_dim": wide,
            "hidden_size": 20,
            "mlp_ratio": 3,
            "num_heads": heads,
            "patch_size": patch,
        }
        vision |= {"spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "model_type": parts.vision}
    if parts.vision in ("qwen2_5_vl_vision", "glm4v_vision", "glm4v_moe_vision") or "qwen3" in parts.vision:
        vision = {"depth": 2, "hidden_size": wide, "intermediate_size": 28, "num_heads": heads, "patch_size": patch}
        vision |= {"out_hidden_size": 20, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}
        vision |= {"model_type": parts.vision}
    if "glm4v" in parts.vision:
        vision |= {"image_size": patch * cells, "attention_bias": pick.random() < 0.5}
    if "qwen3" in parts.vision:
        vision |= {"num_position_embeddings": 16}
        if "vl" in parts.vision:
            vision["deepstack_visual_indexes"] = pick.choice([[0], [0, 1]])
    whole: dict[str, Any] = {"model_type": family, "text_config": text, "vision_config": vision}
    whole["tie_word_embeddings"] = text["tie_word_embeddings"] = pick.random() < 0.5
    if family in ("llava", "mistral3"):
        whole["multimodal_projector_bias"] = pick.random() < 0.5
    if family in ("llava", "llava_next"):
        whole["vision_feature_layer"] = pick.choice([-2, [-2, -1]])
    if family == "vipllava":
        whole["vision_feature_layers"] = pick.choice([[-2, -1], [-1, -2, -3]])
    if family == "paligemma":
        vision["projection_dim"] = whole["projection_dim"] = text["hidden_size"]
    if family == "idefics2":
        whole["perceiver_config"] = {"hidden_size": text["hidden_size"], "resampler_n_latents": 5, "resampler_depth": 2}
        whole["perceiver_config"] |= {"resampler_n_heads": 4, "resampler_head_dim": 6, "num_key_value_heads": 2}
    if family in ("idefics3", "smolvlm"):
        whole["scale_factor"] = pick.choice([2, 3])
    if family in ("cohere2_vision", "aya_vision"):
        whole["alignment_intermediate_size"] = 40
    if family == "internvl":
        whole["downsample_ratio"] = 0.5
    if family == "gemma3":
        whole["mm_tokens_per_image"] = 4
    return whole
