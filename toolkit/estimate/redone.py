"""Equation F9: what selective recomputation runs again, as a part of a layer's forward pass."""

from __future__ import annotations

from toolkit.equation import equation
from toolkit.estimate.flop import ForwardFlop
from toolkit.estimate.layer_time import LayerSeconds, launch_bound
from toolkit.estimate.matrices import Matrix, matrices
from toolkit.estimate.selective import modules
from toolkit.model import ModelSpec
from toolkit.numeric import Number
from toolkit.workload import Workload

_WITHOUT_PRODUCTS = frozenset(("core_attn", "layernorm", "mlp_act", "moe_act"))


@equation("F9", "[core_attn]*core + share*rest")
def redone(core: Number, rest: Number, core_again: bool, share: float) -> Number:
    """The attention core where it is recomputed, and a ``share`` of the rest of the layer: that of its products.

    Seconds or FLOP. Norms and activations that run again are left out: memory traffic, a few per cent of a layer.
    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 5; modules of megatron-core 0.16.1.
    """
    return core * core_again + share * rest


def selective_seconds(model: ModelSpec, workload: Workload, layer: LayerSeconds, framework: str) -> Number:
    """Seconds of one layer that selective recomputation adds to the backward pass of one micro batch.

    Seconds of the device run again, never those in which it waited; what runs again is bound by its own launches (T4).
    Megatron calls the modules again: the host issues their part of the layer. Outside Megatron, where no modules are
    named, torchtitan's policy by operators: every second product and all that is element-wise, which is no small part
    of an eager layer; the output of the attention core is kept. There the host walks through the whole layer again,
    for kept outputs too (torch 2.13 ``utils/checkpoint.py``, ``_CachedTorchDispatchMode``).
    """
    core_again, share = _again(model, workload, framework)
    if by_operators(workload, framework):
        moved = layer.device - layer.products - layer.core
        device = redone(layer.core, layer.products, core_again, share) + moved
        return launch_bound(device, layer.host, workload.launch_blocking)
    device = redone(layer.core, layer.device - layer.core, core_again, share)
    return launch_bound(device, share * layer.host, workload.launch_blocking)


def selective_flop(model: ModelSpec, workload: Workload, forward: ForwardFlop, framework: str) -> float:
    """Model FLOP of one token that selective recomputation does again."""
    rest = forward.matmuls + forward.experts
    return float(redone(forward.attention, rest, *_again(model, workload, framework)))


def by_operators(workload: Workload, framework: str) -> bool:
    """Whether selective recomputation chooses operators (``torchtitan/models/.../parallelize.py``), not modules."""
    return framework != "megatron" and modules(workload) == {"core_attn"}


def _again(model: ModelSpec, workload: Workload, framework: str) -> tuple[bool, float]:
    """Whether the attention core runs again, and the part of the layers' products that does."""
    if by_operators(workload, framework):
        table = matrices(model)
        return False, sum(_flop(model, m) for m in table[1::2]) / sum(_flop(model, m) for m in table)
    names = modules(workload)
    core = "core_attn" in names
    if names <= _WITHOUT_PRODUCTS or model.counted_layers:
        return core, 0.0
    table = matrices(model)
    whole = sum(_flop(model, m) for m in table)
    return core, sum(_flop(model, m) for m in table if _redone(m, names)) / whole


def _flop(model: ModelSpec, m: Matrix) -> float:
    active = model.num_experts_per_tok / model.num_experts if m.group == "expert" else 1.0
    return 1.0 * m.elements * m.number * active


def _redone(m: Matrix, names: frozenset[str]) -> bool:
    if m.name in ("q_b_proj", "kv_b_proj"):
        return "mla_up_proj" in names
    if m.group == "shared_expert":
        return bool(names & {"shared_experts", "moe"})
    return (m.group == "mlp" and "mlp" in names) or (m.group in ("expert", "router") and "moe" in names)
