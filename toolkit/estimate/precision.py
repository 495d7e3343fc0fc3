"""Bytes per parameter of each kind of state, by framework and precision.

============  =======================  ==========  =========  ======  ================
framework     precision                parameters  gradients  master  optimizer states
============  =======================  ==========  =========  ======  ================
ddp, fsdp     bf16 or fp16 (autocast)  4           4          0       8
deepspeed     bf16, fp16               2           2          4       8
megatron      bf16, fp16, fp8          2           4          4       8
megatron      fp8 weights alone        1 + 1       4          4       8
ddp, fsdp     bf16 weights (pure)      2           2          0       4
deepspeed     bf16 master (pure)       2           2          2       4
any           fp32                     4           4          0       8
============  =======================  ==========  =========  ======  ================

Sources: accelerate 1.15 keeps float32 parameters under DDP and casts trainable parameters to float32 for FSDP2;
a model that is bf16 as a whole has gradients and torch.optim states of its own type; DeepSpeed 0.19.8
``runtime/zero/stage_1_and_2.py`` and ``stage3.py``; megatron-core 0.16.1 ``distrib_optimizer.py`` (6 + 12
bytes, as ``theoretical_memory_usage.py`` of Megatron-LM; 8-bit matrices and their transposes, beside the 16-bit ones
unless ``fp8_param_gather`` leaves those out). What other engines keep around Megatron's layers stands in
:mod:`toolkit.estimate.memory_pipeline_engine`. Optimizer states: AdamW 8; 8-bit AdamW 2 and a
float32 scale per 256 values and state (bitsandbytes, blockwise); SGD with momentum 4; Muon one float32 momentum
for hidden matrices and AdamW for the rest (the share is an argument).
"""

from __future__ import annotations

from toolkit.errors import ToolkitError
from toolkit.workload import Precision, Workload

UNFUSED = ("adamw_unfused",)  # torch.optim's default: lists of tensors, with temporaries
PAGED = ("adamw_paged", "adamw_8bit_paged")  # bitsandbytes: states in unified memory, which gives way to tensors
HALF = ("bf16", "fp16", "fp8")
NF4_BYTES = 4.127 / 8  # QLoRA, arXiv 2305.14314: 4 bits and 0.127 bits of double-quantised scales


def value_bytes(workload: Workload) -> float:
    """Bytes of an activation or a working parameter: fp8 products too leave 16-bit values."""
    return 4.0 if workload.precision == "fp32" else 2.0


def operand_bytes(workload: Workload) -> float:
    """Bytes of an operand of a matrix product of a layer: 1 in fp8, else those of a value."""
    return 1.0 if workload.precision == "fp8" else value_bytes(workload)


def pure(workload: Workload, framework: str) -> bool:
    """Whether weights, and all that torch.optim makes from them, are 16-bit: no autocast, no float32 copy.

    Raises ToolkitError where the framework or the precision keeps float32 weights all the same.
    """
    if workload.weights == "default" or (workload.weights == "fp8" and eight_bit_weights(workload, framework)):
        return False
    if workload.weights != "bf16":
        raise ToolkitError(f"unknown weights {workload.weights!r}", remedy="use default, bf16 or fp8")
    if framework not in ("ddp", "deepspeed", "fsdp") or workload.precision == "fp32":
        raise ToolkitError(
            f"weights in bf16 alone are not modelled for {framework} in {workload.precision}",
            remedy="use ddp, deepspeed or fsdp in 16 bits, or weights: default",
        )
    return True


def stream_bytes(workload: Workload, framework: str) -> float:
    """Bytes per value of the residual stream between layers: 4 under autocast of float32 weights (DDP), else a value's.

    A frozen base is loaded in 16 bits under DDP too; autocast then finds nothing to cast, and peft returns the sum of
    base and adapter in the type of the base's result. Source: recipes/finetune/model.py; peft 0.21.2 lora/layer.py.
    """
    wide = framework == "ddp" and workload.method == "full" and not pure(workload, framework)
    return 4.0 if wide else value_bytes(workload)


def eight_bit_weights(workload: Workload, framework: str) -> bool:
    """Whether Megatron keeps its matrices in 8 bits alone; raises ToolkitError where nothing does."""
    if workload.weights != "fp8":
        return False
    if framework != "megatron" or workload.precision != "fp8":
        raise ToolkitError(
            f"weights in fp8 alone are not modelled for {framework} in {workload.precision}",
            remedy="use megatron with precision fp8, or weights: default",
        )
    return True


def state_precision(workload: Workload, framework: str, matrix_share: float = 1.0) -> Precision:
    """Bytes per trained parameter. ``matrix_share`` is the fraction of parameters that Muon orthogonalises.

    Raises ToolkitError for an optimizer, precision or kind of weights that is not known.
    """
    if workload.precision not in (*HALF, "fp32"):
        raise ToolkitError(f"unknown precision {workload.precision!r}", remedy="use bf16, fp16, fp8 or fp32")
    states = optimizer_state_bytes(workload.optimizer, matrix_share)
    accumulate = {"fp32": 4.0, "bf16": 2.0}.get(workload.gradient_accumulation_dtype)
    if pure(workload, framework):
        halved = 1.0 if "8bit" in workload.optimizer else 0.5
        master = 2.0 if framework == "deepspeed" else 0.0  # its flat copy, in bf16 (bf16_master_weights_and_grads)
        return Precision(parameters=2.0, gradients=2.0, master=master, optimizer_states=halved * states)
    if workload.precision == "fp32" or framework in ("ddp", "fsdp"):
        return Precision(parameters=4.0, gradients=4.0, master=0.0, optimizer_states=states)
    default = 4.0 if framework == "megatron" else 2.0
    return Precision(parameters=2.0, gradients=accumulate or default, master=4.0, optimizer_states=states)


def resident_states(workload: Workload, precision: Precision) -> float:
    """Bytes of optimizer states per parameter that need device memory: a paged optimizer's need none.

    Source: bitsandbytes ``functional.get_paged`` (cudaMallocManaged, outside torch's allocator; pages move to the host
    when the device is full), QLoRA, arXiv 2305.14314, section 3.
    """
    return 0.0 if workload.optimizer in PAGED else precision.optimizer_states


def optimizer_state_bytes(optimizer: str, matrix_share: float = 1.0) -> float:
    """Bytes of optimizer states per parameter; raises ToolkitError for an optimizer that is not known."""
    known = {
        "adamw": 8.0,
        "adamw_unfused": 8.0,
        "adamw_paged": 8.0,
        "adamw_8bit": 2.0 * (1.0 + 4.0 / 256.0),
        "adamw_8bit_paged": 2.0 * (1.0 + 4.0 / 256.0),
        "sgd": 4.0,
        "muon": 4.0 * matrix_share + 8.0 * (1.0 - matrix_share),
    }
    if optimizer not in known:
        raise ToolkitError(f"unknown optimizer {optimizer!r}", remedy=f"known: {', '.join(known)}")
    return known[optimizer]
