"""GPT-2 and the decoders of its time: LayerNorm with biases, plain MLPs, learned positions, parallel residuals.

Each function states what the modelling file of transformers 5.24 builds for its family.
"""

from __future__ import annotations

from collections.abc import Callable

from toolkit.decode.common import Fields, heads, trunk
from toolkit.decode.reader import MOST_LAYERS, Reader


def _classic(read: Reader, **differences: object) -> Fields:
    """GPT-2's layers: biases everywhere, two norms, MLP four times as wide unless the config says otherwise."""
    fields = trunk(read)
    fields |= heads(read, fields["hidden_size"], head_dim=False)
    fields |= {
        "intermediate_size": 4 * fields["hidden_size"],
        "gated_mlp": False,
        "attention_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
    }
    return fields | differences


def _gpt2(read: Reader) -> Fields:
    fields = _classic(read, fused_qkv=True)
    fields["intermediate_size"] = read.count("n_inner", default=4 * fields["hidden_size"])
    fields["learned_positions"] = read.count("n_positions", "max_position_embeddings")
    if read.flag("add_cross_attention"):
        read.problems.add(
            "add_cross_attention is true: an encoder-decoder is not supported", "plan decoder-only models"
        )
    return fields


def _openai_gpt(read: Reader) -> Fields:
    return _classic(
        read, fused_qkv=True, learned_positions=read.count("n_positions", "max_position_embeddings"), final_norm=False
    )


def _gpt_bigcode(read: Reader) -> Fields:
    fields = _gpt2(read)
    number = fields["num_attention_heads"]
    groups = 1 if read.flag("multi_query") else read.count("num_key_value_heads", default=number)
    return fields | {"num_key_value_heads": groups}


