"""Request: what preflight is asked to find, all from the plan; made by the command, since estimates belong there."""

from __future__ import annotations

import msgspec

# Bytes of the messages that are tried, one after the other until one takes long enough to be told from noise
LADDER = (2**16, 2**20, 2**24, 2**27)
LONG_ENOUGH_SECONDS = 0.25


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that does not depend on the node it runs on."""

    plan_sha256: str
    contract_sha256: str
    output_directory: str
    run_id: str
    nodes: int
    hosts: tuple[str, ...] = ()  # names of all nodes, where the scheduler told them
    address: str = ""  # where the first node listens, also for the training that follows
    port: int = 0
    keep: int = 2
    checkpoint_bytes: float = 0.0
    checkpoint_seconds: float = 0.0  # the plan's
    stop_seconds: float = 0.0  # between a request to stop and the end
    files_of_a_checkpoint: int = 100
    gpus_per_node: int = 0  # 0: the plan is for processors
    accelerator: str = ""
    vendor: str = ""
    # seconds that an all-reduce of the key's bytes should take: of one node's GPUs alone, and of two nodes
    alone_seconds: dict[int, float] = {}
    pair_seconds: dict[int, float] = {}
    link: str = ""
    link_assumed: bool = True
    skip: tuple[str, ...] = ()
    time_limit: float = 60.0

    @property
    def meeting_seconds(self) -> float:
        """How long to wait for the other nodes: they may start Python from a slow file system."""
        return 0.5 * self.time_limit
