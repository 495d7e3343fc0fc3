"""``skipped.json``: which batches a run leaves out, and when it went back for that.

Step ``k`` of a run reads the k-th batch that is not left out, so the order of the data follows from the contract and
this list alone. The list is on the disk before the run goes back; each checkpoint repeats it in its manifest
(``skipped_batches``), so that

    a checkpoint after s steps is of this run where both lists leave out the same of the batches it has read

and one that has learnt from a batch that is now left out is deleted before a start looks for what to go on from.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from pathlib import Path

import msgspec

from toolkit.errors import ToolkitError
from toolkit.runtime import checkpoint, durable, manifest, storage

SKIPPED, FACT = "skipped.json", "skipped_batches"


class Setback(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run went back once, and how far."""

    step: int
    kind: str  # nan | spike
    quantity: str
    value: float | None = None
    batches: tuple[int, ...] = ()
    back_to: int = 0  # step of the checkpoint
    at: float = 0.0  # seconds since 1970


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """Batches are counted from 0 over the whole run; batch b holds the samples from b times the global batch on."""

    schema: int = 1
    batches: tuple[int, ...] = ()  # in ascending order
    setbacks: tuple[Setback, ...] = ()

    def after(self, setback: Setback) -> Skipped:
        """With one more."""
        batches = tuple(sorted({*self.batches, *setback.batches}))
        return Skipped(batches=batches, setbacks=(*self.setbacks, setback))

    def in_a_row(self, saved: int) -> int:
        """How many of the last setbacks have come since the newest checkpoint, of step ``saved``, was made or used."""
        count = 0
        while count < len(self.setbacks) and self.setbacks[-1 - count].step > saved:
            count += 1
        return count


def batch_of(place: int, skipped: Sequence[int]) -> int:
    """The batch that is number ``place`` (from 0) of those not left out; ``skipped`` in ascending order."""
    low, high = 0, len(skipped)  # how many are left out before it: skipped[i] - i counts those that stay before it
    while low < high:
        middle = (low + high) // 2
        if skipped[middle] - middle <= place:
            low = middle + 1
        else:
            high = middle
    return place + low


def sample_of(index: int, global_batch: int, skipped: Sequence[int]) -> int:
    """The sample of the data that is number ``index`` of those a run trains on."""
    if not skipped:
        return index
    place, within = divmod(index, global_batch)
    return batch_of(place, skipped) * global_batch + within


def read(directory: str | Path) -> Skipped:
    """The list of a run; that of its newest checkpoint where it is lost. Raises ToolkitError for a broken file."""
    path = Path(directory) / SKIPPED
    try:
        return msgspec.json.decode(path.read_bytes(), type=Skipped)
    except FileNotFoundError:
        newest = checkpoint.newest_complete(directory)
        return Skipped(batches=of_checkpoint(newest[0]) if newest else ())
    except (OSError, msgspec.MsgspecError) as error:
        raise ToolkitError(
            f"cannot read {path}: {error}",
            remedy="its list is also in the manifest of the newest checkpoint: remove the file to take that one",
        ) from error


def write(directory: str | Path, skipped: Skipped) -> None:
    """On the disk when this returns."""
    durable.replace(Path(directory) / SKIPPED, msgspec.json.format(msgspec.json.encode(skipped), indent=1) + b"\n")


def of_checkpoint(path: Path) -> tuple[int, ...]:
    """What a checkpoint's run had left out."""
    return tuple(manifest.flat(manifest.read(path)).get(FACT, ()))


def agree(step: int, one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether the first ``step`` steps read the same batches under both lists."""
    if step <= 0:
        return True
    end = batch_of(step - 1, one)  # the last that has been read
    return end == batch_of(step - 1, other) and (
        list(one[: bisect.bisect(one, end)]) == list(other[: bisect.bisect(other, end)])
    )


def discard_others(directory: str | Path) -> list[str]:
    """Delete the checkpoints that have read what is left out; for one rank, before it looks for the newest."""
    if not (Path(directory) / SKIPPED).exists():
        return []
    wanted = read(directory).batches
    gone = [
        path
        for path in checkpoint.complete(directory)
        if not agree(manifest.read(path).step, of_checkpoint(path), wanted)
    ]
    return discard(directory, gone)


def discard_copies(url: str, wanted: Sequence[int]) -> None:
    """The same in durable storage; a run that has lost its folder would begin from there, with another list."""
    base = url.rstrip("/")
    for name in storage.names(url) if wanted else ():
        try:
            known = storage.read(f"{base}/{name}")
        except (storage.NotThere, manifest.NoManifest, manifest.OfAnotherVersion):
            continue
        if not agree(known.step, known.more.get(FACT) or (), wanted):
            storage.discard(f"{base}/{name}")


def discard(directory: str | Path, gone: Sequence[Path]) -> list[str]:
    """Delete these checkpoints, the newest first; the pointer names what stays before."""
    stays = [path for path in checkpoint.complete(directory) if path not in gone]
    if stays and gone:
        checkpoint.point_to(directory, stays[-1].name)
    for path in reversed(gone):
        checkpoint.discard(path)
    return [path.name for path in gone]
