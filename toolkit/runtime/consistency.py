"""Whether the parts of one checkpoint are of one moment of one run: what sizes and sums of its files cannot tell.

shards      as many of DeepSpeed's optimizer as the manifest has ranks, and a random state for each of them
step        trainer_state.json is of the step of the manifest, or of the folder's name
data        samples seen = step x global batch; with the batches left out, whole epochs and a position in the next
contract    the one of plan.json beside the run: with another a start refuses, though the checkpoint is whole
"""

from __future__ import annotations

import json
from pathlib import Path

from toolkit import plan as plans
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.recipe import sequences_per_step
from toolkit.runtime import experiment, manifest, skipped
from toolkit.runtime.checkpoint import NAME
from toolkit.runtime.manifest import Damage, Manifest
from toolkit.runtime.structure import RANDOM, ZERO

STATE = "trainer_state.json"


def of_run(path: Path) -> list[Damage]:
    """What does not go together in a committed checkpoint; nothing where its manifest cannot be read."""
    try:
        known = manifest.read(path)
    except ToolkitError:
        return []  # told by who reads the files
    return [*_ranks(known), *step_of(path, known.step), *_data(known), *_plan(path, known)]


def step_of(path: Path, step: int | None = None) -> list[Damage]:
    """Whether the Trainer's own state is of this step; without one, of that in the folder's name."""
    if step is None:
        match = NAME.fullmatch(path.name)
        step = int(match[1]) if match else None
    try:
        own = json.loads((path / STATE).read_bytes())["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if step is None or own == step:
        return []
    return [Damage(STATE, "inconsistent", f"it is of step {own}, the checkpoint of step {step}")]


def _ranks(known: Manifest) -> list[Damage]:
    names = [name.rpartition("/")[2] for name in known.files]
    shards = {int(match[2]) for name in names if (match := ZERO.fullmatch(name)) and match[4] == "optim"}
    random = {int(match[1]) for name in names if (match := RANDOM.fullmatch(name))}
    found = []
    for held, name, what in (
        (shards, "zero_pp_rank_{}_mp_rank_00_optim_states.pt", "the share of the optimizer of rank"),
        (random, "rng_state_{}.pth", "the random state of rank"),
    ):
        if not held:
            continue
        missing = sorted(set(range(known.world_size)) - held)
        found += [Damage(name.format(rank), "missing", f"{what} {rank} of {known.world_size}") for rank in missing]
        if max(held) >= known.world_size:
            said = f"the manifest has {known.world_size} ranks"
            found.append(Damage(name.format(max(held)), "inconsistent", said))
    return found


def _data(known: Manifest) -> list[Damage]:
    data = known.data
    if data is None or known.step <= 0 or known.samples_seen % known.step:
        return []
    left_out = tuple(known.more.get(skipped.FACT) or ())
    read = skipped.batch_of(known.step, left_out) * (known.samples_seen // known.step)  # with what was left out
    before = read - data.position
    whole = before == 0 if data.epoch == 0 else before > 0 and before % data.epoch == 0
    if whole and (data.epoch == 0 or data.position <= before // data.epoch):
        return []
    said = f"{read:,} samples are not {data.epoch} epochs and {data.position:,} of the next"
    return [Damage(manifest.MANIFEST, "inconsistent", said)]


def _plan(path: Path, known: Manifest) -> list[Damage]:
    plan = _beside(path)
    if plan is None or not known.contract_sha256:
        return []
    if said := experiment.told(manifest.flat(known), plan.contract):
        said = f"another experiment, which a start refuses to go on with: {said.replace('in this plan', 'here')}"
        return [Damage("plan.json", "contract", said)]
    found = []
    batch = plan.contract.global_batch_size
    if known.samples_seen and known.samples_seen != known.step * batch:
        said = f"{known.samples_seen:,} samples seen after {known.step} steps of {batch}"
        found.append(Damage(manifest.MANIFEST, "inconsistent", said))
    tokens = sequences_per_step(plan.contract) * plan.contract.sequence_length
    if known.tokens and known.tokens != known.step * tokens:
        said = f"{known.tokens:,} tokens after {known.step} steps of {tokens:,}"
        found.append(Damage(manifest.MANIFEST, "inconsistent", said))
    return found


def _beside(path: Path) -> Plan | None:
    """The plan that the run's folder holds; None where there is none that can be read."""
    for folder in (path.resolve().parent, path.resolve().parent.parent):
        try:
            return plans.load((folder / "plan.json").read_text())
        except (OSError, ToolkitError, ValueError):
            continue
    return None
