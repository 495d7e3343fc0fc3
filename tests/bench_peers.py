"""Peers beside the toolkit, measured one after the other in the same run: ``TOOLKIT_PEERS=DIR make bench``.

``DIR`` holds checkouts of the peers, unchanged: ``DIR/calculon`` (github.com/calculon-ai/calculon) and
``DIR/llm-analysis`` (github.com/cli99/llm-analysis); what is not there is left out. Each runs with its own
``.venv/bin/python`` or else with this Python, so what it imports must be installed there (psutil; fire and
transformers). CPU seconds are compared, which a busy machine disturbs least.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from toolkit.cli.request import build
from toolkit.search.planner import search

BUDGET = 10.0  # CPU seconds that a peer's search gets
JOB = {"model": "gpt3-175b", "gpus": "64", "accelerator": "a100-80gb", "sequence_length": 2048, "global_batch": 64}
HOW = "no peers: TOOLKIT_PEERS=DIR make bench, where DIR holds checkouts of calculon, llm-analysis"

# calculon's own search function, over the cells of its own loops, until the budget is spent: GPT-3 175B on 64 A100,
# batch 64, without offload and overlap options (with them its space is 30 times as large)
CALCULON = """
import itertools, json, random, sys, time
import calculon
from calculon.llm import *
from calculon.llm.optimal_execution import OptimalExecution
from calculon.system import System
app = Llm.Application(calculon.io.read_json_file("models/gpt3-175B.json"))
machine = calculon.io.read_json_file("systems/a100_80g.json")
machine["mem2"]["GiB"] = 0
machine = System(machine)
cells = []
for tp in Llm.get_all_tensor_parallelisms(64, app.hidden, app.attn_heads):
    for pp in Llm.get_all_pipeline_parallelisms(64, tp, app.num_blocks):
        dp = Llm.get_data_parallelism(64, tp, pp)
        for chunks in Llm.get_valid_pipeline_interleavings(app.num_blocks, pp):
            for redo, sharded, kind in itertools.product(
                ["full", "attn_only", "none"], [True, False] if dp > 1 else [False], ["ar", "p2p_rs_ag", "rs_ag"]
            ):
                cells.append((tp, pp, dp, chunks, redo, sharded, kind))
random.Random(0).shuffle(cells)
done, started = 0, time.process_time()
for tp, pp, dp, chunks, redo, sharded, kind in cells:
    found = OptimalExecution.search(
        False, 1, False, 64, 64, "float16", app, machine, tp, pp, dp, chunks, 64, redo, sharded, kind, [True], True,
        False, False,
    )
    done += found[1]
    if time.process_time() - started > float(sys.argv[1]):
        break
print(json.dumps([done, time.process_time() - started]))
"""


def report() -> Iterator[str]:
    """Lines of the comparison, or how to get one."""
    folder = os.environ.get("TOOLKIT_PEERS")
    if not folder:
        yield HOW
        return
    peers = Path(folder)
    if not any((peers / name).is_dir() for name in ("calculon", "llm-analysis")):
        yield f"{peers} holds neither calculon nor llm-analysis; {HOW}"
    if (peers / "calculon").is_dir():
        yield from _calculon(peers / "calculon")
    if (peers / "llm-analysis").is_dir():
        yield from _llm_analysis(peers / "llm-analysis")


def _calculon(checkout: Path) -> Iterator[str]:
    answer = _run([_python(checkout), "-c", CALCULON, str(BUDGET)], checkout)
    if isinstance(answer, str):
        yield f"calculon does not run here: {answer}"
        return
    done, seconds = json.loads(answer[0].splitlines()[-1])
    total, evaluated, mine = _own_search()
    theirs, ours = done / seconds, total / mine
    yield (
        f"search, GPT-3 175B on 64 A100:  calculon {theirs:,.0f} candidates per CPU second ({done:,} of its space), "
        f"toolkit {ours:,.0f} ({total:,}, all): {ours / theirs:,.0f} times as many; of those evaluated one by one, "
        f"without what rules and solving spare, {evaluated / mine:,.0f}: {evaluated / mine / theirs:,.0f} times"
    )
    system = json.loads((checkout / "systems" / "a100_80g.json").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "system.json"
        path.write_text(json.dumps(system))
        execution = "validation/seqsel/tab5/gpt3-175B_seqsel.json"
        theirs = _run(
            [sys.executable, "bin/calculon", "llm", "models/gpt3-175B.json", execution, str(path), "-"], checkout
        )
    yield from _one_shot("calculon llm", theirs)


def _llm_analysis(checkout: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as scratch:
        theirs = _run(
            [
                *(_python(checkout), "-m", "llm_analysis.analysis", "train", "--model_name=megatron-lm-175b"),
                *("--gpu_name=a100-sxm-80gb", "--total_num_gpus=64", "--tp_size=8", "--pp_size=8", "--sp_size=8"),
                *("--ds_zero=0", "--batch_size_per_gpu=1", "--global_batch_size=64", "--seq_len=2048"),
                *("--activation_recomputation=1", "--total_num_tokens=300e9", f"--output_dir={scratch}"),
            ],
            checkout,
        )
    yield from _one_shot("llm-analysis train", theirs)


def _one_shot(name: str, theirs: tuple[str, float] | str) -> Iterator[str]:
    """One strategy evaluated by a whole process: theirs, and ours of the same job."""
    if isinstance(theirs, str):
        yield f"{name} does not run here: {theirs}"
        return
    toolkit = str(Path(sys.executable).with_name("toolkit"))
    options = [word for key, value in JOB.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    degrees = ["--tp", "8", "--pp", "8", "--sequence-parallel", "--recompute", "full"]
    mine = _run([toolkit, "estimate", *options, *degrees], Path.cwd(), codes=(0, 1))
    if isinstance(mine, str):
        raise SystemExit(f"toolkit estimate failed: {mine}")
    yield (
        f"one strategy, whole process:    {name} {theirs[1]:.3f} s CPU, toolkit estimate {mine[1]:.3f} s: "
        f"{theirs[1] / mine[1]:.1f} times as long"
    )


def _own_search() -> tuple[int, int, float]:
    """Candidates of the same job, those evaluated one by one, and the least CPU seconds of a few searches."""
    asked = build(JOB | {"framework": "megatron"})
    first = search(asked.request, asked.calibration)
    best, evaluated = float("inf"), sum(len(block.seconds) for block in first.blocks)
    for _ in range(5):
        started = time.process_time()
        search(asked.request, asked.calibration)
        best = min(best, time.process_time() - started)
    return first.total, evaluated, best


def _run(argv: list[str], folder: Path, codes: tuple[int, ...] = (0,)) -> tuple[str, float] | str:
    """What a command prints and the least CPU seconds of three runs (one for long ones), or why it does not run."""
    best, answer = float("inf"), ""
    for _ in range(3):
        before = _children()
        done = subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(folder)}
        )
        if done.returncode not in codes:
            return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        best, answer = min(best, _children() - before), done.stdout
        if best > BUDGET / 2:
            break
    return answer, best


def _python(checkout: Path) -> str:
    own = checkout / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
