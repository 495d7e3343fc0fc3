"""Equation A20: selective recomputation, by the modules that run again.

``Workload.recompute_modules`` joins names with ``+``. Megatron's own (``--recompute-modules``): ``core_attn`` the
attention core, ``layernorm`` the two norms in front of the matrices, ``moe_act`` the activation inside routed experts,
``mla_up_proj`` the up-projections of latent attention, ``mlp`` the dense MLP, ``moe`` the whole layer of experts,
``shared_experts``. ``mlp_act``, the activation inside the dense MLP, is recomputed by Megatron-Kwai
(USENIX ATC 2024) and by other frameworks.
"""

from __future__ import annotations

from toolkit.equation import equation
from toolkit.errors import ToolkitError
from toolkit.estimate import layer_activations as leaf
from toolkit.estimate.layer_bytes import (
    Kernels,
    LayerBytes,
    every_second_product_bytes,
    expert_bytes,
    kernels,
    layer_bytes,
    score_bytes,
)
from toolkit.model import ModelSpec
from toolkit.workload import RECOMPUTED, Workload

MODULES = RECOMPUTED


def modules(workload: Workload) -> frozenset[str]:
    """The names in ``recompute_modules``; raises ToolkitError for one that is not known."""
    names = frozenset(name for name in workload.recompute_modules.split("+") if name)
    for name in sorted(names - set(MODULES)):
        raise ToolkitError(f"unknown module to recompute {name!r}", remedy=f"known: {', '.join(MODULES)}")
    return names


def selective_bytes(model: ModelSpec, workload: Workload, framework: str, mixer: str, mlp: str) -> LayerBytes:
    """What one layer keeps with selective recomputation.

    Megatron: all but what ``recompute_modules`` free (A20). Others (torchtitan's op-level policy): layer input,
    attention output, and every second matrix product; with ``mlp`` among the names all products but the MLP's
    (MaxText's ``save_dot_with_context_except_mlp``).
    """
    if framework != "megatron" and "mlp" in modules(workload):
        return _attention_products(model, workload, framework, mixer, mlp)
    if framework != "megatron":
        return every_second_product_bytes(model, workload, framework, mixer, mlp)
    names, k = modules(workload), kernels(model, workload, framework)
    kept = layer_bytes(model, workload, framework, mixer, mlp)
    if mixer in "AB":
        kept = kept.plus(_attention_freed(model, workload, k, names))
    if mlp in "DE":
        kept = kept.plus(_mlp_freed(model, workload, k, names, mlp))
    return kept


@equation("A20", "-b*(2*H*(d_n + d_r) + H*d_v)")
def up_projections_bytes(bytes_per_value: float, heads: int, nope_dim: int, rope_dim: int, value_dim: int) -> float:
    """Queries, keys and values of latent attention, made again from their latents.

    Source: megatron-core 0.16.1 ``core/transformer/multi_latent_attention.py`` (``recompute_up_proj``).
    """
    return -bytes_per_value * (2.0 * heads * (nope_dim + rope_dim) + 1.0 * heads * value_dim)


def _attention_products(model: ModelSpec, workload: Workload, framework: str, mixer: str, mlp: str) -> LayerBytes:
    """Layer input, queries, keys, values, attention output, and its product. Source: MaxText ``layers/decoders.py``."""
    k = kernels(model, workload, framework)
    full = layer_bytes(model, workload, framework, mixer, mlp)
    queries = model.num_attention_heads * (model.v_head_dim or model.head_dim)
    keys = model.num_key_value_heads * model.head_dim
    products = 2.0 * queries + 2.0 * keys + model.hidden_size if mixer in "AB" else 0.0
    return LayerBytes(0.0, min(k.stream * model.hidden_size + k.compute * products, full.total))


def _attention_freed(model: ModelSpec, workload: Workload, k: Kernels, names: frozenset[str]) -> LayerBytes:
    """Attention core: its scores; with flash attention nothing is saved, and the view of the values keeps the joint
    query-key-value buffer alive (seen in the dry run). Norm: the input of the first matrices.
    """
    freed = LayerBytes(0.0, 0.0)
    if "core_attn" in names and workload.attention != "flash":
        freed = freed.plus(LayerBytes(0.0, -score_bytes(model, workload, k)))
    elif "core_attn" in names and not model.is_mla:
        queries = model.num_attention_heads * (model.v_head_dim or model.head_dim)
        keys = model.num_key_value_heads * model.head_dim
        freed = freed.plus(LayerBytes(0.0, k.compute * (queries + keys)))
    if "layernorm" in names:
        freed = freed.plus(LayerBytes(-leaf.input_bytes(1.0, k.matmul_input, model.hidden_size, 0), 0.0))
    if "mla_up_proj" in names and model.is_mla:
        dims = (model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim)
        freed = freed.plus(LayerBytes(0.0, up_projections_bytes(k.compute, model.num_attention_heads, *dims)))
    return freed


def _mlp_freed(model: ModelSpec, workload: Workload, k: Kernels, names: frozenset[str], mlp: str) -> LayerBytes:
    """A module that runs again keeps its input alone; an activation that does, what goes into it."""
    per_width = k.gated if model.gated_mlp else k.ungated
    opening = leaf.input_bytes(1.0, k.matmul_input, model.hidden_size, 0)
    replicated = -opening if "layernorm" in names and model.norms_per_layer > 1 else 0.0
    if mlp == "D":
        inside = per_width if "mlp" in names else k.matmul_input if "mlp_act" in names else 0.0
        return LayerBytes(replicated, -leaf.mlp_bytes(inside, model.intermediate_size))
    shared = leaf.mlp_bytes(per_width, model.shared_expert_intermediate_size)
    if "moe" in names:
        whole = expert_bytes(model, workload, k)
        return LayerBytes(replicated - whole.replicated + opening, -whole.sharded, -whole.dispatched, -whole.inside)
    act = k.matmul_input + (0.0 if model.gated_mlp else k.compute)
    routed = model.num_experts_per_tok * act * model.moe_intermediate_size if "moe_act" in names else 0.0
    return LayerBytes(replicated, -shared if "shared_experts" in names else 0.0, 0.0, -routed)
