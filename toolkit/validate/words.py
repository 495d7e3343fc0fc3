"""What the words of a row mean: frameworks, networks, parts that are recomputed, where memory was read."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

GB = 1e9
BITS_PER_BYTE = 8.0

_MEGATRON = r"megatron|mcore|nemo(?!.*automodel)|nanotron|intern(evo|lm)|hai-llm|neox"
_JAX = r"maxtext|pax|\bjax\b|levanter|easylm|\bt5x\b"
_TORCH = (
    r"fsdp|torchtitan|torchtune|automodel|composer|foundry|litgpt|fabric|llama-factory|axolotl|unsloth|xtuner|ms-swift"
    r"|hugging ?face|transformers\b|\btrainer|\baccelerate\b|lightning|\bolmo\b|\btrl\b|\bpeft\b"
)
# frameworks whose published recipes shard the optimizer and use sequence parallelism without saying so
_RECIPE_DEFAULTS = r"nemo|megatron-bridge"
_COMPOSER = r"composer|foundry"
_OWN_KERNELS = r"automodel|unsloth"
_RECOMPUTES = r"torchtune|llama-factory|xtuner"

# the first fabric whose words a text has; the name is one that the table of measured fabrics knows
_FABRICS = (
    ("TCPX", r"tcpxo?|fastrak"),
    ("EFA", r"\befa"),
    ("RoCE", r"\bro ?ce|rdma"),
    ("Omni-Path", r"omni-?path"),
    ("InfiniBand", r"infiniband|\bib\b|\b[hnex]dr\b|quantum|connectx-[67]"),
    ("Ethernet", r"ethernet"),
)
_RATE = r"(?P<rate>\d+(?:\.\d+)?)\s*(?P<unit>Gbps|Gbit|Gb|Tbps|Tbit|Tb|GB)(?:/s|ps|/sec)?"
_COUNTED = rf"(?<![\d.])(?P<count>\d+)\s*x\s*(?:[^,;:]*?[^\d.,;:])??{_RATE}"
_PER_NODE = r"per[ -]node|node-node|inter-node|/node|\btotal\b"
_NOT_THE_NETWORK = r"nvlink|nvswitch|pcie|intra|storage|management"


class Network(NamedTuple):
    """Between nodes: fabric, and bytes per second of one direction for one GPU; empty and 0 where not stated."""

    fabric: str = ""
    bytes_per_second: float = 0.0


def is_data_parallel(words: str) -> bool:
    """Whether the framework's name says that it has no tensor or pipeline parallelism unless that is stated."""
    return re.search(rf"{_TORCH}|{_JAX}|deepspeed|ddp", words.casefold()) is not None


def framework_of(words: str, zero: str, model_parallel: bool, gpus: int) -> str:
    """ddp, deepspeed, fsdp or megatron, from the framework's name and what it is asked to do.

    DeepSpeed's own engine runs ZeRO; under the name Megatron-DeepSpeed it does for stages 2 and 3, while below that
    Megatron's layers and pipeline do the work. ZeRO-3 in any other framework is full sharding by layer, as FSDP does
    it. A data-parallel framework that shards nothing is ddp. A name that says nothing is judged by its degrees.
    """
    name = words.casefold()
    sharded = zero in ("3", "hsdp")
    if "deepspeed" in name and not ("megatron" in name and zero not in ("2", "3")):
        return "deepspeed"
    if sharded:
        return "fsdp"
    if re.search(_MEGATRON, name):
        return "megatron"
    if re.search("colossal", name):
        return "deepspeed" if zero in ("1", "2") else "megatron"
    if re.search(_TORCH, name) or re.search(_JAX, name):
        if model_parallel:
            return "megatron"
        named = re.search("fsdp|torchtitan|automodel", name) is not None
        return "fsdp" if gpus > 1 and (named or zero == "2") else "ddp"
    if model_parallel:
        return "megatron"
    return "deepspeed" if zero in ("1", "2") else "ddp"


def zero_of(norm: str, text: str) -> str:
    """The ZeRO stage: 3 where full sharding stands beside a sharded optimizer (``zero1 + fsdp`` of InternEvo)."""
    return "3" if norm in ("0", "1") and re.search(r"\+ ?fsdp", text.casefold()) else norm


