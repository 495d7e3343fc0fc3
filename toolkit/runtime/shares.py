"""Who fsyncs and who hashes which file of a checkpoint, so that nobody reads everything.

An fsync reaches only what its own machine has cached, and which machine wrote a file nobody can tell: the ranks of
each machine fsync every file between them, which costs nothing for those that others have written. A hash can be
taken anywhere: the files are dealt out over all ranks, the largest first, each to the rank with the least to read;
a file whose name tells a rank goes to the machine of that rank, in whose cache it still is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

# zero_pp_rank_3_mp_rank_00_optim_states.pt, rng_state_3.pth, __3_0.distcp
RANK = re.compile(r"(?:^|/)(?:\w*?zero_pp_rank_(\d+)_|rng_state_(\d+)\.|__(\d+)_\d+\.distcp)")


def to_fsync(names: Sequence[str], hosts: Sequence[str], rank: int) -> list[str]:
    """The files that a rank fsyncs: its part among the ranks of its machine."""
    together = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    return list(names[together.index(rank) :: len(together)])


def to_hash(
    sizes: Mapping[str, int], hosts: Sequence[str], seen: Mapping[str, Collection[str]] | None = None
) -> list[list[str]]:
    """The files that each rank reads; ``seen`` has for each host the names that are visible there."""
    found: list[list[str]] = [[] for _ in hosts]
    load = [0.0] * len(hosts)
    for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        wanted = [rank for rank, host in enumerate(hosts) if seen is None or name in seen[host]]
        match = RANK.search(name)
        writer = int(next(filter(None, match.groups()))) if match else len(hosts)
        if writer in wanted:
            wanted = [rank for rank in wanted if hosts[rank] == hosts[writer]]
        chosen = min(wanted, key=lambda rank: (load[rank], rank))
        found[chosen].append(name)
        load[chosen] += 1.0 * size + 2**20  # opening a file costs about as much as reading a MiB
    return found
