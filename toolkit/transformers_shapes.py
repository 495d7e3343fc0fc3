"""Models of transformers that a ModelSpec describes whole: keywords of their configuration classes."""

from __future__ import annotations

from typing import Any

from toolkit.errors import ToolkitError
from toolkit.model import ModelSpec

# fields of a ModelSpec that are keywords of the configuration classes
SAME_NAMES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
)


def llama_like_config(spec: ModelSpec, sequence_length: int) -> dict[str, Any]:
    """Keywords of the transformers configuration class ``spec.model_type``; raises for any other shape."""
    qkv, output = spec.attention_bias, spec.attention_output_bias
    biases_fit = {
        "llama": qkv == output,
        "mistral": not (qkv or output or spec.mlp_bias),
        "qwen2": qkv and not (output or spec.mlp_bias),
        "qwen3": qkv == output and not spec.mlp_bias,
    }
    plain = (
        spec.gated_mlp
        and not (spec.is_moe or spec.is_mla or spec.mixers or spec.mlps)
        and not (spec.other_parameters or spec.other_layer_parameters or spec.counted_layers)
        and not (spec.norm_bias or spec.learned_positions or spec.lm_head_bias or spec.embedding_norm)
        and spec.norms_per_layer == 2
        and spec.partial_rotary_factor == 1.0
        and spec.qk_norm == ("head" if spec.model_type == "qwen3" else "none")
    )
    if not (plain and biases_fit.get(spec.model_type, False)):
        raise ToolkitError(
            f"cannot build the {spec.model_type} model {spec.name} from its shape alone",
            remedy="set the contract's model to a folder with config.json (and weights), or to a hub name",
        )
    keywords: dict[str, Any] = {name: getattr(spec, name) for name in SAME_NAMES}
    keywords["max_position_embeddings"] = spec.max_position_embeddings or sequence_length
    keywords["hidden_act"] = spec.hidden_act or "silu"
    keywords["rope_parameters"] = _rope_parameters(spec)
    if spec.norm_epsilon:
        keywords["rms_norm_eps"] = spec.norm_epsilon
    if spec.model_type in ("llama", "qwen3"):
        keywords["attention_bias"] = qkv
    if spec.model_type == "llama":
        keywords["mlp_bias"] = spec.mlp_bias
    if spec.model_type == "mistral":
        keywords["sliding_window"] = spec.sliding_window or None
    return keywords


def _rope_parameters(spec: ModelSpec) -> dict[str, Any]:
    """Rotary positions; the scaling is Llama 3.1's, whose other constants are the same in all its models.

    Source: config.json of Llama-3.1-8B (factor 8) and Llama-3.2-1B (factor 32).
    """
    base = {"rope_theta": spec.rope_theta or 10000.0}
    if not spec.rope_scaling_factor:
        return base | {"rope_type": "default"}
    return base | {
        "rope_type": "llama3",
        "factor": spec.rope_scaling_factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