def kernels_of(words: str, framework: str, compiled: bool) -> str:
    """Whose kernels compute layers and loss, where the framework that shards (``framework``) does not bring them.

    Composer and llm-foundry default to flash-attn's fused cross entropy (``loss_fn: fused_crossentropy``); NeMo
    AutoModel takes Transformer Engine, Unsloth is kernels in Triton; XLA fuses whatever JAX runs, and a run that is
    compiled compiles its loss too (``build_cross_entropy_loss`` of torchtitan). Megatron-FSDP, and Megatron-DeepSpeed
    under ZeRO-2 and 3, shard Megatron's layers.
    """
    name = words.casefold()
    if framework in ("deepspeed", "fsdp") and re.search(_MEGATRON, name):
        return "megatron"
    if framework in ("ddp", "fsdp") and (compiled or re.search(rf"{_JAX}|{_OWN_KERNELS}", name)):
        return "fused"
    if framework in ("ddp", "fsdp") and re.search(_COMPOSER, name):
        return "loss"
    return "default"


def flash_generation_of(words: str, stated: str) -> int:
    """Which fused attention a run had, 0 where that follows from the framework that runs it.

    A version that is stated counts. llm-foundry's benchmarks ran ``attn_impl: triton``, FlashAttention 1 in Triton
    (default of ``scripts/train/benchmarking/submit_benchmarks.py``); Transformer Engine calls cuDNN. Megatron-LM with
    ``--use-flash-attn`` calls the package of that name, which was the second version while the option existed.
    """
    version = re.search(r"(?:fa|attn|attention|flash)[- _]?v?([123])\b", stated.casefold())
    if version:
        return int(version[1])
    if re.search("cudnn|transformer ?engine|maxtext|automodel", f"{words} {stated}".casefold()):
        return 3
    if stated == "1" and re.search("megatron", words.casefold()) and "core" not in words.casefold():
        return 2
    return 1 if re.search(_COMPOSER, words.casefold()) else 0


def optimizer_of(words: str) -> str:
    """Our name of an optimizer: Muon, SGD, or a kind of AdamW, which anything else is taken for."""
    text = words.casefold()
    if "muon" in text:
        return "muon"
    if re.search("sgd", text):
        return "sgd"
    eight_bit = "_8bit" if re.search("8-?bit", text) else ""
    return f"adamw{eight_bit}{'_paged' if 'paged' in text else ''}"


def knows_optimizer(words: str) -> bool:
    """Whether the optimizer is one of ours, or only a way to run it (fused, distributed); blank is AdamW."""
    ours = r"adam|muon|sgd|momentum|fused|dist\w*[ _-]?opt|default|zero|^$"
    return not has_other_states(words) and re.search(ours, words.casefold()) is not None


def has_other_states(words: str) -> bool:
    """Whether the optimizer is known to keep more or less than the two states of Adam, in a way we do not model."""
    others = r"lion|ada-?factor|adam-?mini|shampoo|\bsoap\b|galore|apollo|\bcame\b|\blars\b|rms-?prop|ada-?grad|\bsm3\b"
    return re.search(others, words.casefold()) is not None


def has_shorter_samples(notes: str) -> bool:
    """Whether ``seq_len`` is only the most that a sample may have: what was run is shorter, and not stated."""
    return re.search(r"samples (are|may be)[^;]*shorter|\(unpacked\)", notes.casefold()) is not None


def logged_losses_of(words: str) -> int:
    """Composer updates its training metrics after every forward pass, each with a cross entropy over all logits.

    llm-foundry has two (``use_train_metrics`` is on: LanguageCrossEntropy and LanguagePerplexity).
    """
    return 2 if re.search(_COMPOSER, words.casefold()) else 0


def weights_of(words: str, framework: str, precision: str, computed: str, notes: str = "") -> str:
    """bf16 where the whole model is cast to it: LitGPT's ``bf16-true``, and torchtune's ``dtype: bf16``; and where
    DeepSpeed's master copy is (``bf16_master_weights_and_grads``).

    fp8 where Megatron keeps its matrices in 8 bits alone: said so (``fp8 params``, ``native fp8``), or in a recipe of
    NeMo or Megatron-Bridge (``fp8_param_gather = True`` of ``mixed_precision.py``), except by blocks.
    """
    if framework == "megatron" and computed == "fp8":
        said = re.search(r"fp8[_ -]param|native[_ ]fp8", f"{precision} {notes}".casefold())
        recipe = has_recipe_defaults(words) and not re.search("block|subchannel", precision.casefold())
        return "fp8" if said or recipe else "default"
    if framework == "deepspeed" and re.search("bf16 master", notes.casefold()):
        return "bf16"
    whole = "true" in precision.casefold() or re.search("torchtune", words.casefold()) is not None
    torch = framework in ("ddp", "fsdp")
    return "bf16" if torch and whole and "bf16" in precision.casefold() else "default"


