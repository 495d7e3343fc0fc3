"""LoRA and QLoRA: which matrices have adapters, and the base in 4 bits."""

from __future__ import annotations

from typing import Any

from toolkit.errors import ToolkitError
from toolkit.plan import Plan


def half_precision(plan: Plan) -> Any:
    """The contract's 16 bits, or fp32 where it has none."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(plan.contract.precision, torch.float32)


def quantization(plan: Plan) -> dict[str, Any]:
    """Keywords of ``from_pretrained`` for a base in 4 bits: NF4, its scales quantised too (QLoRA, arXiv 2305.14314)."""
    if plan.contract.method != "qlora":
        return {}
    from transformers import BitsAndBytesConfig
    from transformers.utils import is_bitsandbytes_available

    if not is_bitsandbytes_available():  # installed, which the checks have seen, but not usable here
        raise ToolkitError("method qlora needs bitsandbytes and a GPU that it knows", remedy="pip install '.[qlora]'")
    return {
        "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=half_precision(plan),
            bnb_4bit_quant_storage=half_precision(plan),  # what FSDP and ZeRO-3 can shard
        )
    }


def settings(plan: Plan) -> Any:
    """``peft.LoraConfig`` of the contract."""
    import peft

    targets = {"all-linear": "all-linear", "attention": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    contract = plan.contract
    if contract.lora_targets not in targets:
        raise ToolkitError(f"lora_targets {contract.lora_targets!r} is not one of {', '.join(targets)}")
    return peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=contract.lora_rank,
        lora_alpha=contract.lora_alpha,
        lora_dropout=contract.lora_dropout,
        target_modules=targets[contract.lora_targets],
    )


def attach(plan: Plan, model: Any) -> Any:
    """The model frozen, with trained adapters ``alpha / rank B A`` beside its matrices; B starts at 0."""
    import peft
    import torch

    config = settings(plan)
    torch.manual_seed(plan.contract.seed)  # the adapters start alike on every rank
    model.enable_input_require_grads()  # or recomputed layers of a frozen base would have no gradient
    return peft.get_peft_model(model, config)
