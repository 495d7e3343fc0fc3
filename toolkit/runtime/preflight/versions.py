"""The same software and the same plan on every node: versions, and a fingerprint of the toolkit's own files."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from pathlib import Path

import toolkit
from toolkit.runtime.preflight.verdict import Trouble, odd_ones_out
from toolkit.runtime.telemetry import PACKAGES

MORE = ("nvidia-nccl-cu12", "nvidia-nccl-cu13", "transformer-engine", "flash-attn", "triton", "msgspec")


def facts() -> dict[str, str]:
    """Name to version; a package that is not installed is left out, which is a difference too."""
    found = {"python": platform.python_version(), "toolkit": toolkit.__version__, "toolkit's files": fingerprint()}
    for package in (*PACKAGES, *MORE):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def fingerprint() -> str:
    """SHA-256 over the names and contents of the Python files of ``toolkit`` and of ``recipes`` beside it, 12 digits.

    Two checkouts have one version and may differ all the same.
    """
    root = Path(toolkit.__file__).resolve().parent
    digest = hashlib.sha256()
    for folder in (root, root.parent / "recipes"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(root.parent)).encode() + b"\0")
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def compare(
    by_node: dict[str, dict[str, str]], first: str, what: str = "", earlier: dict[str, dict[str, str]] | None = None
) -> list[Trouble]:
    """Every node against what most nodes have; ``earlier`` is what nodes of earlier starts had."""
    troubles = []
    for name in sorted({name for facts in by_node.values() for name in facts}):
        values = {node: facts.get(name, "not installed") for node, facts in by_node.items()}
        before = {node: facts.get(name, "not installed") for node, facts in (earlier or {}).items()}
        usual, others = odd_ones_out(values, first, before)
        for value in sorted(set(others.values())):
            nodes = tuple(node for node, found in others.items() if found == value)
            troubles.append(
                Trouble(
                    check="versions",
                    nodes=nodes,
                    message=f"{what}{name} is {value}, the other nodes have {usual}",
                    remedy="activate the same environment on all nodes, on storage that they share",
                )
            )
    return troubles
