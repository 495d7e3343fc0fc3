"""Which checkpoints the folder of a run holds, which of them are whole, and which is the newest; nothing is changed.

Whole by manifest and sizes is quickly told, of one machine (:func:`complete`); what a run goes on from is read by all
ranks together, sums and all (:func:`choose`).
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

from toolkit.errors import ToolkitError, reason
from toolkit.runtime import manifest, shares, sums
from toolkit.runtime.manifest import MANIFEST, Damage, Manifest
from toolkit.runtime.together import ALONE, Group

# the name that the Hugging Face Trainer gives; ".old" while one of the same step is written anew
NAME, SET_ASIDE = re.compile(r"checkpoint-(\d+)(\.old)?"), re.compile(r"incomplete-(\d+)(\.old)?")


def is_complete(checkpoint: Path) -> bool:
    """Whether there is a readable manifest, and each of its files with the right size."""
    try:
        return not manifest.damage(checkpoint, manifest.read(checkpoint), deep=False)
    except ToolkitError:
        return False


def complete(directory: str | Path) -> list[Path]:
    """The checkpoints of a run that look whole by manifest and sizes, oldest step first."""
    return [path for path in every(directory) if is_complete(path)]


def newest_complete(directory: str | Path, count: int = 1) -> list[Path]:
    """The last ``count`` of :func:`complete`; of older ones nothing is read, and there may be thousands."""
    whole = (path for path in reversed(every(directory)) if is_complete(path))
    return list(itertools.islice(whole, count))[::-1]


def verify(checkpoint: str | Path, group: Group = ALONE, deep: bool = True) -> list[Damage]:
    """All that is wrong with a checkpoint, by file; hashing is shared out over the ranks, which all get the answer."""
    path = Path(checkpoint)
    try:
        known = manifest.read(path)
        sizes = {name: each.bytes for name, each in known.files.items()}
        mine = manifest.damage(path, known, shares.to_hash(sizes, group.hosts)[group.rank], deep)
        mine += _beside_the_sums(path, known) if group.rank == 0 else []
    except ToolkitError as error:
        kind = "later" if isinstance(error, manifest.OfAnotherVersion) else "unreadable"
        mine = [Damage(MANIFEST, kind if os.path.lexists(path / MANIFEST) else "missing", error.problems[0].message)]
    found = dict.fromkeys(each for part in group.share(mine) for each in part)  # several may not read the manifest
    return sorted(found, key=lambda each: each.file)


def _beside_the_sums(path: Path, known: Manifest) -> list[Damage]:
    found = []
    try:
        extra = sorted(set(manifest.file_names(path)) - set(known.files))
        found += [Damage(name, "extra", "the manifest does not have it") for name in extra]
    except OSError as error:
        found.append(Damage(Path(error.filename or path).name, "unreadable", error.strerror or str(error)))
    match = NAME.fullmatch(path.name)
    if match and int(match[1]) != known.step:
        found.append(Damage(MANIFEST, "inconsistent", f"it is of step {known.step}, the folder's name of another"))
    return found


def newest_valid(directory: str | Path, group: Group = ALONE, deep: bool = True) -> Path | None:
    """The newest checkpoint whose every file is as its manifest says; None where there is none."""
    return choose(directory, group, deep)[0]


def choose(directory: str | Path, group: Group = ALONE, deep: bool = True) -> tuple[Path | None, list[Path]]:
    """The newest valid checkpoint, and the newer ones that are damaged, the oldest first; the same on every rank.

    Those that only cannot be read now are passed over too, and are in neither. Raises ToolkitError on every rank where
    one of them does not see what rank 0 sees: it would go on from another checkpoint than the others.
    """
    waiting: list[Path] = []
    sums.on_first(lambda: waiting.extend(every(directory)), group, Path(directory))
    damaged: list[Path] = []
    while (path := group.share(_next_whole(waiting))[0]) is not None:
        _require_visible(path, group)
        kinds = {each.kind for each in verify(path, group, deep) if each.fatal}
        if not kinds:
            return path, damaged[::-1]
        if not kinds & {"unreadable", "later"}:
            damaged.append(path)
    return None, damaged[::-1]


def _next_whole(waiting: list[Path]) -> Path | None:
    """The newest that looks whole, which is taken off the list with all that do not."""
    while waiting:
        path = waiting.pop()
        if is_complete(path):
            return path
    return None


def _require_visible(path: Path, group: Group) -> None:
    seen = group.share(os.path.lexists(path / MANIFEST))
    blind = [rank for rank, sees in enumerate(seen) if not sees]
    if seen[0] and blind:
        raise ToolkitError(
            f"rank {blind[0]} on {group.hosts[blind[0]]} does not see {path}, which rank 0 on {group.hosts[0]} sees",
            remedy="the output directory must be on storage that all nodes share",
        )


def every(directory: str | Path) -> list[Path]:
    """All of a run by name alone, the oldest step first."""
    return [path for path, _ in named(directory, NAME)]


def named(directory: str | Path, name: re.Pattern[str]) -> list[tuple[Path, int]]:
    """Folders and steps, the oldest step first; of one step the one that is being replaced first."""
    folder = Path(directory)
    found = [(int(match[1]), not match[2], path) for path in inside(folder) if (match := name.fullmatch(path.name))]
    return [(path, step) for step, _, path in sorted(found)]


def inside(folder: Path) -> list[Path]:
    """What a folder holds, nothing where there is none; raises ToolkitError where this user may not look."""
    try:
        return list(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise ToolkitError(
            f"cannot read {folder}: {reason(error)}", remedy="ask for the right to, or give another --output-dir"
        ) from error
