"""All options of both training programs, each with its range, and what must hold between them: the one place for it.

Read by :class:`recipes.options.Parser` before torch is imported. What depends on the length of the run is
:func:`require_reachable`, once it is known.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Iterator
from pathlib import Path

from recipes.options import REQUIRED, Option, Parser, number, one_of, seconds, whole
from toolkit.errors import Problem, ToolkitError
from toolkit.runtime import storage

MOST_STEPS = 10**12  # as a contract's total_steps
MOST = 1_000_000  # steps or batches that are held in memory
MOST_SECONDS = 1e8  # three years: no timer of the operating system takes much more; below 1 s every start would hang


def path(text: str) -> Path:
    """A file or folder, which need not be there."""
    if not text.strip():
        raise ValueError("give the name of a file or folder; . is this one")
    if "\0" in text:
        raise ValueError("no file system has a name with a zero byte")
    return Path(text)


def url(text: str) -> str:
    """Durable storage of a kind that fsspec knows; whether it can be reached is seen later."""
    if not storage.is_url(text):
        raise ValueError("give a URL, say s3://bucket/folder or file:///folder, or leave the option out")
    try:
        storage.require_protocol(text)
    except ToolkitError as error:
        raise ValueError(f"{error.problems[0].message}: {error.problems[0].remedy}") from error
    return text


DIVERGENCE = "losses and gradient norms that are not finite, or spike"
STRAGGLERS = "ranks that fall behind the others"

SETBACKS = (
    Option("--on-nan", one_of("stop", "skip"), "stop", "stop, or skip: go back, leave the batch out (stop)",
           "stop|skip", DIVERGENCE),
    Option("--on-spike", one_of("warn", "stop", "skip"), "warn", "the same for spikes (warn)",
           "warn|stop|skip", DIVERGENCE),
    Option("--spike-window", whole(3, MOST), 50, "steps that one is compared with (50)", "N", DIVERGENCE),
    Option("--spike-deviations", number(0.0, 1e6, "6"), 6.0, "above median + K * 1.4826 * MAD is one (6)", "K",
           DIVERGENCE),
    Option("--skip-batches", whole(1, MOST), 1, "leave out N, the bad one in their middle (1)", "N", DIVERGENCE),
    Option("--setbacks", whole(1, MOST), 3, "in a row, before the run stops (3)", "N", DIVERGENCE),
)  # fmt: skip
BEHIND = (
    Option("--straggler-every", whole(0, MOST, "never look"), 20, "a window (20; 0: never look)", "STEPS", STRAGGLERS),
    Option("--straggler-factor", number(1.0, 1e6, "1.5"), 1.5, "times the median of the others (1.5)", "F", STRAGGLERS),
    Option("--straggler-windows", whole(1, MOST), 3, "in a row, before it is told (3)", "N", STRAGGLERS),
)
SHARED = (
    Option("--plan", path, REQUIRED, "plan.json, from toolkit plan --out", "FILE"),
    Option("--output-dir", path, None, "default: the folder 'run' beside the plan", "FOLDER"),
    Option("--max-steps", whole(1, MOST_STEPS), 0, "end after this step; the schedule stays the plan's", "N"),
    Option("--save-steps", whole(0, MOST_STEPS, "at the end only"), 500,
           "steps between checkpoints (500); 0: at the end only", "N"),
    Option("--keep", whole(1, MOST), 2, "whole checkpoints to keep (default 2)", "N"),
    Option("--keep-every", whole(0, MOST_STEPS, "none"), 0, "and for good those of every so many", "STEPS"),
    Option("--async-save", None, False, "go on training while a checkpoint is brought to disk"),
    Option("--durable", url, "", "copy checkpoints there (s3://, file://, ...)", "URL"),
    Option("--trace", path, None, "write weights and gradients of every step there", "FOLDER"),
    Option("--hang-after", seconds(1.0, MOST_SECONDS, "never"), 120.0,
           "least seconds before a step counts as hanging (120; 0: never)", "SECONDS"),
    Option("--hang-at-most", seconds(1.0, MOST_SECONDS), 1800.0,
           "limit while no durations are known (1800)", "SECONDS"),
    Option("--start-limit", seconds(1.0, MOST_SECONDS), 86400.0,
           "seconds that the start may take, tokenising too (86400)", "SECONDS"),
)  # fmt: skip
FINETUNE = (
    *SHARED,
    Option("--deepspeed", path, None, "DeepSpeed configuration; default: ds_config.json beside the plan", "FILE"),
    Option("--eval-steps", whole(0, MOST_STEPS, "at the end only"), 0,
           "steps between evaluations on held-out sequences; 0: at the end only", "N"),
    Option("--merge", None, False, "at the end, write the base with its adapters merged in"),
    Option("--sync-batch-norm", None, False, "BatchNorm, where the model has some, over the samples of all ranks"),
    *SETBACKS,
    *BEHIND,
)  # fmt: skip
PRETRAIN = (
    *SHARED,
    Option("--megatron", path, None, "default: megatron_core.json beside the plan", "FILE"),
    Option("--eval-steps", whole(0, MOST_STEPS, "at the end only"), 0,
           "steps between evaluations (default: at the end only)", "N"),
    Option("--eval-sequences", whole(1, MOST_STEPS), 512, "held-out sequences of one evaluation (512)", "N"),
    *SETBACKS,
    *BEHIND,
)  # fmt: skip


def finetune() -> Parser:
    """Of ``python -m recipes.finetune.train``."""
    return Parser("recipes.finetune.train", "Fine-tune what a plan says.", FINETUNE, (contradictions,))


def pretrain() -> Parser:
    """Of ``python -m recipes.pretrain.train``."""
    return Parser("recipes.pretrain.train", "Pretrain what a plan says.", PRETRAIN, (contradictions,))


def contradictions(given: argparse.Namespace, in_order: Collection[str]) -> Iterator[Problem]:
    """What no two values of options can be together; only of those that are in order by themselves."""
    if {"hang_after", "hang_at_most"} <= set(in_order) and given.hang_at_most < given.hang_after:
        yield Problem(
            f"--hang-at-most {given.hang_at_most:g} is less than --hang-after {given.hang_after:g}",
            "the one is the longest limit of a step, the other the shortest: give --hang-at-most as much or more",
        )
    if {"save_steps", "keep_every"} <= set(in_order) and given.keep_every and not given.save_steps:
        yield Problem(
            f"--keep-every is {given.keep_every} with --save-steps 0: there is no checkpoint but the last",
            "give --save-steps, or leave --keep-every out",
        )
    if {"on_nan", "on_spike", "trace"} <= set(in_order) and "skip" in (given.on_nan, given.on_spike) and given.trace:
        option = "--on-nan" if given.on_nan == "skip" else "--on-spike"
        yield Problem(
            f"--trace {given.trace} and {option} skip: a trace follows a run that does not go back",
            "leave one of them out",
        )


def require_reachable(given: argparse.Namespace, total: int) -> None:
    """Raise ToolkitError for what could never happen in a run of ``total`` steps (0: not known yet)."""
    problems = []
    every = _kept(given)
    if 0 < total < every and total % given.keep_every:
        problems.append(
            Problem(
                f"--keep-every is {given.keep_every} and --save-steps {given.save_steps}: the first step that is a"
                f" multiple of both is {every}, the run has {total}",
                f"give a --keep-every that is a multiple of --save-steps and at most {total}, or leave it out",
            )
        )
    if 0 < total < given.skip_batches:
        problems.append(
            Problem(f"--skip-batches is {given.skip_batches}, the run has {total}", f"give at most {total}, say 1")
        )
    if problems:
        raise ToolkitError(*problems)


def remarks(given: argparse.Namespace, last: int) -> list[str]:
    """What a start that ends at step ``last`` does otherwise than one may think."""
    every = _kept(given)
    if every > given.keep_every:
        several = f"note: of every {given.keep_every} steps (--keep-every) only those of every {every} are kept for"
        return [f"{several} good: checkpoints are made every {given.save_steps} (--save-steps)"]
    if 0 < last < every and last % every:
        return [f"note: no checkpoint of this start is kept for good: it ends at step {last}, --keep-every is {every}"]
    return []


def _kept(given: argparse.Namespace) -> int:
    """Of how many steps one is kept for good; 0 for none."""
    return math.lcm(given.keep_every, given.save_steps) if given.keep_every else 0
