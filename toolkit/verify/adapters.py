"""Low-rank adapters on a dry model, as the fine-tuning program puts them."""

from __future__ import annotations

from typing import Any

from toolkit.errors import ToolkitError
from toolkit.plan import Plan

TARGETS: dict[str, Any] = {"all-linear": "all-linear", "attention": ["q_proj", "k_proj", "v_proj", "o_proj"]}


def with_adapters(plan: Plan, model: Any) -> Any:
    """The model with peft's adapters, the base frozen; the model itself where the whole of it is trained."""
    if plan.workload.method == "full":
        return model
    try:
        import peft
    except ImportError as error:
        raise ToolkitError(
            f"method {plan.workload.method} needs peft: the dry run is its own code", remedy="pip install '.[peft]'"
        ) from error
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=plan.workload.lora_rank,
        lora_alpha=plan.contract.lora_alpha,
        lora_dropout=0.0,
        target_modules=TARGETS[plan.workload.lora_targets],
    )
    if plan.strategy.recompute == 2:
        model.enable_input_require_grads()
    return peft.get_peft_model(model, config)
