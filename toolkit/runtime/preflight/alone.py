"""What a node finds by itself, each check within its own time: a file system or a driver may hang for ever."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from toolkit.errors import ToolkitError
from toolkit.runtime import durable
from toolkit.runtime.preflight import smi, storage, versions
from toolkit.runtime.preflight.request import Request

LOCAL_SECONDS = 15.0  # for each check


def look(request: Request, node: int, host: str) -> dict[str, Any]:
    """The facts that this node tells the others; a check that failed has ``error`` and ``remedy`` in its place."""
    found: dict[str, Any] = {"host": host, "plan": {"plan.json": request.plan_sha256}}
    found["plan"]["contract"] = request.contract_sha256
    if "versions" not in request.skip:
        found["versions"] = limited(versions.facts, "versions")
    if "storage" not in request.skip:
        found["storage"] = limited(lambda: msgspec.to_builtins(storage.facts(request, node)), "storage")
    if request.gpus_per_node and "gpus" not in request.skip:
        found["gpus"] = limited(lambda: smi.facts(request.gpus_per_node, request.vendor, LOCAL_SECONDS), "gpus")
    return found


def prepare(request: Request) -> None:
    """On the first node, before all else: what earlier starts left goes, and the file that shows one folder to all."""
    folder = Path(request.output_directory) / storage.FOLDER
    with contextlib.suppress(OSError):  # the check of the storage tells
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            durable.remove_tree(path)
        storage.token_file(request).touch()


def limited(check: Callable[[], Any], name: str) -> Any:
    """The check's result, or ``{"error": ..., "remedy": ...}`` where it fails, or does not come in time."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(check())
        except OSError as error:
            found.append({"error": str(error), "remedy": getattr(error, "remedy", "")})
        except ToolkitError as error:
            found.append({"error": error.problems[0].message, "remedy": error.problems[0].remedy})
        except Exception as error:  # what nobody has thought of is not a mount that hangs
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"the check of {name} failed: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            found.append({"error": text, "remedy": "--skip leaves a check out; please report this one"})

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LOCAL_SECONDS)
    if found:
        return found[0]
    text = f"the check of {name} has not ended within {LOCAL_SECONDS:.0f} s"
    return {
        "error": text,
        "remedy": "a mount or a driver hangs there: look at dmesg, or drain the node",
        "kind": "mount",
    }
