"""Tokenise a plan's dataset before its run, where no GPU waits for it.

    python -m recipes.finetune.prepare --plan plan.json [--output-dir DIR] [--workers 16] [--estimate]

What it writes lies in the run's output directory, under a name made of all that decides it (dataset, tokenizer, length,
packing, chat template): a run that finds it there reads it, and one that does not makes it. It does not depend on the
number of processes. ``--estimate`` tokenises the first rows only and tells how long all of them would take.
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import islice

from recipes import program
from recipes.finetune import chat, checks, documents, material, padding, preferences, preparation, tokenise
from recipes.option_table import path
from recipes.options import REQUIRED, Option, Parser, whole
from recipes.tokenizer import load_tokenizer
from toolkit import plan as plans
from toolkit.errors import Problems, ToolkitError
from toolkit.plan import Plan

TABLE = (
    Option("--plan", path, REQUIRED, "plan.json, from toolkit plan --out", "FILE"),
    Option("--output-dir", path, None, "of the run; default: the folder 'run' beside the plan", "FOLDER"),
    Option("--workers", whole(1, 4096), tokenise.processes(), "processes (default: one per core)", "N"),
    Option("--estimate", None, False, "do the first rows only, and tell how long all take"),
)


def main(argv: list[str] | None = None) -> int:
    """Run the program; problems with the inputs go to stderr as sentences."""
    parser = Parser("recipes.finetune.prepare", (__doc__ or "").split("\n")[0], TABLE)
    return program.told(_run, parser.parse_args(argv))


def _run(options: argparse.Namespace) -> int:
    try:
        plan = plans.load(options.plan.read_bytes(), str(options.plan))
    except OSError as error:
        raise ToolkitError(
            f"cannot read {options.plan}: {error}", remedy="make it with toolkit plan ... --out DIR"
        ) from error
    with Problems() as problems:
        if plan.program != "finetune":
            problems.add(f"the plan is for the program {plan.program!r}", f"use recipes.{plan.program}.prepare instead")
        checks.check_contract(problems, plan)
        try:
            pairs = plan.contract.objective == "dpo"
            if plan.contract.dataset:
                (preferences if pairs else documents).check_file(plan.contract.dataset)
            if pairs and options.estimate:
                problems.add("--estimate counts documents, the plan reads pairs", "leave --estimate out")
        except ToolkitError as error:
            problems.absorb(error)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    tokenizer = load_tokenizer(plan)
    if options.estimate:
        print(_estimate(plan, tokenizer, options.workers))
        return 0
    pad, *remarks = padding.settle(tokenizer, plan.model.vocab_size)
    folder = options.output_dir or options.plan.parent / "run"
    since = time.perf_counter()
    read = material.read(plan, tokenizer, pad, folder, 0, workers=options.workers)
    for sentence in filter(None, (*remarks, read.remark)):
        print(sentence)
    print("data: " + ", ".join(f"{value:,} {name}" for name, value in read.counts.items() if value))
    print(
        f"data: {read.training:,} training and {read.held_out:,} held-out {read.unit} in {folder / 'data'};"
        f" {time.perf_counter() - since:.1f} s"
    )
    return 0


def _estimate(plan: Plan, tokenizer: object, workers: int) -> str:
    """One sentence, from the first rows."""
    chat.with_template(tokenizer, plan.contract.chat_template)
    rows = list(islice(documents.read_documents(plan.contract.dataset), tokenise.FIRST))
    since = time.perf_counter()
    for _ in tokenise.encode_all(rows, tokenizer, plan.contract.completion_only):
        pass
    rate = len(rows) / (time.perf_counter() - since)
    estimate = preparation.Estimate(documents.about_how_many(plan.contract.dataset), rate, workers)
    return f"about: {preparation.warning(estimate, plan.strategy.dp) or estimate}"


if __name__ == "__main__":
    program.leave(main())
