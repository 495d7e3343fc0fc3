"""What a practitioner should know about one strategy, from its own numbers: true of it whatever the search found."""

from __future__ import annotations

from toolkit import deepspeed_defaults as defaults
from toolkit.estimate.flop import forward_flop_per_token
from toolkit.estimate.host import swap_buffer_bytes
from toolkit.estimate.layout import padded_vocabulary
from toolkit.estimate.memory_megatron import sharing_ranks
from toolkit.estimate.parameters import count_parameters
from toolkit.estimates import MemoryEstimate
from toolkit.search.constraints import sequence_multiple
from toolkit.search.planner import Choice
from toolkit.search.request import Request
from toolkit.strategy import Strategy
from toolkit.units import format_bytes

ESTIMATOR_MARGIN = 1.5  # additional_buffer_factor of DeepSpeed's estimate_zero3_model_states_mem_needs
LARGE_LOGITS = 0.1  # share of the peak from which the logits are worth a word
LARGE_ATTENTION = 0.2  # share of the model FLOP from which the convention of MFU is worth a word
LITTLE_USE = 0.1  # MFU below which most of what is paid for waits

# which states a ZeRO stage divides over the data-parallel ranks; the rest is whole on every one of them
SHARDED_BY_STAGE = (
    (),
    ("optimizer",),
    ("gradients", "optimizer"),
    ("parameters", "gradients", "optimizer"),
)
STATES = ("parameters", "gradients", "optimizer")


def advice(request: Request, choice: Choice) -> tuple[str, ...]:
    """Sentences on what is replicated, on large logits, offload, host memory, padding; empty ones are left out."""
    strategy, memory = choice.strategy, choice.estimate.memory
    found = (
        _replicated(request, choice),
        _logits(request, strategy, memory),
        _working_set(strategy, memory),
        _host(request, choice),
        _vocabulary(request, strategy),
        _packing(strategy),
        _waiting(choice),
        _convention(request, choice),
    )
    return tuple(sentence for sentence in found if sentence)


def _replicated(request: Request, choice: Choice) -> str:
    """Memory is judged per GPU: more data-parallel ranks shrink only what is sharded."""
    strategy, memory = choice.strategy, choice.estimate.memory
    ranks = strategy.dp_shard * strategy.cp
    sharded = SHARDED_BY_STAGE[strategy.zero_stage] if ranks > 1 else ()
    whole = [name for name in STATES if name not in sharded and getattr(memory, f"{name}_bytes") > 0]
    divided = [name for name in sharded if getattr(memory, f"{name}_bytes") > 0]
    if not whole or not divided:
        return ""
    copies, experts = (int(number) for number in sharing_ranks(strategy))
    if request.model.is_moe and experts != copies:
        return (
            f"{_sum(memory, whole)} of {_and(whole)} are not sharded: what is no expert is the same on all {ranks:,} "
            f"data-parallel ranks, and {_experts(strategy, experts)}; {_sum(memory, divided)} of {_and(divided)} are "
            f"sharded over {ranks:,} ranks, those of experts over {experts:,}"
        )
    words = (
        f"{_sum(memory, whole)} of {_and(whole)} are replicated, the same on every data-parallel rank however many "
        f"there are; {_sum(memory, divided)} of {_and(divided)} are sharded over {ranks:,}"
    )
    wide = 2.0 * memory.parameters_bytes
    loaded = strategy.framework != "megatron" and request.workload.precision in ("bf16", "fp16")
    if loaded and "parameters" in whole and memory.total_bytes + wide / 2.0 > choice.limit_bytes:
        words += f"; a program that loads the weights in float32 replicates {format_bytes(wide)}, and does not fit"
    return words


def _experts(strategy: Strategy, copies: int) -> str:
    """How often the experts of a rank are there: expert parallelism divides them, more data parallelism copies them."""
    cut = f"ep {strategy.ep}" + (f" x etp {strategy.etp}" if strategy.etp > 1 else "")
    if copies == 1:
        return f"each expert is on one rank only, spread by {cut}"
    return f"experts, spread by {cut}, are the same on {copies:,}"


def _logits(request: Request, strategy: Strategy, memory: MemoryEstimate) -> str:
    share = memory.logits_bytes / memory.total_bytes
    largest = max(getattr(memory, name) for name in memory.__struct_fields__) == memory.logits_bytes
    if request.workload.fused_cross_entropy or (share < LARGE_LOGITS and not largest):
        return ""
    tokens = strategy.micro_batch_size * request.workload.sequence_length // strategy.cp
    words = f"{request.model.vocab_size:,} words" + (f" / tp {strategy.tp}" if strategy.tp > 1 else "")
    return (
        f"logits of {tokens:,} tokens x {words} take {format_bytes(memory.logits_bytes)}, "
        f"{share:.0%} of the peak{' and its largest part' if largest else ''}: "
        "a fused or chunked linear cross entropy never holds them whole"
    )


