"""Bytes of element-wise work against every operator that real layers issue, forward and backward.

Three and two layers of a transformers model on torch's meta device; the difference is one layer. Counted are the
operands and results of all operators but matrix products, attention (a stand-in) and views.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest

from tests.estimate.shapes import llama
from toolkit.estimate.layer_elementwise import adapter_traffic, elementwise
from toolkit.estimate.precision import stream_bytes
from toolkit.estimate.work import layer_work
from toolkit.registry.models import load_model
from toolkit.workload import Workload

WIDTH, MLP, TOKENS = 1024, 2816, 64
SHAPE = {"vocab_size": 512, "hidden_size": WIDTH, "intermediate_size": MLP, "num_attention_heads": 8}
GPT2 = {"vocab_size": 512, "n_embd": WIDTH, "n_head": 8, "n_inner": MLP}
GPT2 |= dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.0)
PLAIN = {"gated_mlp": False, "norm_bias": True, "hidden_act": "gelu_new", "fused_qkv": True, "learned_positions": 1024}
PRODUCTS = ("mm", "addmm", "bmm")
VIEWS = (
    "view",
    "t",
    "transpose",
    "_unsafe_view",
    "expand",
    "slice",
    "unsqueeze",
    "detach",
    "split",
    "arange",
    "select",
)


def work_of(**fields: Any) -> Any:
    shape = SHAPE | {"num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 2} | fields
    return layer_work(llama(**shape), Workload(sequence_length=TOKENS))


@functools.cache
def operators() -> Any:
    """A dispatch mode that adds up what each operator reads and writes, and the stand-in for attention."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counted(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.moved = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if function.overloadpacket.__name__ not in (*PRODUCTS, *VIEWS, "empty", "empty_like", "sum"):
                for tensor in tree_leaves((args, kwargs, result)):
                    if isinstance(tensor, torch.Tensor):  # what is broadcast is read once
                        used = [size for size, step in zip(tensor.shape, tensor.stride(), strict=True) if step]
                        self.moved += functools.reduce(lambda a, b: a * b, used, tensor.element_size())
            return result

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            ctx.save_for_backward(q, k, v)
            return torch.empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3], dtype=q.dtype, device=q.device)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors)

    return Counted, Attention


def moved(kind: str, layers: int, config: dict[str, Any]) -> tuple[int, int]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    counted, attention = operators()
    ALL_ATTENTION_FUNCTIONS["moves_nothing"] = lambda module, q, k, v, mask, **_: (attention.apply(q, k, v), None)
    settings = AutoConfig.for_model(kind, num_hidden_layers=layers, use_cache=False, **config)
    settings._attn_implementation = "moves_nothing"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings).to(torch.bfloat16).train()
    ids = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    with counted() as forward:
        out = model(input_ids=ids, position_ids=torch.arange(TOKENS, device="meta")[None]).logits.float().sum()
    with counted() as backward:
        out.backward()
    return forward.moved, backward.moved


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "config", "fields"),
    [
        ("llama", SHAPE | {"num_key_value_heads": 8}, {}),
        ("llama", SHAPE | {"num_key_value_heads": 2}, {"num_key_value_heads": 2}),
        ("qwen3", SHAPE | {"num_key_value_heads": 8, "head_dim": 128}, {"qk_norm": "head"}),
        ("gpt2", GPT2, PLAIN),
    ],
)
def test_an_eager_layer_moves_what_its_operators_move(
    kind: str, config: dict[str, Any], fields: dict[str, Any]
) -> None:
    three, two = moved(kind, 3, config), moved(kind, 2, config)
    forward, backward = ((more - less) / TOKENS for more, less in zip(three, two, strict=True))
    ours = elementwise(work_of(**fields), Workload(sequence_length=TOKENS), "fsdp")
    assert ours.whole_forward + ours.sharded_forward == pytest.approx(forward, rel=0.05)
    assert ours.whole_backward + ours.sharded_backward == pytest.approx(backward, rel=0.08)


