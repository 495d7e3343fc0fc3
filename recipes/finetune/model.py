"""The model of a plan: weights from a path or the hub, or seeded random ones from a shape."""

from __future__ import annotations

import hashlib
from typing import Any

from recipes import hub
from recipes.finetune import adapters, fitting
from recipes.finetune.checks import is_cpu
from recipes.model_source import has_weights, hub_or_path, require_source
from recipes.tokenizer import require_rows
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.registry.files import expanded, is_there
from toolkit.transformers_shapes import llama_like_config

INITIAL_STD = 0.02  # where a shape does not say: initializer_range of these architectures


def load_model(plan: Plan, tokenizer: Any) -> tuple[Any, str]:
    """The model, with adapters where the method has them, and one sentence that says where its weights come from.

    Call after TrainingArguments exist: under ZeRO-3 they make the model come into being already sharded.
    """
    import transformers

    contract = plan.contract
    # DeepSpeed casts the whole model and keeps its own fp32 master copy; a frozen base needs none
    half = plan.strategy.framework == "deepspeed" or contract.method != "full"
    transformers.set_seed(contract.seed)
    model, said = load_base(plan, tokenizer, half, **adapters.quantization(plan))
    _check_size(plan, model)
    require_rows(tokenizer, model.config.get_text_config().vocab_size)
    if contract.method == "full" or contract.objective == "dpo":  # whose trainer attaches the adapters
        return model, said
    return adapters.attach(plan, model), said


def load_reference(plan: Plan, tokenizer: Any) -> Any:
    """The model that training starts from, frozen; nothing for adapters, without which the trained model is it."""
    if plan.contract.method != "full":
        return None
    reference, _ = load_base(plan, tokenizer, plan.strategy.framework == "deepspeed")
    return reference.requires_grad_(False).eval()


def load_base(plan: Plan, tokenizer: Any, half: bool, **quantization: Any) -> tuple[Any, str]:
    """The model that training starts from; ``half``: in the contract's 16 bits, else in fp32."""
    import torch
    import transformers

    require_source(plan)
    source, contract = hub_or_path(plan), plan.contract
    dtype = adapters.half_precision(plan) if half else torch.float32
    keywords: dict[str, Any] = {"dtype": dtype, "attn_implementation": _attention(plan)}
    local = not source or is_there(expanded(source))
    if not local:
        hub.settle()
    try:
        if source and has_weights(source) and contract.init == "model":
            config = _configuration(plan, source)
            if is_there(folder := expanded(source)):
                fitting.require_floats(folder)
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                source,
                config=config,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, with their names
                **quantization,
                **keywords,
            )
            said = "; ".join((f"weights from {source}", *fitting.require_whole(source, model, info)))
        else:
            if source:
                config = _configuration(plan, source)
            else:
                shape = llama_like_config(plan.model, contract.sequence_length)
                special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
                config = transformers.AutoConfig.for_model(plan.model.model_type, **shape, **special)
            model = transformers.AutoModelForCausalLM.from_config(config, **keywords)
            if not source or _is_plain(plan):
                initialise(model, contract.seed, plan.model.initializer_range or INITIAL_STD)
            why = "init is random" if contract.init == "random" else "it gives a shape, no weights"
            said = f"random weights (seed {contract.seed}) for {source or plan.model.name!r}: {why}"
    except (ToolkitError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a shape or a file that cannot be right fails anywhere in the libraries
        raise ToolkitError(
            f"cannot make the model {contract.model!r}: "
            + (hub.reason(error) if not local else " ".join(str(error).split()) or type(error).__name__),
            remedy="check the name, the files of its folder (config.json, safetensors), or plan again with --model",
        ) from error
    _settle_padding(model, tokenizer)
    return model, said


def _configuration(plan: Plan, source: str) -> Any:
    """config.json of the source, with the contract's rotary base where it has one of its own."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(source)
    theta = plan.contract.rope_theta
    if theta:
        rope = getattr(config.get_text_config(), "rope_parameters", None)
        if not isinstance(rope, dict) or "rope_theta" not in rope:
            raise ToolkitError(
                f"rope_theta is {theta}, and the configuration of {source} has no single one",
                remedy="leave rope_theta out",
            )
        rope["rope_theta"] = theta
    return config


def _is_plain(plan: Plan) -> bool:
    """Whether all parameters are matrices, norms and biases, which :func:`initialise` knows how to draw."""
    try:
        llama_like_config(plan.model, plan.contract.sequence_length)
    except ToolkitError:
        return False
    return True


def _settle_padding(model: Any, tokenizer: Any) -> None:
    """The model's padding token is the tokenizer's; a row of the embedding that is looked up must learn."""
    model.config.pad_token_id = tokenizer.pad_token_id
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id
    embedding = model.get_input_embeddings()
    if getattr(embedding, "padding_idx", None) is not None:  # torch gives this row no gradient
        embedding.padding_idx = tokenizer.pad_token_id


def _attention(plan: Plan) -> str:
    """Flash attention where the GPU and an installed package have it, else torch's own choice of kernels (sdpa)."""
    if plan.workload.attention == "eager":
        return "eager"
    if is_cpu(plan) or plan.contract.precision == "fp32":  # the kernels are for 16 bits
        return "sdpa"
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

    if plan.cluster.accelerator.architecture == "hopper" and is_flash_attn_3_available():
        return "flash_attention_3"
    return "flash_attention_2" if is_flash_attn_2_available() else "sdpa"


def initialise(model: Any, seed: int, deviation: float) -> None:
    """Draw every weight from a generator seeded by (seed, name): normal for matrices; norms 1, biases 0.

    Initialised in the order of construction, a sharded model comes out different from a whole one; this
    way the start of training is the same at every ZeRO stage and rank count.
    """
    import torch
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

    zero3 = is_deepspeed_zero3_enabled()
    for name, parameter in model.named_parameters():
        with _gathered(parameter) if zero3 else torch.no_grad(), torch.no_grad():
            if parameter.dim() > 1:
                digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
                generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
                values = torch.empty(parameter.shape).normal_(0.0, deviation, generator=generator)
                parameter.copy_(values.to(parameter.dtype))
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def _gathered(parameter: Any) -> Any:
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter], modifier_rank=0)


def count_parameters(model: Any) -> int:
    """Elements of all parameters, those that ZeRO-3 has sharded counted whole."""
    return sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters())


def describe_size(model: Any) -> str:
    """``804,992 parameters``, and how many of them are trained where not all are."""
    total = count_parameters(model)
    trained = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters() if p.requires_grad)
    return f"{total:,} parameters" + (f", {trained:,} of them trained" if trained < total else "")


def _check_size(plan: Plan, model: Any) -> None:
    """Refuse another model than the planned one; what a text model leaves out (a vision tower) may be missing."""
    counted, planned = count_parameters(model), plan.total_parameters
    text_only = planned - sum(plan.model.other_parameters.values())
    fits = any(abs(counted - expected) <= 0.001 * expected for expected in (planned, text_only))
    if planned and not fits and plan.contract.method != "qlora":  # packed weights have fewer elements
        raise ToolkitError(
            f"the model has {counted:,} parameters, the plan was made for {planned:,}",
            remedy="plan again with --model set to the model that is trained",
        )
