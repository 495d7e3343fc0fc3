"""Checkpoints of any framework in a folder: which there are, which are sound, and what points to them.

this toolkit    checkpoint-N with manifest.json              pointer ``latest``
Hugging Face    checkpoint-N                                 none: the highest N is taken
DeepSpeed       global_stepN, or any tag                     ``latest``: one line, the tag
Megatron        iter_NNNNNNN                                 ``latest_checkpointed_iteration.txt``: the number
torch           a folder with .metadata and *.distcp         none
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from pathlib import Path

import msgspec

from toolkit.errors import ToolkitError, reason
from toolkit.runtime import checkpoint, consistency, durable, folders, manifest, soundness, structure
from toolkit.runtime.manifest import MANIFEST, Damage
from toolkit.runtime.together import ALONE, Group

KINDS = ("toolkit", "huggingface", "deepspeed", "megatron", "torch")
MEGATRON_POINTER = "latest_checkpointed_iteration.txt"
ITERATION = re.compile(r"iter_(\d+)")
TAG = re.compile(r"global_?step_?(\d+)")
NUMBER = re.compile(r"(\d+)")
STAGING = re.compile(r"tmp-checkpoint-\d+")  # transformers before 4.42 writes there first
DELETING = ".deleting-"
SET_ASIDE = re.compile(r"incomplete-\d+.*|\..*")


class Found(msgspec.Struct, frozen=True):
    """A folder that is, or was to be, a checkpoint."""

    path: Path
    kind: str  # of KINDS
    step: int
    in_run: bool | None = None  # beside what this toolkit has committed; None: not looked at yet

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.path.name

    def damage(self, deep: bool = True) -> list[Damage]:
        """All that is known to be wrong with it, by file; also where a run deletes it in this moment."""
        try:
            return self._damage(deep)
        except OSError as error:
            return [Damage(Path(error.filename or self.path).name, "unreadable", error.strerror or str(error))]

    def _damage(self, deep: bool) -> list[Damage]:
        if self.kind == "toolkit":
            wrong = checkpoint.verify(self.path, deep=deep)
            told = {each.file for each in wrong}
            wrong += [each for each in consistency.of_run(self.path) if each.file not in told]
            return sorted(wrong, key=lambda each: each.file)
        names = list(manifest.file_names(self.path))
        if not names:
            return [Damage(".", "missing", "the folder is empty")]
        found = [each for name in names if (each := soundness.check(self.path, name, deep))]
        told = {each.file for each in found}
        found += [each for each in structure.missing(self.path, names, self.kind) if each.file not in told]
        if SET_ASIDE.fullmatch(self.name) or (checkpoint.NAME.fullmatch(self.name) and self._is_in_run()):
            found.append(Damage(MANIFEST, "missing", "not committed: a save that is under way, or was never finished"))
        if self.kind == "huggingface":
            found += consistency.step_of(self.path)
            if STAGING.fullmatch(self.name):
                found.append(Damage(".", "missing", "the Trainer gives it its name when all ranks have written"))
        return sorted(found, key=lambda each: each.file)

    def _is_in_run(self) -> bool:
        return _is_run(self.path.parent) if self.in_run is None else self.in_run

    def is_valid(self, deep: bool = True) -> bool:
        """Whether nothing is wrong that would keep it from being loaded."""
        return not any(each.fatal for each in self.damage(deep))


def look(directory: Path) -> list[Found]:
    """All checkpoints of a folder, the oldest step first; the folder itself, where it is one.

    Raises ToolkitError where there is no such folder.
    """
    folders.require(directory)
    kind = kind_of(directory)
    if kind == "toolkit":  # whatever it holds: only a checkpoint has a manifest
        return [Found(directory, kind, _step(directory))]
    if kind and not any(kind_of(each) for each in _folders(directory) if not TAG.fullmatch(each.name)):
        inner = [each for each in _folders(directory) if TAG.fullmatch(each.name)]
        if kind != "deepspeed" or not inner:
            return [Found(directory, kind, _step(directory))]
    in_run = _is_run(directory)  # once for all of them, of which there may be thousands
    found = [Found(path, kind, _step(path), in_run) for path in _folders(directory) if (kind := kind_of(path))]
    return sorted(found, key=lambda each: (each.step, _age(each.path), each.name))


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # a run has just deleted it
        return 0.0


def _folders(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.is_dir() and not SET_ASIDE.fullmatch(path.name))
    except OSError as error:
        raise ToolkitError(
            f"cannot read {directory}: {reason(error)}", remedy="ask for the right to read it"
        ) from error


def kind_of(path: Path) -> str:
    """Which framework's checkpoint a folder is, by its name and its files; "" for none."""
    try:
        names = {each.name for each in path.iterdir()}
    except OSError:
        names = set()  # by its name alone, then: it is told as unreadable
    if MANIFEST in names and path.name != "model":
        return "toolkit"
    if TAG.fullmatch(path.name) or any(name.endswith(("_model_states.pt", "_optim_states.pt")) for name in names):
        return "deepspeed"
    if checkpoint.NAME.fullmatch(path.name) or STAGING.fullmatch(path.name) or "trainer_state.json" in names:
        return "huggingface"
    if ITERATION.fullmatch(path.name) or "common.pt" in names:
        return "megatron"
    if any(structure.OLD_MEGATRON.fullmatch(name) and "." not in name for name in names):
        return "megatron"
    return "torch" if ".metadata" in names or any(name.endswith(".distcp") for name in names) else ""


