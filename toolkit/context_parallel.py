"""How a context-parallel group is cut in two levels: ranks that exchange heads, and rings of such groups.

``a2a+p2p`` (megatron-core's ``hierarchical_context_parallel_sizes``) sends heads by all-to-all between ranks that
share a fast link, and keys and values in a ring between those groups: DeepSpeed-Ulysses inside, ring attention
outside. Source: megatron-core 0.16.1 transformer_config.py (``cp_comm_type``) and parallel_state.py:983.
"""

from __future__ import annotations

from toolkit.model import ModelSpec
from toolkit.numeric import Number, gcd, maximum
from toolkit.strategy import Strategy


def heads_per_rank(model: ModelSpec, tp: Number) -> Number:
    """What an all-to-all of heads can be cut into: a common divisor of query and of key-value heads of a rank."""
    if model.is_mla:  # after the up-projection each query head has keys and values of its own
        return maximum(model.num_attention_heads // tp, 1)
    queries = maximum(model.num_attention_heads // tp, 1)
    return gcd(queries, maximum(model.num_key_value_heads // tp, 1))


def exchanging_ranks(model: ModelSpec, fast_domain: int, strategy: Strategy) -> Number:
    """Ranks of the inner level: as many as divide cp, the heads of a rank, and fit beside tp in a fast domain."""
    inside = maximum(fast_domain // strategy.tp, 1)
    return gcd(gcd(strategy.cp, inside), heads_per_rank(model, strategy.tp))
