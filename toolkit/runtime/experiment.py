"""Whether a checkpoint is of the experiment that a plan is for, and in which settings the two differ where not.

An experiment is a contract: one checkpoint can go on under that contract alone, on whatever layout. Its fingerprint
decides; its settings, which stand beside it, tell what to change. Manifests of before have only the fingerprint: then
the plan.json that the run has left in its folder tells, where its fingerprint is that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from toolkit import plan as plans
from toolkit.errors import Problem, ToolkitError
from toolkit.recipe import Contract, contract_sha256

SHA256, SETTINGS = "contract_sha256", "contract"  # what manifests and the marker of a finished run have
LONGEST = 60  # characters of a value that are shown
ABSENT = "not there"


class Difference(NamedTuple):
    """A setting, as it was saved and as it is now."""

    name: str
    saved: str
    now: str

    def __str__(self) -> str:
        return f"{self.name} is {self.saved} there and {self.now} in this plan"


def facts(contract: Contract) -> dict[str, Any]:
    """What is saved of a contract."""
    return {SHA256: contract_sha256(contract), SETTINGS: msgspec.to_builtins(contract)}


def differences(saved: Mapping[str, Any], contract: Contract) -> list[Difference]:
    """Between settings as they were saved and those of a contract; a setting that was not saved had its default."""
    now, defaults = msgspec.to_builtins(contract), msgspec.to_builtins(Contract())
    pairs = {name: (saved.get(name, defaults[name]), value) for name, value in now.items()}
    found = [Difference(name, _shown(was), _shown(value)) for name, (was, value) in pairs.items() if was != value]
    return found + [Difference(name, _shown(saved[name]), ABSENT) for name in saved if name not in now]


def told(saved: Mapping[str, Any], contract: Contract, beside: Path | None = None) -> str:
    """How the experiments differ, in words; empty where they are one.

    ``saved`` are the facts of a manifest, ``beside`` a folder in which the run may have left its plan.
    """
    sha256, own = saved.get(SHA256), contract_sha256(contract)
    if sha256 == own:
        return ""
    settings = saved.get(SETTINGS) or _of_plan(beside, sha256)
    found = differences(settings, contract) if isinstance(settings, Mapping) and settings else []
    if found:
        return ", ".join(map(str, found))
    was = f"{str(sha256)[:12]} there" if sha256 else "not told there"
    return f"the contract's fingerprint is {was} and {own[:12]} in this plan; which settings differ was not saved"


def require_same(saved: Mapping[str, Any], contract: Contract, where: str | Path, beside: Path | None = None) -> None:
    """Raise ToolkitError with all settings that differ, unless ``where`` was saved under this contract."""
    said = told(saved, contract, beside)
    if said:
        raise ToolkitError(refusal(where, said))


def refusal(where: str | Path, said: str) -> Problem:
    """As :func:`told` has said it."""
    return Problem(
        f"{where} belongs to another experiment: {said}",
        "plan with its settings again, or begin anew with another --output-dir (and --durable); to train its weights"
        " on under other settings: toolkit ckpt convert CHECKPOINT FOLDER --to hugging-face, and FOLDER as model",
    )


def _of_plan(folder: Path | None, sha256: Any) -> dict[str, Any]:
    try:
        contract = plans.load((folder / "plan.json").read_bytes()).contract if folder is not None else Contract()
    except (OSError, ToolkitError):
        return {}
    return msgspec.to_builtins(contract) if contract_sha256(contract) == sha256 else {}


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode() if not isinstance(value, float) else repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