def checkpoints_whole_layers(words: str, framework: str) -> bool:
    """Whether the switch for recomputation is one that runs whole layers again: not so in MaxText and Megatron.

    Pax saves nothing of repeated layers by default (``CHECKPOINT_POLICY`` of paxml/tasks/lm/model_params.py).
    """
    name = words.casefold()
    return framework in ("ddp", "deepspeed", "fsdp") and not re.search(rf"maxtext|{_MEGATRON}", name)


def recomputed_layers(text: str) -> int:
    """2 for ``selective (every 2nd layer)``: of how many layers one runs again; torchtitan's ``selective-layer`` is 2.

    0 where the text says nothing about layers.
    """
    named = re.search(r"every (\d{1,3})(?:st|nd|rd|th) layer", text)
    if named:
        return int(named[1])
    return 2 if re.search(r"selective[- ]layer\b", text) else 0


def recomputed_in_blocks(text: str) -> int:
    """8 for ``full:block/8``: the first layers of a stage that run again (``--recompute-num-layers`` of Megatron-LM).

    0 where the number is not stated.
    """
    named = re.search(r"block\D{0,4}(\d{1,4})\b", text.casefold()) or re.search(r"(\d{1,4})\s*layers", text.casefold())
    return int(named[1]) if named else 0


def recomputes_by_default(words: str) -> bool:
    """Whether the framework's recipes recompute every layer unless told otherwise.

    Source: ``enable_activation_checkpointing: True`` in the recipes of torchtune; ``disable_gradient_checkpointing``
    of LLaMA-Factory is false; ``use_activation_checkpointing=True`` of XTuner's SupervisedFinetune.
    """
    return re.search(_RECOMPUTES, words.casefold()) is not None


def tensor_overlap_of(words: str, sequence_parallel: bool) -> Literal["none", "backward", "all"]:
    """What of the tensor-parallel communication runs beside matrix products.

    Recipes of NeMo and Megatron-Bridge set ``tp_comm_overlap`` (user buffers; needs sequence parallelism). BigScience's
    fork split from Megatron-LM in 2021, before the asynchronous all-reduce of the backward pass.
    """
    if re.search("bigscience", words.casefold()):
        return "none"
    return "all" if sequence_parallel and has_recipe_defaults(words) else "backward"


def data_overlap_of(words: str) -> Literal["none", "gradients", "all"]:
    """What of Megatron's data axis runs beside computation; what a name does not tell is taken as overlapped.

    Megatron-LM's own default is to overlap nothing (``--overlap-grad-reduce`` turns it on). DeepSpeed's pipeline
    engine reduces after its last backward pass (``_exec_reduce_grads`` in runtime/pipe/engine.py); InternEvo
    broadcasts parameters after the step (``overlap_sync_param=False`` in its configurations).
    """
    if re.search("megatron", words.casefold()) and re.search("deepspeed", words.casefold()):
        return "none"
    if re.search("megatron-lm", words.casefold()) and not has_recipe_defaults(words):
        return "none"
    return "gradients" if re.search("intern(evo|lm)", words.casefold()) else "all"


def fuses_loss(words: str) -> bool:
    """Whether Megatron's loss is fused (``--cross-entropy-loss-fusion``).

    Recipes of NeMo and Megatron-Bridge set it, as the model zoo of Megatron-Core does; Megatron-LM's default is off.
    """
    return has_recipe_defaults(words) or re.search("megatron-core", words.casefold()) is not None


def fuses_accumulation(words: str) -> bool:
    """Whether gradients of weights are added inside of their product, as Megatron-LM does since 2022.

    Not where DeepSpeed's engine or InternEvo accumulates: autograd writes a gradient, and adds it afterwards.
    """
    return re.search("deepspeed|intern(evo|lm)|bigscience", words.casefold()) is None


def sums_of(words: str, framework: str, precision: str, optimizer: str) -> str:
    """In what gradients are summed and reduced: bf16 (16 bits), or default, the framework's own.

    Source: ``grad_reduce_in_fp32 = False`` in NeMo's scripts/performance/helpers.py and in ``perf_recipes/_common.py``
    of Megatron-Bridge, whose Muon presets keep float32; ``grad_sync_dtype: bf16`` of the launcher before them.
    InternEvo keeps and reduces gradients in the type of the parameters (its hybrid_zero_optim.py). Megatron-LM sums in
    float32 for bf16 only (``--accumulate-allreduce-grads-in-fp32`` is off by itself with fp16).
    """
    if framework != "megatron" or engine_of(words, framework) == "deepspeed":
        return "default"
    if precision == "fp16":
        return "bf16" if re.search("megatron", words.casefold()) else "default"
    if precision in ("bf16", "fp8") and re.search("intern(evo|lm)", words.casefold()):
        return "bf16"
    halved = precision in ("bf16", "fp8") and has_recipe_defaults(words) and "muon" not in optimizer.casefold()
    return "bf16" if halved else "default"


