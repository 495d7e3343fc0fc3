"""State-space models and their mixtures with attention.

Each function states what the modelling file of transformers 5.24 builds for its family.
"""

from __future__ import annotations

from collections.abc import Callable

from toolkit.decode.common import Fields, attention, heads, mixer_letters, routed, trunk
from toolkit.decode.reader import MOST, Reader, Unsupported


def mamba_only(fields: Fields) -> Fields:
    """Every layer is one norm and a Mamba mixer: no attention, no MLP."""
    layers = fields["num_hidden_layers"]
    none = dict.fromkeys(("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"), 0)
    return fields | none | {"mixers": "M" * layers, "mlps": "-" * layers, "norms_per_layer": 1}


def time_step_rank(read: Reader, key: str, hidden: int) -> int:
    """Rank of the time step; ``auto`` is a sixteenth of the width, rounded up."""
    value = read.raw(key)
    if value is None or value == "auto":
        known = read.default(key)
        return known if isinstance(known, int) else -(-hidden // 16)
    return read.checked(value, key, 1, MOST)


def _mamba(read: Reader) -> Fields:
    fields = trunk(read)
    hidden = fields["hidden_size"]
    inner = read.count("intermediate_size", default=read.count("expand") * hidden)
    expected = read.count("expand") * hidden
    if inner != expected:  # the configuration class computes it and ignores what the file says
        read.notes.append(f"intermediate_size {inner} is ignored: expand * hidden_size = {expected}")
    return mamba_only(fields) | {
        "state_size": read.count("state_size"),
        "conv_kernel": read.count("conv_kernel"),
        "time_step_rank": time_step_rank(read, "time_step_rank", hidden),
        "mamba_intermediate_size": expected,
        "mamba_conv_bias": read.flag("use_conv_bias"),
        "mamba_proj_bias": read.flag("use_bias"),
    }


def _mamba2(read: Reader) -> Fields:
    fields = trunk(read)
    inner, number = read.count("expand") * fields["hidden_size"], read.count("num_heads")
    if inner != number * read.count("head_dim"):
        read.problems.add(
            f"num_heads {number} * head_dim {read.count('head_dim')} is not expand * hidden_size {inner}",
            "correct one of them",
        )
    return mamba_only(fields) | {
        "state_size": read.count("state_size"),
        "conv_kernel": read.count("conv_kernel"),
        "mamba_intermediate_size": inner,
        "mamba_num_heads": number,
        "mamba_groups": read.count("n_groups"),
        "mamba_conv_bias": read.flag("use_conv_bias"),
        "mamba_proj_bias": read.flag("use_bias"),
    }


def _mamba2_beside(read: Reader, inner: int) -> Fields:
    """The Mamba-2 mixer of Bamba, Granite hybrids and Falcon-H1."""
    return {
        "state_size": read.count("mamba_d_state"),
        "conv_kernel": read.count("mamba_d_conv"),
        "mamba_intermediate_size": inner,
        "mamba_num_heads": read.count("mamba_n_heads"),
        "mamba_groups": read.count("mamba_n_groups"),
        "mamba_conv_bias": read.flag("mamba_conv_bias"),
        "mamba_proj_bias": read.flag("mamba_proj_bias"),
    }


def _bamba(read: Reader) -> Fields:
    fields = attention(read)
    chosen = set(read.items("attn_layer_indices", int) or ())
    fields |= _mamba2_beside(read, read.count("mamba_expand") * fields["hidden_size"])
    return fields | {
        "mixers": "".join("A" if i in chosen else "M" for i in range(fields["num_hidden_layers"])),
        "intermediate_size": read.count("intermediate_size", core=True),
        "mlp_bias": read.flag("mlp_bias"),
    }


def _falcon_h1(read: Reader) -> Fields:
    fields = attention(read)
    inner = read.count("mamba_d_ssm", default=read.count("mamba_expand") * fields["hidden_size"])
    if read.raw("mamba_d_ssm") is None and "mamba_d_ssm" not in read.values:
        inner = read.count("mamba_d_ssm")
    fields |= _mamba2_beside(read, inner)
    if fields["mamba_proj_bias"] != read.flag("projectors_bias"):
        raise Unsupported("falcon_h1 with mamba_proj_bias unlike projectors_bias")
    return fields | {
        "mixers": "B" * fields["num_hidden_layers"],
        "mamba_gated_norm": read.flag("mamba_rms_norm"),
        "intermediate_size": read.count("intermediate_size", core=True),
        "mlp_bias": read.flag("mlp_bias"),
    }


def _granitemoehybrid(read: Reader) -> Fields:
    fields = attention(read)
    layers = fields["num_hidden_layers"]
    fields |= _mamba2_beside(read, read.count("mamba_expand") * fields["hidden_size"])
    fields["mixers"] = (
        mixer_letters(read, layers, "M") or mixer_letters(read, layers, "M", "layers_block_type") or "M" * layers
    )
    shared = read.count("shared_intermediate_size")
    if read.count("num_local_experts", "num_experts", least=0) == 0:
        return fields | {"intermediate_size": shared, "fused_gate_up": True}
    fields |= routed(read, ("num_local_experts",), ("num_experts_per_tok",), ("intermediate_size",))
    return fields | {
        "intermediate_size": fields["moe_intermediate_size"],
        "num_shared_experts": 1,
        "shared_expert_intermediate_size": shared,
        "fused_gate_up": True,
    }


def _jamba(read: Reader) -> Fields:
    fields = trunk(read)
    fields |= heads(read, fields["hidden_size"], head_dim=False)
    layers, hidden = fields["num_hidden_layers"], fields["hidden_size"]
    period, offset = read.count("attn_layer_period"), read.count("attn_layer_offset", least=0)
    every, first = read.count("expert_layer_period"), read.count("expert_layer_offset", least=0)
    width = read.count("intermediate_size", core=True)
    fields |= {
        "intermediate_size": width,
        "mixers": "".join("A" if i % period == offset else "M" for i in range(layers)),
        "state_size": read.count("mamba_d_state"),
        "conv_kernel": read.count("mamba_d_conv"),
        "mamba_intermediate_size": read.count("mamba_expand") * hidden,
        "time_step_rank": time_step_rank(read, "mamba_dt_rank", hidden),
        "mamba_conv_bias": read.flag("mamba_conv_bias"),
        "mamba_proj_bias": read.flag("mamba_proj_bias"),
        "mamba_inner_norms": True,
    }
    if read.count("num_experts") == 1:
        return fields
    fields |= routed(read, ("num_experts",), ("num_experts_per_tok",), ("intermediate_size",))
    return fields | {"mlps": "".join("E" if i % every == first else "D" for i in range(layers))}


FAMILIES: dict[str, Callable[[Reader], Fields]] = {
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    "mamba2": _mamba2,
    "bamba": _bamba,
    "falcon_h1": _falcon_h1,
    "granitemoehybrid": _granitemoehybrid,
    "jamba": _jamba,
}
