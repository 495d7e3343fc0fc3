"""Many faults, one after another, at random moments of real runs: ``python -m tests.cluster.soak --faults 200``.

Each run is planned and emitted as a user does and submitted unedited to a Slurm of four nodes. Until it is finished,
fault after fault is drawn by ``--seed`` and injected. Then the run must be the undisturbed one: every step's loss,
gradient norm, learning rate and samples, bit for bit, also of steps that were done twice; every evaluation; every file
of the last checkpoint and of the result. After each fault it must have gone on from the newest checkpoint that was
committed before, or, where it was asked to stop, from the step that it had done.

OUT/faults-SEED.jsonl has a line for each fault, runs-SEED.jsonl one for each run; what one was about is repeated with
``--seed SEED --only RUN``, as far as times can be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tests.cluster import runs, sameness, slurm, soak_table
from tests.cluster.moments import LONG, STEPS
from tests.cluster.random_faults import SRUN, TORCHRUN
from tests.cluster.sameness import Undisturbed
from tests.cluster.under_fire import Chain, Row, Soak

RECIPES = {
    "tiny, DDP": ("tiny", "--framework", "ddp"),
    "tiny, ZeRO-1": ("tiny", "--framework", "deepspeed", "--zero", "1"),
    "tiny, ZeRO-2": ("tiny", "--framework", "deepspeed", "--zero", "2"),
    "tiny, ZeRO-3": ("tiny", "--framework", "deepspeed", "--zero", "3"),
    "tiny-pretrain, Megatron": ("tiny-pretrain",),
}
TOKENS = STEPS * 16 * 128
# more faults than any run has, so that only what is broken stops for good
CAPS = {"MAX_REQUEUES": "1000", "MAX_NO_PROGRESS": "20", "OMP_NUM_THREADS": "1"}
SMALL_DISK = "256m"


def one_run(
    cluster: slurm.Cluster, out: Path, seed: int, number: int, faults: int, names: list[str], known: dict
) -> list[Row]:
    """A run of a recipe with at most so many faults, and what is wrong with its end."""
    dice = random.Random(f"{seed}.{number}")
    name, launcher, small = dice.choice(names), dice.choice((TORCHRUN, SRUN)), dice.random() < 0.4
    if name not in known:
        known[name] = undisturbed(cluster, out / f"undisturbed-{len(known)}-{seed}", RECIPES[name])
    folder = out / f"run-{seed}-{number}"
    emit(folder, RECIPES[name], launcher)
    since = time.monotonic()
    with (out / f"faults-{seed}.jsonl").open("a") as file:
        soak = Soak(Chain(cluster, folder, small and cluster.mode != "plain"), name, launcher, seed, number, file)
        try:
            soak.hit(faults)
        except Exception as error:  # the table must come all the same
            soak.problems.append(f"{type(error).__name__}: {error}")
        finally:
            cluster.run("scancel", soak.chain.number, check=False)
    chain = soak.chain
    problems = soak.problems + sameness.differences(folder, chain.output, known[name])
    # a torchrun whose slurmstepd was killed is not ended with the job: it waits 300 s for the others at torch's barrier
    problems += [f"left running: {words}" for words in chain.nothing_left(timeout=330)]
    bad = bool(problems) or any(row.problems for row in soak.rows)
    told = {"seed": seed, "run": number, "recipe": name, "launcher": launcher, "small": small, "faults": len(soak.rows)}
    with (out / f"runs-{seed}.jsonl").open("a") as file:
        print(json.dumps(told | {"seconds": round(time.monotonic() - since), "problems": problems}), file=file)
    print(f"{told} {time.monotonic() - since:.0f} s: {problems or 'nothing lost'}", flush=True)
    if bad and chain.small:
        shutil.copytree(chain.output, folder / "output", dirs_exist_ok=True)
    if chain.small:
        shutil.rmtree(chain.output, ignore_errors=True)
    if not bad:
        shutil.rmtree(folder)
    for row in soak.rows:
        row.problems += problems
    return soak.rows


def emit(folder: Path, recipe: tuple[str, ...], launcher: str = TORCHRUN) -> None:
    """As a user does; what the ranks read is told by a hook of the tests."""
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier soak
    runs.emit(folder, *recipe, "--tokens", str(TOKENS), launcher=launcher, limit="01:00:00")
    (folder / "trouble.json").write_text(json.dumps({"samples": True}))


def undisturbed(cluster: slurm.Cluster, folder: Path, recipe: tuple[str, ...]) -> Undisturbed:
    """The run without a fault."""
    emit(folder, recipe)
    chain = Chain(cluster, folder, small=False)
    job = cluster.wait(chain.number, timeout=2 * LONG)
    assert job["JobState"] == "COMPLETED" and (chain.output / "FINISHED").exists(), chain.log()
    return sameness.undisturbed(folder, chain.output)


def main(words: list[str]) -> int:
    """Runs until enough faults were injected; 1 if anything was lost."""
    parser = argparse.ArgumentParser(prog="tests.cluster.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", action="append", choices=RECIPES, help="only these")
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--only", type=int, help="this run alone")
    options = parser.parse_args(words)
    os.environ.update(CAPS)
    options.out.mkdir(parents=True, exist_ok=True)
    cluster = slurm.start(nodes=4, gres="", small=SMALL_DISK)
    rows: list[Row] = []
    names = sorted(options.recipe or RECIPES)
    known: dict[str, Undisturbed] = {}
    number = options.first if options.only is None else options.only
    try:
        while len(rows) < options.faults:
            rows += one_run(cluster, options.out, options.seed, number, options.faults - len(rows), names, known)
            number += 1
            if options.only is not None:
                break
    finally:
        slurm.stop(cluster)
    print(soak_table.table([asdict(row) for row in rows]))
    return int(any(row.problems for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
