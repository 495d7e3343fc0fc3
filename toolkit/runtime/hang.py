"""What the ranks of a run that hangs leave in ``stacks``: a mark, and where each was; who is to be looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

HUNG = 77  # exit code
FOLDER, MARK = "stacks", "HANG"
Stamp = tuple[int, int]  # inode and time of change of a file: another one where it has been written anew


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank is."""

    rank: int
    section: str
    step: int
    seconds: float
    limit: float = 0.0


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a hang, from the files of the ranks."""

    first: Place
    ranks: tuple[Place, ...]
    silent: tuple[int, ...]  # ranks that wrote nothing

    @property
    def suspects(self) -> tuple[int, ...]:
        """Silent ranks, or else those whose section and step are not those of most."""
        if self.silent:
            return self.silent
        where = [(each.section, each.step) for each in self.ranks]
        most = max(set(where), key=where.count)
        odd = tuple(each.rank for each in self.ranks if (each.section, each.step) != most)
        return odd if len(odd) < len(where) / 2 else ()


def stamps(folder: Path) -> dict[str, Stamp]:
    """Of each file of a hang; what its clock says is compared with nothing, since that of a node may be wrong."""
    found: dict[str, Stamp] = {}
    for path in (folder / MARK, *folder.glob("rank-*.json")):
        with contextlib.suppress(OSError):
            stat = path.stat()
            found[path.name] = (stat.st_ino, stat.st_mtime_ns)
    return found


def new(folder: Path, old: Mapping[str, Stamp]) -> list[str]:
    """Names of the files that were not there, or have been written anew."""
    return [name for name, stamp in stamps(folder).items() if old.get(name) != stamp]


def written(folder: Path, old: Mapping[str, Stamp]) -> list[int]:
    """The ranks that have told where they were."""
    numbers = [name.removeprefix("rank-").removesuffix(".json") for name in new(folder, old) if name != MARK]
    return [int(number) for number in numbers if number.isdecimal()]


def read_hang(directory: str | Path, world_size: int, old: Mapping[str, Stamp] | None = None) -> Hang:
    """The newest hang of a run, from the files that its ranks left, but for ``old`` ones; OSError if there was none."""
    folder = Path(directory) / FOLDER
    ranks = sorted(written(folder, old or {}))
    return Hang(
        first=msgspec.json.decode((folder / MARK).read_bytes(), type=Place),
        ranks=tuple(msgspec.json.decode((folder / f"rank-{rank}.json").read_bytes(), type=Place) for rank in ranks),
        silent=tuple(rank for rank in range(world_size) if rank not in ranks),
    )


def in_one_line(hang: Hang) -> str:
    """The same for ``outcome.json``."""
    return "; ".join(line.strip() for line in describe(hang).removeprefix("error: ").splitlines())


def describe(hang: Hang) -> str:
    """What happened, for the log."""
    first = hang.first
    text = (
        f"error: the run hangs: {first.section} {first.step or ''} has taken {first.seconds:.0f} s on rank"
        f" {first.rank}, its limit is {first.limit:.0f} s; exit code {HUNG}"
    )
    if hang.silent:
        text += f"\n  no answer from rank {', '.join(map(str, hang.silent))}: stopped, or its node is gone"
    elif hang.suspects:
        names = [f"{each.rank} ({each.section} {each.step})" for each in hang.ranks if each.rank in hang.suspects]
        text += f"\n  elsewhere than the others: rank {', '.join(names)}"
    return f"{text}\n  the stacks of the ranks are in the folder {FOLDER} of the output directory"
