"""docs/verify.md: dry runs of whole models beside the predictions. ``python -m tests.verify_table`` writes it anew.

Takes minutes: every row runs a framework at full depth. The same rows at reduced depth are tests (tests/verify).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.plans import DGX, LLAMA_8B, LLAMA_70B, QWEN_30B_A3B, plan
from toolkit.plan import Plan
from toolkit.registry.calibrations import load_calibration
from toolkit.verify.run import verify

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "verify.md"
TEXT = """# Dry runs of whole models

`toolkit verify PLAN.json` runs the framework's own code at the plan's world size on a laptop, with fake tensors and a
fake process group, and counts what is alive at the peak and what is sent. Here are whole models, predicted beside
counted, peak without what lies outside the model (context, communicators, fragmentation).
`python -m tests.verify_table` writes this page; the same layouts at reduced depth are tests.

Llama-3.1-8B on 64 GPUs, sequence 2048, micro batch 1; Llama-3.1-70B and
Qwen3-30B-A3B on 64 GPUs, sequence 4096; 2 CPU cores.

| dry run | rank | peak predicted | counted | error | largest error of states | bytes sent, error by axis | time |
|---|---|---|---|---|---|---|---|
"""
NOTES = """
States are parameters, gradients, master copies and moments, under offload also what lies in host memory.

What remains, by name:

- *DDP (-0.9 %)*: not traced.
- *ZeRO-3, bytes sent (-0.2 %, with hpZ +1.9 %)*: what is gathered again in the backward pass depends on where the
  prefetcher stands when the limit of live parameters is reached; the estimate takes the limit itself.
- *LoRA under ZeRO-2 (gradients -20 %, some megabytes)*: adapters are taken as equally large when they are cut.
- *Megatron (-0.1 to -1.1 %)*: small tensors of the schedule and of autograd, not traced further.
- *Mixtures (30B-A3B)*: run in megatron-core's own mode that drops tokens above an expert's share and pads below it,
  which makes every shape known without values: balanced routing, predicted with `expert_peak_load` 1. Router,
  all-to-all and experts are the library's; the experts run one after another, not in a grouped kernel. With ep 1 that
  mode sorts without a copy, which the estimate has (+2 % at two layers).
- *A first stage of one layer (-3.3 % with cp 2, not in the table)*: the gradient of the token table, whole before it
  is added to the float32 buffer, makes the peak once all activations have gone; the estimate has no such moment.
- Context parallelism sends inside attention, which stands for itself here: that axis is not counted.
- Not dry-run: what uneven routing adds (it depends on values), DeepEP, QLoRA and fp8 (kernels), 8-bit and paged
  optimizers.
"""
GIB = 2.0**30


def rows() -> dict[str, Plan]:
    """The table's plans by name."""
    nodes = msgspec.structs.replace(DGX, nodes=8)

    def small(framework: str, workload: dict[str, Any] | None = None, **strategy: Any) -> Plan:
        work = {"sequence_length": 2048} | (workload or {})
        return plan("dry", LLAMA_8B, nodes, framework=framework, workload=work, **strategy)

    def large(**changes: Any) -> Plan:
        layout = {"tp": 8, "pp": 4, "dp": 2, "sequence_parallel": 1, "zero_stage": 1} | changes
        return plan("dry", LLAMA_70B, nodes, framework="megatron", workload={"sequence_length": 4096}, **layout)

    def mixture(**changes: Any) -> Plan:
        layout = {"ep": 8, "pp": 2, "zero_stage": 1} | changes
        return plan("dry", QWEN_30B_A3B, nodes, framework="megatron", workload={"sequence_length": 4096}, **layout)

    return {
        "8B, DDP": small("ddp"),
        "8B, ZeRO-1": small("deepspeed", zero_stage=1),
        "8B, ZeRO-2": small("deepspeed", zero_stage=2),
        "8B, ZeRO-2, optimizer offloaded": small("deepspeed", zero_stage=2, offload=1),
        "8B, ZeRO-3": small("deepspeed", zero_stage=3),
        "8B, ZeRO-3, full recomputation": small("deepspeed", zero_stage=3, recompute=2),
        "8B, ZeRO-3, hpZ 8": small("deepspeed", zero_stage=3, hpz=8),
        "8B, ZeRO-3, all offloaded": small("deepspeed", zero_stage=3, offload=2),
        "8B, ZeRO-2, LoRA": small("deepspeed", {"method": "lora"}, zero_stage=2),
        "8B, FSDP2": small("fsdp", zero_stage=3),
        "8B, FSDP2, hybrid in 8": small("fsdp", zero_stage=3, dp_shard=8),
        "70B, tp 8, pp 4, dp 2": large(),
        "70B, the same, interleaved 2": large(virtual_pipeline_stages=2),
        "70B, tp 8, pp 4, cp 2": large(cp=2, dp=1),
        "30B-A3B, ep 8, pp 2": mixture(),
    }


def lines(name: str, found: dict[str, Any]) -> list[str]:
    """One line of the table for each kind of rank."""
    sent = ", ".join(f"{axis} {100 * one['relative_error']:+.1f} %" for axis, one in found["communication"].items())
    written = []
    for row in found["ranks"]:
        states = max((e for part, e in row["relative_errors"].items() if part != "peak"), key=abs)
        predicted, counted = row["predicted_bytes"]["peak"] / GIB, row["counted_bytes"]["peak"] / GIB
        written.append(
            f"| {name} | {row['kind']} | {predicted:.2f} GiB | {counted:.2f} GiB |"
            f" {100 * row['relative_error']:+.2f} % | {100 * states:+.3f} % | {sent} | {row['seconds']:.0f} s |"
        )
    return written


def main(argv: list[str]) -> None:
    """Run every row, or those whose names hold a given word, and write the page where all were run."""
    calibration = load_calibration()
    table: list[str] = []
    for name, job in rows().items():
        if argv and not any(word in name for word in argv):
            continue
        new = lines(name, verify(job, calibration, limit=3600.0))
        print("\n".join(new), flush=True)
        table += new
    if not argv:
        DOCUMENT.write_text(TEXT + "\n".join(table) + "\n" + NOTES)


if __name__ == "__main__":
    main(sys.argv[1:])
