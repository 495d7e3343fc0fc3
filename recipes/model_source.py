"""Where the model of a contract lies: a folder, a name of the hub, or nowhere, since only its shape is known."""

from __future__ import annotations

from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.registry.files import expanded, is_there


def hub_or_path(plan: Plan) -> str:
    """The folder or hub name with a ``config.json``; empty where the contract names only a shape."""
    name = plan.contract.model
    path = expanded(name)
    there = bool(name) and is_there(path)
    if there and path.is_dir() and (path / "config.json").is_file():
        return str(path)
    if there and path.is_file() and path.name == "config.json":
        return str(path.parent)
    return name if name.count("/") == 1 and not there and not name.startswith((".", "~", "/")) else ""


def require_source(plan: Plan) -> None:
    """Raises ToolkitError where the folder that the plan was made from is not there: its weights would be drawn."""
    planned = plan.model.source  # of a registered model it is the address of its config.json
    if plan.contract.init != "model" or "://" in planned or Path(planned).name != "config.json":
        return
    if not is_there(expanded(plan.contract.model)):
        raise ToolkitError(
            f"the model {plan.contract.model!r} is not there, seen from {Path.cwd()}: it was planned from {planned}",
            remedy="plan again with the folder's absolute path, or put the folder there",
        )


def has_weights(source: str) -> bool:
    """Whether a local folder holds weights, or an index that says it should; a hub name is taken to."""
    folder = Path(source)
    return not folder.is_dir() or any(
        any(folder.glob(name)) for name in ("*.safetensors", "pytorch_model*.bin", "*.index.json")
    )
