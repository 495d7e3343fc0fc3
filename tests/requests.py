"""Requests for tests: real models and clusters by name."""

from __future__ import annotations

from typing import Any

from toolkit.cli.request import build
from toolkit.search.request import Request


def asked(**options: Any):
    """What a command line with these options asks; fields of Strategy may be pinned by name."""
    return build(options)


def request_for(
    model: str = "llama-2-7b",
    gpus: int | str = 64,
    accelerator: str = "h100",
    framework: str = "any",
    pins: dict[str, int] | None = None,
    **options: Any,
) -> Request:
    """A Request with pins given directly."""
    made = build({"model": model, "gpus": str(gpus), "accelerator": accelerator, "framework": framework, **options})
    return made.request.replace(pins=pins or {})
