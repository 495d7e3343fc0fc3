"""Files of commands: a plan.json is read, and what was produced is written, all of it or nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.errors import Problems, ToolkitError, reason

if TYPE_CHECKING:
    from toolkit.plan import Plan

SCRIPTS = (".sh", ".sbatch")


def read_plan(path: str) -> Plan:
    """The plan in a ``plan.json``; raises ToolkitError for a file that cannot be read or holds none."""
    from toolkit import plan as plans
    from toolkit.registry.files import contents, is_there

    try:
        text = contents(path)
    except (OSError, ValueError) as error:
        inner = Path(path) / "plan.json"
        remedy = f"its plan is {inner}" if is_there(inner) else "make it with toolkit plan --out"
        raise ToolkitError(f"cannot read {path!r}: {reason(error)}", remedy=remedy) from error
    return plans.load(text, path)


def inside(directory: str | Path) -> Path | None:
    """``run`` in the folder of a plan, where its run is written; None for any other folder. Says so on stderr."""
    folder = Path(directory)
    run = folder / "run"
    if not ((folder / "plan.json").is_file() and run.is_dir()):
        return None
    import click

    click.echo(f"the run in {folder} is {run}", err=True)
    return run


def write_files(directory: str | Path, files: dict[str, str], force: bool = False) -> list[Path]:
    """Write ``files`` (name: text) into ``directory`` and return their paths in order of name.

    The directory is made if it is missing. Every text goes to a temporary file first and is then
    renamed, so a reader never sees half a file and a full disk leaves the old files as they were.
    Scripts are made executable. Raises ToolkitError, naming every file that exists already unless
    ``force`` is given, and for what the file system refuses.
    """
    if not str(directory):
        raise ToolkitError("the directory for the files has an empty name", remedy="name one, or . for this one")
    folder = Path(directory)
    temporary: dict[Path, Path] = {}
    try:
        _refuse(folder, files, force)
        if force:
            _refuse_running(folder, files)
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(files):
            path = folder / name
            half = path.with_name(f".{name}.{os.getpid()}.part")
            temporary[path] = half
            half.write_bytes(files[name].encode())
            half.chmod(0o755 if name.endswith(SCRIPTS) else 0o644)
        for path, half in temporary.items():
            half.replace(path)
    except (OSError, ValueError, RecursionError) as error:
        raise ToolkitError(f"cannot write {folder}: {reason(error)}", remedy="choose another --out") from error
    finally:
        for half in temporary.values():
            with contextlib.suppress(OSError):  # also a name too long to be there
                half.unlink()
    return list(temporary)


def _refuse_running(folder: Path, files: dict[str, str]) -> None:
    """Raise ToolkitError where files would change that a run in the folder ``run`` reads at its next start."""
    run = folder / "run"
    if not run.is_dir():
        return
    changed = [name for name in sorted(files) if _differs(folder / name, files[name].encode())]
    from toolkit.runtime.holder import whose

    if changed and (who := whose(run)):
        raise ToolkitError(
            f"{run} belongs to {who}, which reads {', '.join(changed)} again when it is started again",
            remedy="choose another --out, or wait for its end",
        )


def _differs(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() != content


def require_place(directory: str | Path, names: Sequence[str], force: bool = False) -> None:
    """Raise what :func:`write_files` would, before minutes of work are lost; leaves nothing there."""
    folder = Path(directory)
    try:
        _refuse(folder, dict.fromkeys(names, ""), force)
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)  # the only way to know whether it can be made
        writable = os.access(folder, os.W_OK | os.X_OK)
        for each in missing:
            each.rmdir()
        if not writable:
            raise ToolkitError(f"cannot write {folder}: it is read-only, or not yours", remedy="choose another --out")
    except (OSError, ValueError, RecursionError) as error:
        raise ToolkitError(f"cannot write {folder}: {reason(error)}", remedy="choose another --out") from error


def _refuse(folder: Path, files: dict[str, str], force: bool) -> None:
    with Problems() as problems:
        if folder.exists() and not folder.is_dir():
            problems.add(f"{folder} is not a directory", "choose another --out")
            return
        there = []
        for name in sorted(files):
            if name in ("", ".", "..") or Path(name).name != name:
                problems.add(f"{name!r} is not a plain file name")
            elif (folder / name).is_dir():
                problems.add(f"{folder / name} is a directory", "choose another --out")
            elif not force and os.path.lexists(folder / name):
                there.append(name)
        if there:
            what = f"{folder / there[0]} exists"
            if len(there) > 1:
                what = f"{len(there)} files exist in {folder}: {', '.join(there)}"
            problems.add(what, "add --force to overwrite, or choose another --out")