def _is_run(directory: Path) -> bool:
    """Whether the programs of this toolkit write there: what has no manifest counts for nothing then, however whole."""
    return any((each / MANIFEST).is_file() for each in (directory, *_folders(directory)) if each.name != "model")


def _step(path: Path) -> int:
    try:
        return manifest.read(path).step
    except ToolkitError:  # it has none, or it is told as unreadable
        pass
    numbers = NUMBER.findall(path.name)
    if numbers:
        return int(numbers[-1])
    try:
        return int(json.loads((path / "trainer_state.json").read_bytes())["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def require_sound(path: Path, group: Group = ALONE) -> bool:
    """Whether a manifest vouches for every file of what is to be read; all ranks of the group call it.

    Without one the formats of its files are looked at. Raises ToolkitError with the damaged files.
    """
    known = group.share((path / MANIFEST).is_file())[0]
    if known:
        damage = checkpoint.verify(path, group)
    else:
        damage = group.share(Found(path, "", 0).damage() if group.rank == 0 else [])[0]
    if fatal := [each for each in damage if each.fatal]:
        raise ToolkitError(
            f"{path} is damaged: {'; '.join(f'{each.file} is {each.kind} ({each.text})' for each in fatal)}",
            remedy=f"choose another: toolkit ckpt latest {path.parent} names the newest whole one",
        )
    return bool(known)


def newest_valid(found: list[Found], deep: bool = True) -> Found | None:
    """The newest sound one, looking back from the newest."""
    return next((each for each in reversed(found) if each.is_valid(deep)), None)


def pointer(directory: Path, found: Found) -> tuple[Path, str] | None:
    """The file that names the newest checkpoint to this one's framework, and what it should hold; None: by name."""
    if found.path == directory:
        return None
    if found.kind in ("toolkit", "deepspeed"):
        return directory / checkpoint.LATEST, found.name
    if found.kind == "megatron" and (match := ITERATION.fullmatch(found.name)):
        return directory / MEGATRON_POINTER, str(int(match[1]))
    return None


def held(file: Path) -> str | None:
    """What a pointer holds; None where there is none that can be read."""
    try:
        return file.read_text().strip() if file.is_file() else None
    except (OSError, UnicodeDecodeError):
        return None


def discard_rest(directory: Path) -> None:
    """Delete what kills in the middle of a deletion have left, which is listed nowhere and takes room."""
    for path in directory.glob(f"{DELETING}*"):
        with contextlib.suppress(OSError):  # the next one may
            durable.remove_tree(path)


def discard(found: Found) -> None:
    """Delete a checkpoint so that what is left after a kill does not look like one, or raise ToolkitError."""
    try:
        if found.kind == "toolkit":
            checkpoint.discard(found.path)
            return
        doomed = found.path.with_name(f"{DELETING}{found.name}")
        if os.path.lexists(doomed):  # what a kill has left of another of this name
            durable.remove_tree(doomed)
        shutil.rmtree(durable.rename(found.path, doomed))
    except OSError as error:
        raise ToolkitError(
            f"cannot delete {folders.shown(found.path)}: {reason(error)}",
            remedy="ask its owner to, or for the right to write there",
        ) from error
