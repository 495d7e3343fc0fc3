"""The transformers model of a plan, whose attention keeps what flash attention keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.transformers_shapes import llama_like_config
from toolkit.verify.fake import FlashAttention

OPTIMIZERS = ("adamw", "adamw_unfused")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def configuration(plan: Plan) -> Any:
    """From the folder with config.json that the contract names, else from the shape."""
    import transformers

    folder = Path(plan.contract.model).expanduser()
    layers = plan.model.num_hidden_layers
    if (folder / "config.json").is_file():
        config = transformers.AutoConfig.from_pretrained(str(folder))
        text = config.get_text_config()
        text.num_hidden_layers = layers
        if getattr(text, "layer_types", None):
            text.layer_types = text.layer_types[:layers]
    else:
        shape = llama_like_config(plan.model, plan.contract.sequence_length)
        config = transformers.AutoConfig.for_model(plan.model.model_type, **shape)
    config.use_cache = False
    return config


def causal_model(plan: Plan, config: Any, dtype: torch.dtype) -> Any:
    """The model, in training mode."""
    import transformers

    if plan.workload.attention == "flash":
        _register_flash()
    kind = "counted" if plan.workload.attention == "flash" else "eager"
    factory: Any = transformers.AutoModelForCausalLM
    return factory.from_config(config, dtype=dtype, attn_implementation=kind).train()


def _register_flash() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **_: Any) -> tuple[torch.Tensor, None]:
        # as transformers' flash_attention_forward: [b, s, heads, d], keys not repeated
        query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
        return FlashAttention.apply(query, key, value), None  # type: ignore[no-untyped-call]

    ALL_ATTENTION_FUNCTIONS.register("counted", attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register("counted", lambda *_, **__: None)


def parameter_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups, as the Trainer makes them: norms and biases are not decayed."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def matrix(parameter: Any) -> bool:
        return len(getattr(parameter, "ds_shape", parameter.shape)) > 1

    return [
        {"params": [p for p in trained if matrix(p)], "weight_decay": weight_decay},
        {"params": [p for p in trained if not matrix(p)], "weight_decay": 0.0},
    ]


def require_runnable(plan: Plan) -> None:
    """What these dry runs cannot show; raises ToolkitError."""
    work = plan.workload
    if work.method == "qlora":
        raise ToolkitError("qlora: 4-bit kernels need a GPU", remedy="verify a plan with --method lora")
    if work.optimizer not in OPTIMIZERS:
        raise ToolkitError(
            f"optimizer {work.optimizer}: only AdamW is dry-run", remedy=f"verify with {' or '.join(OPTIMIZERS)}"
        )


def adamw(plan: Plan, parameters: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimizer: one fused kernel, or lists of tensors."""
    fused = plan.workload.optimizer == "adamw"
    return torch.optim.AdamW(parameters, lr=1e-4, fused=fused, foreach=not fused)
