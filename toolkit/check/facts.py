"""What the check is told beside the files, and the arithmetic of nodes."""

from __future__ import annotations

import msgspec

from toolkit.numeric import ceil_div

NCCL_SECONDS, OTHER_SECONDS = 600.0, 1800.0  # torch.distributed's own time-outs: NCCL since 2.2, the others


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the machines and of the run; 0 is unknown."""

    gpus: int = 0  # that the job is to have in all
    gpus_per_node: int = 0
    max_gpus_per_node: int = 0  # what a job may have of one node, where that is fewer
    fast_domain_gpus: int = 0  # GPUs that the fast link joins
    node_cpus: int = 0
    step_seconds: float = 0.0
    save_seconds: float = 0.0
    samples: int = 0  # that are prepared while the other ranks wait
    samples_per_second: float = 0.0
    timeout_seconds: float = 0.0  # of the process group; 0: what the script says, else NCCL's own
    cluster: str = ""  # its name, for messages

    @property
    def usable_per_node(self) -> int:
        """GPUs of a node that a job can have; 0 where nobody said."""
        given = [count for count in (self.gpus_per_node, self.max_gpus_per_node) if count]
        return min(given) if given else 0

    @property
    def nodes(self) -> int:
        """Nodes that the GPUs fill: ``ceil(gpus / usable of a node)``; 0 where either is unknown."""
        return int(ceil_div(self.gpus, self.usable_per_node)) if self.gpus and self.usable_per_node else 0

    @property
    def preparing_seconds(self) -> float:
        """``samples / rate``."""
        return self.samples / self.samples_per_second if self.samples and self.samples_per_second else 0.0

    @property
    def lead_seconds(self) -> float:
        """The least time from the signal to the kill: a step that has begun, and the save after it."""
        return self.step_seconds + self.save_seconds
