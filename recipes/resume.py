"""From which checkpoint a start goes on, by which way, and which starts must not.

:func:`find` is the one call: the same layout loads as it is, other ranks, another ZeRO stage or another framework of
the same program in a form that this one loads (written here, once, by one rank), other degrees of megatron-core by its
own loader, and what no loader can do is a sentence before any engine starts.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from recipes.ranks import everywhere, shared
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.runtime import checkpoint, experiment, reshard, skipped
from toolkit.runtime.manifest import Manifest
from toolkit.runtime.saver import start_from_durable
from toolkit.runtime.together import ALONE, Group

CONVERTED = {reshard.UNIVERSAL: "universal", reshard.REWRITTEN: "rewritten"}  # folders of the run for other forms


class Start(NamedTuple):
    """``path`` is what to load; ``name`` the checkpoint that it is, or was made from, written after ``step``."""

    path: Path
    name: str
    step: int
    route: reshard.Route
    facts: dict[str, Any]

    @property
    def converted(self) -> bool:
        """Whether ``path`` is in DeepSpeed's universal form."""
        return self.route.kind == reshard.UNIVERSAL


def facts(plan: Plan) -> dict[str, Any]:
    """What a later start must share with a checkpoint to go on from it, and what decides how."""
    return experiment.facts(plan.contract) | reshard.facts(plan.strategy, plan.workload)


def finished(plan: Plan, folder: Path) -> dict[str, Any] | None:
    """What the marker of a finished run says, if there is one; raises if it is another experiment's."""
    done = checkpoint.finished(folder)
    if done is not None:
        experiment.require_same(done, plan.contract, f"the finished run in {folder}", folder)
    return done


def require_same_experiment(plan: Plan, folder: Path) -> None:
    """Raise ToolkitError where the newest checkpoint is of another experiment; reads no more than manifests.

    Before torch and the data, which may take hours: :func:`find` refuses it as well.
    """
    for path in checkpoint.newest_complete(folder):
        try:
            saved = checkpoint.facts(path)
        except ToolkitError:  # gone since: another job writes here, which is told by its lease
            return
        experiment.require_same(saved, plan.contract, path, folder)


def required(plan: Plan) -> Callable[[dict[str, Any], str], None]:
    """What raises ToolkitError for facts of a checkpoint of another experiment, and where it is."""
    return lambda saved, where: experiment.require_same(saved, plan.contract, where)


def newest(plan: Plan, folder: Path) -> str | None:
    """Name of the newest valid checkpoint, which this plan must be able to continue; for one rank to call."""
    checkpoint.set_aside_incomplete(folder)
    _discard_others(folder, 0)
    path = checkpoint.newest_valid(folder)
    if path is None:
        return None
    _route(plan, path)
    return path.name


def find(plan: Plan, folder: Path, group: Group = ALONE, durable: str = "") -> Start | None:
    """The newest valid checkpoint, in the form that this plan's framework and ranks can load; all ranks call it.

    Torn and damaged ones are set aside before, and a newer one is fetched from ``durable`` storage, if there is one.
    Raises ToolkitError on every rank for one that this plan cannot continue
    (:func:`toolkit.runtime.reshard.route`), and where a machine does not see what rank 0 sees.
    """
    aside = shared(lambda: _tidied(folder, lambda: checkpoint.set_aside_incomplete(folder)), group)
    everywhere(lambda: _discard_others(folder, group.rank), group)
    path, damaged = checkpoint.choose(folder, group)
    aside += shared(lambda: _tidied(folder, lambda: checkpoint.set_aside(folder, damaged)), group)
    path = _newer_copy(plan, folder, group, durable, path) or path
    if group.rank == 0:
        _tell_passed_over(folder, aside, path)
    if path is None:
        return None
    start = shared(lambda: _start(plan, folder, path), group)
    everywhere(lambda: _require_visible(start), group)
    return start


def _tidied(folder: Path, action: Callable[[], list[Path]]) -> list[Path]:
    try:
        return action()
    except OSError as error:
        raise ToolkitError(
            f"cannot set aside what is not whole in {folder}: {error}", remedy="mend the storage, then start again"
        ) from error


