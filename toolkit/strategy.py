"""Strategy: how the work is laid over the GPUs. One class, scalar or columns.

A field is an ``int`` in a plan and may be a numpy column during the search. ``framework`` is never
a column: candidates are searched in blocks of one framework each, because the frameworks differ in
what they allocate and send, not in a coefficient.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FRAMEWORKS = ("ddp", "deepspeed", "fsdp", "megatron")
RECOMPUTE = ("none", "selective", "full")
OFFLOAD = ("none", "optimizer", "optimizer+parameters")
# how context-parallel ranks share keys and values: names of megatron-core's cp_comm_type
CP_METHODS = ("p2p", "all_gather", "a2a", "a2a+p2p")
NAMED: dict[str, tuple[str, ...]] = {"recompute": RECOMPUTE, "offload": OFFLOAD}  # fields that people write by name


class Strategy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Degrees of parallelism and what trades memory for time.

    Invariants: ``tp * pp * cp * dp = GPUs``; ``etp * ep * pp`` divides the GPUs (experts are spread
    over ranks of the data, context and tensor axes); ``micro_batch_size * gradient_accumulation_steps
    * dp = global batch``. ``dp_shard`` ranks share one copy of what ``zero_stage`` shards: equal to
    ``dp`` except for hybrid sharding. ``hpz`` is the group that keeps a secondary copy of the
    parameters (ZeRO++), 1 for none. ``recompute`` and ``offload`` index RECOMPUTE and OFFLOAD.
    ``recompute_layers`` is how many layers of each pipeline stage a full recomputation runs again, the same number
    in each of its virtual stages; 0 is all of them.
    Never columns, like the framework: ``cp_method`` is how context-parallel ranks share keys and values: in a ring,
    gathered whole, by exchanging heads (Ulysses), or heads inside and a ring outside; ``schedule`` is 1F1B
    (interleaved with virtual stages) or one of the zero-bubble schedules (arXiv 2401.10241); ``vocabulary`` is on the
    end stages, on end stages that have fewer layers for it, or spread over all stages (arXiv 2411.05288);
    ``tp_overlap`` is Megatron's: nothing, the collectives of the backward pass beside gradients (its default), or all
    by user buffers (``--tp-comm-overlap``).
    ``dp_overlap`` is Megatron's too: ``--overlap-grad-reduce``, with ``--overlap-param-gather`` for all.
    """

    framework: str = "deepspeed"
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    dp_shard: int = 1
    virtual_pipeline_stages: int = 1
    zero_stage: int = 0
    hpz: int = 1
    micro_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    sequence_parallel: int = 0
    recompute: int = 0
    recompute_layers: int = 0
    offload: int = 0
    cp_method: Literal["p2p", "all_gather", "a2a", "a2a+p2p"] = "p2p"
    schedule: Literal["1f1b", "zb-1p", "zb-2p", "zb-v"] = "1f1b"
    vocabulary: Literal["ends", "balanced", "spread", "interlaced"] = "ends"
    tp_overlap: Literal["none", "backward", "all"] = "backward"
    dp_overlap: Literal["none", "gradients", "all"] = "all"

    def take(self, index: int) -> Strategy:
        """The scalar strategy in row ``index`` of a column strategy."""
        values: dict[str, Any] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            values[name] = value if isinstance(value, (str, int)) else int(value[index])
        return Strategy(**values)

    def select(self, rows: Any) -> Strategy:
        """The column strategy of the rows that a mask or an index array picks."""
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        picked: dict[str, Any] = {
            name: value if isinstance(value, (str, int)) else value[rows] for name, value in values.items()
        }
        return Strategy(**picked)


def describe(strategy: Strategy) -> str:
    """A short name for a scalar strategy: ``megatron tp8 pp4 dp2 sp zero1 mb1 x16 selective``."""
    words = [strategy.framework]
    if strategy.framework in ("deepspeed", "fsdp"):
        words.append(f"zero{strategy.zero_stage}")
    words += [
        f"{axis}{getattr(strategy, axis)}" for axis in ("tp", "pp", "cp", "ep", "dp") if getattr(strategy, axis) > 1
    ]
    if strategy.cp_method != CP_METHODS[0]:
        words.append(f"cp-{strategy.cp_method}")
    if strategy.virtual_pipeline_stages > 1:
        words.append(f"vpp{strategy.virtual_pipeline_stages}")
    if strategy.schedule != "1f1b":
        words.append(strategy.schedule)
    if strategy.vocabulary != "ends":
        words.append(f"vocabulary-{strategy.vocabulary}")
    if strategy.etp != strategy.tp:
        words.append(f"etp{strategy.etp}")
    if strategy.sequence_parallel:
        words.append("sp")
    if strategy.framework == "megatron" and strategy.zero_stage:
        words.append("distributed-optimizer")
    if strategy.framework == "fsdp" and strategy.dp_shard != strategy.dp:
        words.append(f"shard{strategy.dp_shard}")
    if strategy.hpz > 1:
        words.append(f"hpz{strategy.hpz}")
    words.append(f"mb{strategy.micro_batch_size}x{strategy.gradient_accumulation_steps}")
    if strategy.recompute:
        some = (
            f"{strategy.recompute_layers}-layer" + "s" * (strategy.recompute_layers > 1)
            if strategy.recompute_layers
            else ""
        )
        words.append(f"recompute-{some or RECOMPUTE[strategy.recompute]}")
    if strategy.offload:
        words.append(f"offload-{OFFLOAD[strategy.offload]}")
    return " ".join(words)


def value_in_words(field: str, value: int) -> str:
    """A field's value as people write it: a number, or the name that it is an index of."""
    names = {**NAMED, "cp_method": CP_METHODS}.get(field)
    return names[value] if names else str(value)


def to_json(strategy: Strategy) -> dict[str, Any]:
    """The JSON form: recompute and offload by name."""
    values: dict[str, Any] = msgspec.structs.asdict(strategy)
    return values | {name: known[getattr(strategy, name)] for name, known in NAMED.items()}


def from_json(values: dict[str, Any]) -> Strategy:
    """The inverse of :func:`to_json`; a field that is not there has its default.

    Raises ``msgspec.ValidationError`` or ``ValueError``.
    """
    values = dict(values)
    for name, known in NAMED.items():
        given = values.get(name, known[0])
        if given not in known:
            raise ValueError(f"strategy.{name} is {given!r}, not one of {', '.join(known)}")
        values[name] = known.index(given)
    return msgspec.convert(values, Strategy)
