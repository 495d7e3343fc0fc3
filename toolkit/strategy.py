"""Strategy: how the work is laid over the GPUs. One class, scalar or columns.

A field is an ``int`` in a plan and may be a numpy column during the search. ``framework`` is never
a column: candidates are searched in blocks of one framework each, because the frameworks differ in
what they allocate and send, not in a coefficient.
"""

from __future__ import annotations

from typing import Any

import msgspec

FRAMEWORKS = ("ddp", "deepspeed", "fsdp", "megatron")
RECOMPUTE = ("none", "selective", "full")
OFFLOAD = ("none", "optimizer", "optimizer+parameters")


class Strategy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Degrees of parallelism and what trades memory for time.

    Invariants: ``tp * pp * cp * dp = GPUs``; ``etp * ep * pp`` divides the GPUs (experts are spread
    over ranks of the data, context and tensor axes); ``micro_batch_size * gradient_accumulation_steps
    * dp = global batch``. ``dp_shard`` ranks share one copy of what ``zero_stage`` shards: equal to
    ``dp`` except for hybrid sharding. ``hpz`` is the group that keeps a secondary copy of the
    parameters (ZeRO++), 1 for none. ``recompute`` and ``offload`` index RECOMPUTE and OFFLOAD.
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
    offload: int = 0

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
    if strategy.virtual_pipeline_stages > 1:
        words.append(f"vpp{strategy.virtual_pipeline_stages}")
    if strategy.ep > 1 and strategy.etp != strategy.tp:
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
        words.append(f"recompute-{RECOMPUTE[strategy.recompute]}")
    if strategy.offload:
        words.append(f"offload-{OFFLOAD[strategy.offload]}")
    return " ".join(words)


def value_in_words(field: str, value: int) -> str:
    """A field's value as people write it: recompute and offload by name."""
    names = {"recompute": RECOMPUTE, "offload": OFFLOAD}.get(field)
    return names[value] if names else str(value)


def to_json(strategy: Strategy) -> dict[str, Any]:
    """The JSON form: recompute and offload by name."""
    values = msgspec.structs.asdict(strategy)
    return values | {"recompute": RECOMPUTE[strategy.recompute], "offload": OFFLOAD[strategy.offload]}


def from_json(values: dict[str, Any]) -> Strategy:
    """The inverse of :func:`to_json`; raises ``msgspec.ValidationError`` or ``ValueError``."""
    values = dict(values)
    for name, known in (("recompute", RECOMPUTE), ("offload", OFFLOAD)):
        given = values.get(name, "none")
        if given not in known:
            raise ValueError(f"strategy.{name} is {given!r}, not one of {', '.join(known)}")
        values[name] = known.index(given)
    return msgspec.convert(values, Strategy)
