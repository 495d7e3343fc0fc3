"""What a text says about the network between nodes."""

from __future__ import annotations

import re
from typing import NamedTuple

GB = 1e9
BITS_PER_BYTE = 8.0
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
