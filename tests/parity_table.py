"""docs/parity.md, from real runs of both tiny recipes: ``python -m tests.parity_table`` (minutes on two cores).

With ``--words`` the runs' tables stay as they are, and only what stands before them is written anew.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.verify.parity.test_layouts_learn_the_same import EXPERTS
from toolkit.cli.parity import experiments
from toolkit.verify.parity.run import parity

PAGE = Path(__file__).resolve().parent.parent / "docs" / "parity.md"
STEPS = 3
HEAD = """# Parity

What `toolkit parity` found: several real worker processes (torch {torch}, DeepSpeed {deepspeed}, megatron-core
{megatron}, gloo on processors) against one on the same data, {steps} steps in fp32. Each cell is the difference that is
nearest to its bound, and the bound there, which follows from the number of roundings (equations N1 to N8 of
[maths.md](maths.md)). Loss is per token; the norm is that of all gradients; of gradients and weights every element of
every tensor is compared. Written by `python -m tests.parity_table`. Nothing here was run on a GPU.

Rounding makes relative differences of one part in a million, and the bounds allow about one in ten thousand, because
they hold for sums that are added one term after another. A wrong divisor, a missing reduction, or one token in two
thousand left out is beyond them. `tests/verify/parity` puts {faults} such faults into the same programs, each alone
and each to be found and named: [the list](#faults-that-are-found-and-named) is at the end. A wrong learning rate is
refused by the fine-tuning program itself, which ends; parity names that refusal as what it found.

Where a comparison fails, the cause is looked for in this order: rules of ranks (samples, copies, ties, random states,
evaluation mode, weights that are not trained, buffers), then the first quantity that fails. Settings of the model that
are not those of the reference (rotary base, epsilon, capacity of experts, and buffers that follow from them) are told
where the forward pass differs. The trained weights are played through the usual mistakes of an optimizer, and the
mistake that gives the traced weights is named.

Faults that were not looked for, or cannot be found here:

- What only GPUs do (NCCL, fused kernels, fp8, flash attention) and what rounding in bf16 or fp16 hides: the runs are in
  fp32 on processors, and bf16 reductions are injected by a hook that rounds as torch's does.
- Loss scaling in fp16 (clipping before gradients are unscaled, skipped steps), which fp32 has not.
- What becomes of a model after training: ties and types in the saved file are checked where it is written and read.
- A fault that is the same in the reference and in the layout: both sides are wrong alike.
- Positions or masks of packed documents where each sequence holds one document: there is nothing to tell apart.
- Data orders beyond the steps that are compared, and dropout masks during training (only their seeds are compared).
- Optimizers whose update has no bound (Muon, 8-bit AdamW): refused, with the reason.
- Weights just before a BatchNorm, which divides their scale out again: their gradient is a sum that cancels to 0, for
  which the bounds are too tight, so a right layout with SyncBatchNorm can be told to fail there.
"""


FAULTS_HEAD = """
## Faults that are found and named

Each is put alone into the real program, on the layout given; `first` is the quantity that fails first, or the rule of
ranks that says it, and the words stand in the cause that parity tells.

| fault | layout | first | words of the cause |
|---|---|---|---|
"""


def main() -> None:
    """Run, and write the page."""
    import importlib.metadata

    from tests.verify.parity.fault_table import FAULTS

    words_alone = sys.argv[1:] == ["--words"]
    found = {name.split("-")[0]: importlib.metadata.version(name) for name in ("torch", "deepspeed", "megatron-core")}
    parts = [HEAD.format(**found, steps=STEPS, faults=len(FAULTS))]
    if words_alone:
        old = PAGE.read_text()
        parts.append(old[old.index("\n## ") :].partition(FAULTS_HEAD[:20])[0])
    else:
        parts += _runs()
    PAGE.write_text("".join(parts) + FAULTS_HEAD + "".join(map(_fault, FAULTS)))


def _fault(name: str) -> str:
    """One row, from the fault's own words and its case."""
    from tests.verify.parity import faulty
    from tests.verify.parity.fault_table import FAULTS

    case, what = FAULTS[name], inspect.getdoc((faulty.FINETUNE | faulty.PRETRAIN)[name]) or ""
    first = (case.quantity or "a rule of ranks").replace("_", " ")
    return f"| {' '.join(what.split())} | {case.recipe}, {case.layout} | {first} | {case.words} |\n"


def _runs() -> list[str]:
    parts: list[str] = []
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "experts")  # the page tells the model by its folder's name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(EXPERTS))
        jobs: tuple[tuple[str, str, str | None, dict[str, Any]], ...] = (
            ("Fine-tuning: recipe `tiny`", "tiny", None, {}),
            ("Pretraining: recipe `tiny-pretrain`", "tiny-pretrain", None, {}),
            (
                "Pretraining with 4 experts, 2 for each token",
                "tiny-pretrain",
                "dp2,ep2,ep2+zero1,tp2+sp",
                {"model": str(folder), "sequence_length": 64},
            ),
        )
        for title, recipe, against, options in jobs:
            parts.append(f"\n## {title}\n")
            for reference, plans in experiments(recipe, against, {"cluster": "local-cpu"} | options):
                result = parity(reference, plans, STEPS, progress=print)
                of = f"{reference.model.name}, {reference.contract.method}"
                parts.append(f"\nAgainst one process, `{result['reference']}` ({of}).\n\n{table(result['pairs'])}")
    return parts


def table(pairs: list[dict[str, Any]]) -> str:
    """The pairs of one document."""
    names = ("loss", "gradient_norm", "gradients", "weights")
    rows = ["| against | workers, strategy | loss | gradient norm | gradients | weights | verdict |", "|" + "---|" * 7]
    for pair in pairs:
        cells = [
            f"{pair['max_abs_error'][name]:.1e} of {pair['tolerance'][name]:.1e}"
            if name in pair["max_abs_error"]
            else "-"
            for name in names
        ]
        said = pair["verdict"] + (f": {pair['cause']}" if pair["cause"] else "")
        rows.append(f"| {pair['against']} | {pair['workers']}, {pair['strategy']} | {' | '.join(cells)} | {said} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