def _working_set(strategy: Strategy, memory: MemoryEstimate) -> str:
    if strategy.offload < 2:
        return ""
    return (
        f"parameters and optimizer live in host memory: the {format_bytes(memory.total_bytes)} of the GPU are working "
        "set (activations, logits, gathered parameters, buffers), and more GPUs hardly change it"
    )


def _host(request: Request, choice: Choice) -> str:
    host, limit = choice.estimate.host_memory, choice.host_limit_bytes
    if not limit or host.total_bytes <= limit:
        return ""
    loading = host.loading_bytes > host.offload_bytes
    words = (
        f"needs {format_bytes(host.total_bytes)} of host memory on a node that has {format_bytes(limit)} "
        f"({'while the weights are loaded' if loading else 'for what is offloaded'}): the kernel would kill the job"
    )
    if loading or choice.strategy.framework != "deepspeed":
        return words
    s, cluster, total = choice.strategy, request.cluster, count_parameters(request.model).total
    if s.zero_stage == 3:
        each = ESTIMATOR_MARGIN * (18.0 if s.offload == 2 else 16.0)
        words += f" (DeepSpeed's own estimator, with its margin: {format_bytes(each * total / cluster.nodes)})"
    ranks = float(min(cluster.gpus_per_node, cluster.num_gpus))
    shard = total / (1.0 * s.dp * s.tp)
    buffers = swap_buffer_bytes(ranks, shard, float(defaults.SUB_GROUP_SIZE), float(defaults.SWAP_BUFFERS))
    return (
        f"{words}; NVMe in its place still needs {format_bytes(buffers)} for its buffers ({defaults.SWAP_BUFFERS} of a "
        f"sub group of {defaults.SUB_GROUP_SIZE:.0e} elements on each of {ranks:.0f} ranks), beside gradients and "
        f"pinned copies: a smaller sub_group_size makes them smaller"
    )


def _vocabulary(request: Request, strategy: Strategy) -> str:
    words = request.model.vocab_size
    padded = int(padded_vocabulary(words, strategy.framework, strategy.tp))
    if padded == words:
        return ""
    return (
        f"the vocabulary of {words:,} is padded to {padded:,} rows (a multiple of 128 x tp {strategy.tp}): "
        "Hugging Face weights are padded on import and cut on export"
    )


def _packing(strategy: Strategy) -> str:
    if strategy.cp == 1:
        return ""
    why = f"cp {strategy.cp} x lcm(2, tp {strategy.tp})" if strategy.sequence_parallel else f"2 x cp {strategy.cp}"
    return f"each packed sample must be padded to a multiple of {sequence_multiple(strategy)} tokens ({why})"


def _waiting(choice: Choice) -> str:
    step = choice.estimate.step
    if step.mfu >= LITTLE_USE:
        return ""
    largest = sorted(step.parts.items(), key=lambda part: -part[1])[:2]
    shares = _and(
        [f"{name.removesuffix('_seconds').replace('_', ' ')} {value / step.seconds:.0%}" for name, value in largest]
    )
    if not choice.strategy.offload:
        return f"MFU is {step.mfu:.1%} ({shares} of the step): fewer GPUs or a larger global batch would waste less"
    return f"MFU is {step.mfu:.1%} ({shares} of the step): more GPUs without offload, or LoRA, would waste less"


def _convention(request: Request, choice: Choice) -> str:
    """MFU counts causal attention as if every token saw all others; at long sequences that flatters it."""
    forward = forward_flop_per_token(request.model, request.workload)
    share = forward.attention / forward.total
    if share < LARGE_ATTENTION or request.model.sliding_window:
        return ""
    mfu = choice.estimate.step.mfu
    return (
        f"MFU counts attention over the whole square (PaLM, appendix B), {share:.0%} of the model FLOP here, and "
        f"causal kernels do half of it: {mfu:.1%} by that count is {mfu * (1.0 - share / 2.0):.1%} of the peak in use"
    )


def _sum(memory: MemoryEstimate, names: list[str]) -> str:
    return format_bytes(sum(getattr(memory, f"{name}_bytes") for name in names))


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
