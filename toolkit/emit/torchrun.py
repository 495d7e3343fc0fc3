"""``launch.sh``: torchrun on this machine, or on each node of several without a scheduler."""

from __future__ import annotations

from toolkit.emit import script, shell
from toolkit.plan import Plan


def launch_script(plan: Plan, files: script.Files | None = None) -> str:
    """The whole script; it finds its files beside itself unless ``files`` names a directory.

    With several nodes it is started on each, with ``RDZV_ENDPOINT=HOST:PORT`` and ``RDZV_ID=NAME``: the
    c10d rendezvous needs no node ranks. What the script is given goes to the program. Containers of the
    site are for its jobs and are not used here. Raises ToolkitError for values that no script can carry.
    """
    files = files or script.files_of(plan, "")
    lines = ["#!/bin/bash", *script.title(plan), *script.assignments(plan, files)]
    if files.directory:
        lines += script.location(files.directory, files.output_directory)
    else:
        lines.append(shell.body("beside").rstrip("\n"))
    return "\n".join(lines) + "\n\n" + shell.body("common") + "\n" + shell.body("launch")