def fused_loss_of(words: str) -> Literal["native", "te"]:
    """Whose fused loss: benchmarks of Megatron-Bridge and Megatron-Core take Transformer Engine's; Megatron-LM and NeMo
    compile their own.

    Source: ``cross_entropy_fusion_impl = "te"`` in ``scripts/performance/utils/overrides.py`` of Megatron-Bridge 0.4;
    ``--cross-entropy-fusion-impl te`` in xtuner's benchmark of Megatron-Core, docs/en/benchmark.
    """
    return "te" if re.search("megatron-(bridge|core)", words.casefold()) else "native"


def engine_of(words: str, framework: str) -> str:
    """Deepspeed where DeepSpeed's engine runs Megatron's layers and pipeline; nanotron has one of its own."""
    name = words.casefold()
    if framework == "megatron" and "nanotron" in name:
        return "nanotron"
    if framework in ("megatron", "fsdp") and re.search("intern(evo|lm)", name):
        return "internevo"
    both = "megatron" in name and "deepspeed" in name
    return "deepspeed" if framework == "megatron" and (both or "neox" in name) else "default"


def expert_dispatch_of(words: str) -> Literal["alltoall", "deepep"]:
    """How tokens travel to experts where nothing is said: Megatron-Bridge's recipes of mixtures use DeepEP or HybridEP.

    Source: ``moe_flex_dispatcher_backend`` in ``perf_recipes`` of Megatron-Bridge; Megatron-LM's own default is to
    send each copy by itself.
    """
    return "deepep" if re.search("megatron-bridge", words.casefold()) else "alltoall"


def has_recipe_defaults(words: str) -> bool:
    """Whether the framework's recipes turn on the distributed optimizer, sequence parallelism and etp 1 by themselves.

    Source: ``llm/recipes`` of NeMo and the presets of Megatron-Bridge; Megatron-LM's own arguments default to off.
    """
    return re.search(_RECIPE_DEFAULTS, words.casefold()) is not None


def per_gpu(text: str, gpus_per_node: int) -> Network:
    """The network of a text, for one of ``gpus_per_node`` GPUs.

    ``8x400Gb/s IB per node``, ``1600 Gbps node-node interconnect (RoCE)``, ``400Gb/s RoCE per GPU``: a rate with a
    count (``8x``) or with "per node" is shared by the GPUs of a node, any other rate is one GPU's. Bits unless ``GB``
    is written. Of several networks the fastest counts. Clauses about NVLink, PCIe, storage and management say nothing
    about it.
    """
    fabric = next((name for name, words in _FABRICS if re.search(words, text, re.IGNORECASE)), "")
    found = [_clause(clause, gpus_per_node) for clause in re.split(r"[,;+]| and ", text)]
    return Network(fabric, max(found, default=0.0))


def _clause(clause: str, gpus_per_node: int) -> float:
    if re.search(_NOT_THE_NETWORK, clause, re.IGNORECASE):
        return 0.0
    counted = re.search(_COUNTED, clause)
    plain = re.search(_RATE, clause)
    if counted:
        return _bytes_per_second(counted) * int(counted["count"]) / gpus_per_node
    if plain is None:
        return 0.0
    shared = re.search(_PER_NODE, clause, re.IGNORECASE)
    return _bytes_per_second(plain) / (gpus_per_node if shared else 1)


def _bytes_per_second(match: re.Match[str]) -> float:
    rate = float(match["rate"]) * GB
    if match["unit"].startswith("T"):
        rate *= 1000.0
    return rate if match["unit"] == "GB" else rate / BITS_PER_BYTE


def shard_of(text: str, gpus_per_node: int) -> int:
    """Ranks that share one copy: ``shard=8``, ``fsdp128 x dp2``, ``fsdp in node``; 0 where it is not stated."""
    stated = re.search(r"shard=(\d{1,7})\b", text) or re.search(r"fsdp(\d{1,7}) x", text)
    if stated:
        return int(stated[1])
    return gpus_per_node if "in node" in text else 0


def read_on_last_stage(text: str) -> bool:
    """Whether the memory is that of the last rank (Megatron logs there), not of the fullest one."""
    return re.search(r"\blast\b[)\s]*rank", text.casefold()) is not None
