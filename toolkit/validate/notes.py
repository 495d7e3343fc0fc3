"""What the free text of a row says about the run, in the words of Megatron's own options.

Only statements are read: an option with its value, or the name of a thing that the columns have no place for. What
such a text does not say stays open.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from toolkit.validate.rows import Row

# how rows name the modules of selective recomputation, and Megatron's names of them; the first that fits takes the word
_MODULES = (
    (("core_attn",), r"core[ _-]?attn|attn|attention"),
    (("layernorm",), r"(layer|rms)?[ _-]?norms?"),
    (("mla_up_proj",), r"mla[ _-]?up[ _-]?proj"),
    (("moe_act",), r"moe[ _-]?act"),
    (("mlp_act",), r"mlp[ _-]?act"),
    (("mlp_act", "moe_act"), r"swiglu|silu|gelu|act(ivation)?"),
    (("shared_experts",), r"shared[ _-]?experts?"),
    (("moe",), r"moe"),
    (("mlp",), r"mlp|ffn"),
)


class Notes(NamedTuple):
    """None or an empty text is what a row does not say."""

    gated_mlp: bool | None  # swiglu=True
    positions: str  # position=rope, learned_absolute, none
    unfused: bool  # transformer_impl=local: Megatron's own modules, without a fused attention
    expert_tensor_parallel: int | None  # etp1
    latent_attention: bool  # MLA
    hybrid: bool  # layers of several kinds
    reduce_scatter: bool  # "TP reduce-scatter mode": nanotron's name of sequence parallelism
    fused_loss: bool  # cross_entropy_loss_fusion
    teacher: bool  # a second model beside the trained one
    schedule: Literal["1f1b", "zb-1p", "zb-2p", "zb-v"]
    vocabulary: Literal["ends", "balanced", "spread", "interlaced"]  # fewer layers beside it, or cut over the pipeline
    launch_blocking: bool  # CUDA_LAUNCH_BLOCKING=1
    data_overlap: Literal["", "none", "gradients", "all"]  # overlap_grad_reduce=, overlap_param_gather=
    expert_dispatch: Literal["", "alltoall", "deepep"]  # DeepEP, NVIDIA's HybridEP, DeepSeek's DualPipe
    expert_overlap: bool  # a2a_overlap=True; DualPipe
    cuda_graphs: Literal["none", "attention", "full"]  # cuda_graph=full_iteration; of modules by Transformer Engine


def notes_of(row: Row) -> Notes:
    """The statements in ``notes``; a file without that column says nothing."""
    text = row.text("notes")
    gated = re.search(r"\bswiglu=(True|False)\b", text)
    positions = re.search(r"\bposition=(\w+)", text)
    etp = re.search(r"(?<![A-Za-z])(?:etp|ETP) ?=? ?(\d{1,4})\b", text.replace("_", " "))
    return Notes(
        gated_mlp=None if gated is None else gated[1] == "True",
        positions=positions[1] if positions else "",
        unfused="transformer_impl=local" in text,
        expert_tensor_parallel=int(etp[1]) if etp else None,
        latent_attention=re.search(r"\bMLA\b", text) is not None,
        hybrid=re.search(r"hybrid[ _-](layer[ _-])?pattern|position=none\b", text) is not None,
        reduce_scatter=re.search(r"reduce[-_ ]scatter mode", text) is not None,
        fused_loss=re.search(r"cross[_-]entropy[_-]loss[_-]fusion(?!=False)", text) is not None,
        teacher=re.search(r"distill", text) is not None,
        schedule=_schedule(text.casefold()),
        vocabulary=_vocabulary(text.casefold()),
        launch_blocking="CUDA_LAUNCH_BLOCKING=1" in text,
        data_overlap=_data_overlap(text),
        expert_overlap=re.search(r"\ba2a_overlap ?= ?true\b|\bdualpipe\b", text.casefold()) is not None,
        cuda_graphs=_cuda_graphs(text.casefold()),
        expert_dispatch=_expert_dispatch(text.casefold()),
    )


def _expert_dispatch(text: str) -> Literal["", "alltoall", "deepep"]:
    if re.search(r"\b(deepep|hybridep|dualpipe)\b", text):
        return "deepep"
    return "alltoall" if re.search(r"\ball-?to-?all\b", text.replace("_", " ")) else ""


def _cuda_graphs(text: str) -> Literal["none", "attention", "full"]:
    """``cuda_graph=full_iteration``, or ``cuda_graph=transformer_engine/['attn', ...]``: a part of each layer."""
    named = re.search(r"\bcuda[ _]graphs?(?:_impl)? ?= ?([a-z_]+)", text)
    if named is None or named[1] in ("none", "false"):
        return "none"
    return "full" if "full" in named[1] else "attention"


def _data_overlap(text: str) -> Literal["", "none", "gradients", "all"]:
    reduce, gather = (re.search(rf"\boverlap_{what}=(True|False)\b", text) for what in ("grad_reduce", "param_gather"))
    if reduce is None:
        return ""
    if reduce[1] == "False":
        return "none"
    return "all" if gather is not None and gather[1] == "True" else "gradients"


def _schedule(text: str) -> Literal["1f1b", "zb-1p", "zb-2p", "zb-v"]:
    """Zero-bubble schedules by the names of arXiv 2401.10241: H1 and H2 are 1p and 2p made by hand."""
    named = re.search(r"\bzb-(1p|2p|h1|h2|v)\b", text)
    if named is None:
        return "1f1b"
    if named[1] == "v":
        return "zb-v"
    return "zb-1p" if named[1] in ("1p", "h1") else "zb-2p"


def _vocabulary(text: str) -> Literal["ends", "balanced", "spread", "interlaced"]:
    """Methods of arXiv 2411.05288: layers moved away from the head, or the vocabulary cut over the pipeline."""
    if re.search(r"redistribut", text):
        return "balanced"
    if re.search(r"interlaced pipeline", text):
        return "interlaced"
    return "spread" if re.search(r"vocab\S* (layers )?sharded over pipeline", text) else "ends"


def recompute_modules(text: str) -> str:
    """Megatron's names of the modules in a text like ``selective:mlp-act+norm`` or ``selective (moe_act, layernorm)``.

    Joined by ``+``; the attention core where none is named, which is Megatron's default. Parts that are not modules
    of Megatron are left out. MaxText's policies keep the results of products: ``minimal`` ones of all, others
    ``except_mlp`` (MaxText/layers/decoders.py).
    """
    if "except_mlp" in text.casefold():
        return "mlp"
    if "minimal" in text.casefold():
        return "layernorm+mlp_act"
    named = re.search(r"selective\s*[:(\[]\s*(.+)", text.casefold())
    rest, found = named[1] if named else "", set[str]()
    for names, pattern in _MODULES:
        rest, times = re.subn(rf"\b({pattern})\b", " ", rest.replace("_", " "))
        found.update(names if times else ())
    return "+".join(sorted(found)) or "core_attn"


def has_shorter_samples(notes: str) -> bool:
    """Whether ``seq_len`` is only the most that a sample may have: what was run is shorter, and not stated."""
    return re.search(r"samples (are|may be)[^;]*shorter|\(unpacked\)", notes.casefold()) is not None


def read_on_last_stage(text: str) -> bool:
    """Whether the memory is that of the last rank (Megatron logs there), not of the fullest one."""
    return re.search(r"\blast\b[)\s]*rank", text.casefold()) is not None