def test_fused_kernels_move_less() -> None:
    """A fused RMSNorm reads and writes once where eager operators move nine times as much."""
    work = work_of()
    eager, fused = (elementwise(work, Workload(kernels=name), "fsdp") for name in ("default", "fused"))
    assert eager.whole_forward - 12 * WIDTH == pytest.approx(9 * (fused.whole_forward - 12 * WIDTH))
    assert elementwise(work, Workload(), "megatron") == fused
    plain = work_of(**PLAIN | {"hidden_act": "gelu"})
    single = elementwise(plain, Workload(), "fsdp"), elementwise(plain, Workload(), "megatron")
    assert single[0].sharded_forward == single[1].sharded_forward  # GELU is one kernel anyway


def test_autocast_moves_a_float32_stream() -> None:
    work = work_of()
    assert elementwise(work, Workload(), "ddp").whole_forward > elementwise(work, Workload(), "fsdp").whole_forward


def test_adapters_in_float32_move_most() -> None:
    wide, narrow = (adapter_traffic(Workload(), framework) for framework in ("fsdp", "deepspeed"))
    fused = adapter_traffic(Workload(kernels="fused"), "fsdp")
    assert all(most > more >= less for most, more, less in zip(wide, narrow, fused, strict=True))


def test_biases_and_limits_of_experts_are_kernels_of_their_own_in_megatron() -> None:
    """gpt-oss beside the same model without them; PyTorch's frameworks bring kernels that fuse both."""
    model = load_model("gpt-oss-120b")
    plain = msgspec.structs.replace(model, model_type="mixtral", expert_bias=False)
    for framework, kernels, more in (("megatron", "default", True), ("fsdp", "fused", False)):
        work = Workload(kernels=kernels)
        with_, without = (elementwise(layer_work(each, work), work, framework) for each in (model, plain))
        # 28 bytes for the bias of each of 2,880 values and 4 experts, 4 passes of 2 bytes over gate and up
        expected = 4 * 2880 * (28.0 + 4.0 * 2.0 * 2.0) if more else 0.0
        assert with_.sharded_forward - without.sharded_forward == pytest.approx(expected)


@pytest.mark.parametrize("method", ["lora", "qlora"])
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("framework", ["ddp", "deepspeed", "fsdp"])
def test_a_frozen_base_has_a_stream_of_its_own_type(framework: str, precision: str, method: str) -> None:
    """The fine-tuning program loads it in 16 bits; DDP that trains all weights keeps them, and its stream, wide."""
    each = 4.0 if precision == "fp32" else 2.0
    assert stream_bytes(Workload(method=method, precision=precision), framework) == each
    assert stream_bytes(Workload(precision=precision), framework) == (4.0 if framework == "ddp" else each)
    work, asked = work_of(), Workload(method=method, precision=precision)
    assert elementwise(work, asked, framework) == elementwise(work, asked, "deepspeed")


@pytest.mark.slow
def test_peft_under_autocast_leaves_16_bits() -> None:
    """What stream_bytes and adapter_traffic say of DDP, seen in the libraries on a processor."""
    import peft
    import torch
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
    )
    base = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear"))
    seen: dict[str, tuple[torch.dtype, torch.dtype]] = {}

    def note(name: str):
        def hook(module, inputs, output) -> None:
            value = output[0] if isinstance(output, tuple) else output
            seen[name] = inputs[0].dtype, value.dtype

        return hook

    for name, module in model.named_modules():
        if name.endswith((".q_proj", "lora_A.default", "input_layernorm")):
            module.register_forward_hook(note(name))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(input_ids=torch.arange(16).reshape(1, 16))
    weights = {value.dtype for name, value in model.named_parameters() if "lora_" in name}
    assert weights == {torch.float32}
    for name, (given, made) in seen.items():
        assert made == torch.bfloat16, name
        assert given == (torch.float32 if "lora_A" in name else torch.bfloat16), name
    assert len(seen) >= 18