def _gpt_neo(read: Reader) -> Fields:
    fields = _classic(read, attention_bias=False)
    layers = fields["num_hidden_layers"]
    fields["intermediate_size"] = read.count("intermediate_size", default=4 * fields["hidden_size"])
    fields["learned_positions"] = read.count("max_position_embeddings")
    return fields | {"sliding_window": read.count("window_size", default=256), "sliding_window_layers": layers // 2}


def _gpt_neox(read: Reader) -> Fields:
    biases = read.flag("attention_bias")
    width = read.count("intermediate_size", core=True)
    fields = _classic(read, fused_qkv=True, attention_bias=biases, attention_output_bias=biases)
    return fields | {"intermediate_size": width, "parallel_residual": read.flag("use_parallel_residual")}


def _gpt_neox_japanese(read: Reader) -> Fields:
    fields = _classic(read, fused_qkv=True, attention_bias=False, attention_output_bias=False, mlp_bias=False)
    fields["intermediate_size"] = read.count("intermediate_multiple_size") * fields["hidden_size"]
    # one output bias only, in the last layer
    return fields | {"other_parameters": {"last_attention_bias": fields["hidden_size"]}}


def _gptj(read: Reader) -> Fields:
    fields = _classic(read, attention_bias=False, attention_output_bias=False, norms_per_layer=1, lm_head_bias=True)
    fields["intermediate_size"] = read.count("n_inner", default=4 * fields["hidden_size"])
    return fields


def _codegen(read: Reader) -> Fields:
    return _gptj(read) | {"fused_qkv": True}


def _opt(read: Reader) -> Fields:
    fields = _classic(read)
    biases, affine = read.flag("enable_bias"), read.flag("layer_norm_elementwise_affine")
    width = read.count("word_embed_proj_dim", default=fields["hidden_size"])
    final = read.flag("do_layer_norm_before") and not read.flag("_remove_final_layer_norm")
    return fields | {
        "intermediate_size": read.count("ffn_dim", "intermediate_size", core=True),
        "attention_bias": biases,
        "attention_output_bias": biases,
        "mlp_bias": biases,
        "learned_positions": read.count("max_position_embeddings") + 2,  # two rows for padding
        "embedding_size": width if width != fields["hidden_size"] else 0,
        "norms_per_layer": 2 if affine else 0,
        "final_norm": final and affine,
    }


def _bloom(read: Reader) -> Fields:
    return _classic(read, fused_qkv=True, embedding_norm=True)


def _falcon(read: Reader) -> Fields:
    fields = _classic(read, fused_qkv=True)
    number, biases = fields["num_attention_heads"], read.flag("bias")
    new, parallel = read.flag("new_decoder_architecture"), read.flag("parallel_attn")
    if new:
        groups, norms = read.count("num_kv_heads", default=number), read.count("num_ln_in_parallel_attn", default=2)
    else:  # one head whatever num_kv_heads says
        groups, norms = 1 if read.flag("multi_query") else number, 1 if parallel else 2
    if number % groups:
        read.problems.add(f"num_kv_heads {groups} does not divide num_attention_heads {number}", "correct one of them")
    return fields | {
        "num_key_value_heads": groups,
        "intermediate_size": read.count("ffn_hidden_size", default=4 * fields["hidden_size"]),
        "attention_bias": biases,
        "attention_output_bias": biases,
        "mlp_bias": biases,
        "norms_per_layer": norms,
        "parallel_residual": new or parallel,
    }


def _mpt(read: Reader) -> Fields:
    # no biases whatever no_bias says, and ALiBi whatever learned_pos_emb says; the MLP is always 4 wide
    fields = _classic(
        read, fused_qkv=True, attention_bias=False, attention_output_bias=False, mlp_bias=False, norm_bias=False
    )
    return fields | {"unbiased_layer_norm": True}


def _biogpt(read: Reader) -> Fields:
    positions = read.count("max_position_embeddings") + 2
    width = read.count("intermediate_size", core=True)
    return _classic(read, learned_positions=positions, intermediate_size=width)


def _xglm(read: Reader) -> Fields:
    fields = trunk(read, ("num_layers", "num_hidden_layers"))
    number = read.count("attention_heads", "num_attention_heads", core=True)
    hidden = fields["hidden_size"]
    return fields | {
        "num_attention_heads": number,
        "num_key_value_heads": number,
        "head_dim": max(hidden // number, 1),
        "intermediate_size": read.count("ffn_dim", core=True),
        "gated_mlp": False,
        "attention_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
    }


def _ctrl(read: Reader) -> Fields:
    return _classic(read, intermediate_size=read.count("dff", core=True), lm_head_bias=True)


def _chatglm(read: Reader) -> Fields:
    """ChatGLM2, ChatGLM3 and GLM-4 in their own repository's keys."""
    layers = read.count("num_layers", "num_hidden_layers", core=True, most=MOST_LAYERS)
    number = read.count("num_attention_heads", core=True)
    hidden = read.count("hidden_size", core=True)
    groups = read.count("multi_query_group_num") if read.flag("multi_query_attention") else number
    biases = read.flag("add_bias_linear")
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": number,
        "num_key_value_heads": groups,
        "head_dim": read.count("kv_channels", default=max(hidden // number, 1)),
        "intermediate_size": read.count("ffn_hidden_size", core=True),
        "vocab_size": read.count("padded_vocab_size", "vocab_size", core=True),
        "max_position_embeddings": read.count("seq_length", default=0, least=0),
        "tie_word_embeddings": read.flag("tie_word_embeddings", default=False),
        "attention_bias": read.flag("add_qkv_bias") or biases,
        "attention_output_bias": biases,
        "mlp_bias": biases,
        "norm_bias": not read.flag("rmsnorm", default=True),
        "final_norm": read.flag("post_layer_norm", default=True),
        "fused_qkv": True,
        "fused_gate_up": True,
    }


FAMILIES: dict[str, Callable[[Reader], Fields]] = {
    "gpt2": _gpt2,
    "gpt-sw3": _gpt2,
    "openai-gpt": _openai_gpt,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "gpt_neox": _gpt_neox,
    "gpt_neox_japanese": _gpt_neox_japanese,
    "gptj": _gptj,
    "codegen": _codegen,
    "opt": _opt,
    "bloom": _bloom,
    "falcon": _falcon,
    "mpt": _mpt,
    "biogpt": _biogpt,
    "xglm": _xglm,
    "ctrl": _ctrl,
    "chatglm": _chatglm,
}
