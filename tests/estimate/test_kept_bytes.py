"""Kept activations of a layer against what autograd of real Hugging Face models saves, byte by byte.

Two and three layers on torch's meta device (or the CPU under autocast); the difference is one layer. Attention is
a stand-in that saves what fused attention saves: queries, keys, values, output, one float32 per head and token.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.estimate.shapes import llama
from toolkit.estimate.layer_bytes import checkpoint_bytes, layer_bytes
from toolkit.model import ModelSpec
from toolkit.workload import Workload

pytestmark = pytest.mark.slow

TOKENS = 48
SHAPE = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
LATENT = {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 352}
NEOX = {"model_type": "gpt_neox", "num_key_value_heads": 8, "gated_mlp": False, "norm_bias": True, "fused_qkv": True}
GPT2 = {"num_key_value_heads": 8, "gated_mlp": False, "norm_bias": True, "hidden_act": "gelu_new", "fused_qkv": True}

# (model_type, fields of ModelSpec, letters, fields of the config)
CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "llama": ("llama", {}, "D", SHAPE),
    "qwen2 bias": ("qwen2", {"attention_bias": True}, "D", SHAPE),
    "qwen3 head norms": ("qwen3", {"qk_norm": "head"}, "D", SHAPE | {"head_dim": 32}),
    "olmo2 full norms": ("olmo2", {"qk_norm": "full", "model_type": "olmo2"}, "D", SHAPE),
    "gemma2": ("gemma2", {"norms_per_layer": 4, "model_type": "gemma2"}, "D", SHAPE | {"head_dim": 32}),
    "phi3 fused": ("phi3", {"fused_qkv": True, "fused_gate_up": True}, "D", SHAPE | {"pad_token_id": 0}),
    "gpt2": (
        "gpt2",
        GPT2 | {"learned_positions": 1024},
        "D",
        {"vocab_size": 512, "n_embd": 256, "n_head": 8, "n_inner": 704}
        | dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.0),
    ),
    "gpt-neox": ("gpt_neox", NEOX, "D", {k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}),
    "mixtral": ("mixtral", EXPERTS, "E", SHAPE | {"intermediate_size": 352, "num_local_experts": 8}),
    "qwen3 experts": ("qwen3_moe", EXPERTS | {"qk_norm": "head"}, "E", SHAPE | EXPERTS | {"head_dim": 32}),
    "deepseek latent": (
        "deepseek_v3",
        LATENT | {"num_key_value_heads": 8, "head_dim": 48},
        "D",
        SHAPE | LATENT | {"num_key_value_heads": 8, "first_k_dense_replace": 9},
    ),
}


def spec(**changes: Any) -> ModelSpec:
    return llama(**(SHAPE | {"head_dim": 32, "num_hidden_layers": 2} | changes))


def saved_bytes(kind: str, layers: int, autocast: bool = False, recompute: bool = False, **config: Any) -> int:
    """Bytes of distinct storages that autograd saves in one forward pass, parameters left out."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1])
            ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:3], dtype=torch.float32))
            return out

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            raise NotImplementedError

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **_: Any) -> Any:
        if autocast:  # fused attention is on autocast's 16-bit list
            q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
        return Fused.apply(q, k, v), None

    ALL_ATTENTION_FUNCTIONS["saves_like_fused"] = attend
    device = "cpu" if autocast else "meta"
    settings = AutoConfig.for_model(kind, num_hidden_layers=layers, use_cache=False, **config)
    settings._attn_implementation = "saves_like_fused"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(settings)
    model = model.to(torch.float32 if autocast else torch.bfloat16).train()
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    owned = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
    shapes = {tuple(p.shape) for p in model.parameters()} | {tuple(p.shape)[::-1] for p in model.parameters()}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        cast_weight = autocast and tensor.dtype == torch.bfloat16 and tuple(tensor.shape) in shapes
        if storage._cdata not in owned and not cast_weight:
            kept[storage._cdata] = storage
        return tensor

    ids = torch.zeros(1, TOKENS, dtype=torch.long, device=device)
    mixed = torch.autocast(device, dtype=torch.bfloat16) if autocast else contextlib.nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), mixed:
        model(input_ids=ids, position_ids=torch.arange(TOKENS, device=device)[None])
    return sum(storage.nbytes() for storage in kept.values())


def one_layer(kind: str, **options: Any) -> float:
    return (saved_bytes(kind, 3, **options) - saved_bytes(kind, 2, **options)) / TOKENS


@pytest.mark.parametrize("name", CASES)
def test_a_bf16_layer_keeps_what_autograd_saves(name: str) -> None:
    kind, fields, mlp, config = CASES[name]
    ours = layer_bytes(spec(**fields), Workload(sequence_length=TOKENS), "deepspeed", "A", mlp)
    assert ours.total == pytest.approx(one_layer(kind, **config), rel=0.01)


@pytest.mark.parametrize("name", ["llama", "qwen3 head norms", "gpt-neox", "mixtral"])
def test_an_autocast_layer_keeps_what_autograd_saves(name: str) -> None:
    """float32 parameters under autocast: a float32 stream, and one cast of the input for each matrix."""
    kind, fields, mlp, config = CASES[name]
    ours = layer_bytes(spec(**fields), Workload(sequence_length=TOKENS), "ddp", "A", mlp)
    assert ours.total == pytest.approx(one_layer(kind, autocast=True, **config), rel=0.01)


def test_a_recomputed_layer_keeps_its_input() -> None:
    ours = checkpoint_bytes(spec(), Workload(sequence_length=TOKENS), "deepspeed")
    assert ours == one_layer("llama", recompute=True, **SHAPE)