def _newer_copy(plan: Plan, folder: Path, group: Group, durable: str, own: Path | None) -> Path | None:
    """A checkpoint fetched from durable storage; none that has learnt from what the run leaves out by now."""
    have = shared(lambda: int(checkpoint.facts(own)["step"]) if own else -1, group)

    def usable(known: Manifest) -> bool:
        if not (folder / skipped.SKIPPED).exists():
            return True
        left_out = tuple(known.more.get(skipped.FACT) or ())
        return skipped.agree(known.step, left_out, skipped.read(folder).batches)

    name = start_from_durable(folder, durable, group, required(plan), have, usable)
    if name is not None and group.rank == 0:
        print(f"note: {name} is fetched from {durable}", flush=True)
    return folder / name if name else None


def _discard_others(folder: Path, rank: int) -> None:
    if rank == 0 and (gone := skipped.discard_others(folder)):
        print(f"note: {', '.join(gone)} deleted: trained on batches that {skipped.SKIPPED} leaves out", flush=True)


def _tell_passed_over(folder: Path, torn: list[Path], chosen: Path | None) -> None:
    """Steps are done again, perhaps many: that is never left unsaid."""
    every = checkpoint.every(folder)  # oldest first
    newer = [
        path for path in every[every.index(chosen) + 1 if chosen in every else 0 :] if checkpoint.is_complete(path)
    ]
    names = [path.name for path in (*newer, *torn)]
    if names:
        why = f"toolkit ckpt verify {folder / names[-1]} tells why"
        print(f"warning: not whole, and passed over: {', '.join(names)} ({why})", flush=True)
    if names and chosen is None:
        print(f"warning: no checkpoint in {folder} is whole: the run begins at its first step again", flush=True)


def _start(plan: Plan, folder: Path, path: Path) -> Start:
    saved, route = _route(plan, path)
    loaded = _converted(plan, folder, path, saved, route.kind) if route.kind in CONVERTED else path
    return Start(loaded, path.name, int(saved["step"]), route, saved)


def _route(plan: Plan, path: Path) -> tuple[dict[str, Any], reshard.Route]:
    saved, wanted = checkpoint.facts(path), facts(plan)
    experiment.require_same(saved, plan.contract, path, path.parent)
    return saved, reshard.route(saved, wanted, str(path))


def _converted(plan: Plan, folder: Path, path: Path, saved: dict[str, Any], kind: str) -> Path:
    """A checkpoint in the form that this plan loads, committed in a folder of its own.

    One that was made before is taken as it is.
    """
    from toolkit.runtime import rewrite, universal

    store, step = folder / CONVERTED[kind], int(saved["step"])
    precision = plan.workload.precision
    form = rewrite.form(plan.strategy.framework, plan.strategy.zero_stage)
    made = {"made_from": universal.mark(path)}
    if form != rewrite.UNIVERSAL:
        made |= {"form": form, "form_precision": precision}
    checkpoint.set_aside_incomplete(store)
    valid = checkpoint.newest_valid(store)
    if valid is not None and made.items() <= checkpoint.facts(valid).items():
        return valid
    target = checkpoint.begin(store, step)
    sharded = saved.get("framework", "deepspeed") == "deepspeed" and saved.get("zero_stage")
    if form == rewrite.UNIVERSAL and sharded and plan.workload.optimizer != "sgd":
        universal.convert(path, target)  # a weight at a time
    else:
        rewrite.convert(path, target, form, precision, step)
    checkpoint.commit(target, saved | made)
    return target


def _require_visible(start: Start) -> None:
    if not (start.path / checkpoint.MANIFEST).is_file():
        raise ToolkitError(
            f"{platform.node()} does not see {start.path}, from which rank 0 goes on",
            remedy="the output directory must be on storage that all nodes share",
        )


def describe(start: Start) -> str:
    """Where the run goes on, and how its state got into this layout."""
    how = "" if start.route.kind == reshard.PLAIN else f" ({start.route.kind}: {start.route.why})"
    return f"resuming from {start.name}{how}"


def drop_converted(folder: Path) -> None:
    """Delete other forms, once there is a newer checkpoint of the run's own layout; for one rank to call."""
    for name in CONVERTED.values():
        store = folder / name
        for path in checkpoint.complete(store):
            checkpoint.discard(path)
        shutil.rmtree(store, ignore_errors=True)
