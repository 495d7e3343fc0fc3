"""The worked example of docs/maths.md: ``python -m tests.worked_example`` writes it anew, a test recomputes it.

Each line is an equation with its symbols replaced by numbers. The numbers come from a trace of the planner's own
functions; the arithmetic stands here and is evaluated by the test without them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.cli.intervals import intervals_of
from toolkit.equation import Step, trace
from toolkit.estimate.evaluate import evaluate
from toolkit.estimate.parameters import count_parameters
from toolkit.registry.calibrations import load_calibration
from toolkit.registry.clusters import resolve_cluster
from toolkit.registry.models import load_model
from toolkit.strategy import Strategy
from toolkit.workload import Workload

MATHS = Path(__file__).resolve().parent.parent / "docs" / "maths.md"
TITLE = "## Worked example"
INTRODUCTION = """
Llama-2-7B on 64 A100 80 GB (8 nodes), Megatron with data parallelism 64 and the distributed optimizer, 1,024 sequences
of 4,096 tokens a step, micro batch 1 accumulated 16 times, nothing recomputed. Rounded numbers have six digits.
`toolkit estimate --model llama-2-7b --gpus 64 --accelerator a100-80gb --framework megatron --zero 1 --micro-batch 1
--sequence-length 4096 --global-batch 1024 --explain` shows the same with every equation in between.
"""
COMMAND_JOB = {"sequence_length": 4096, "global_batch_size": 1024}

Pick = Callable[[dict[str, Any]], bool]


def any_call(_: dict[str, Any]) -> bool:
    return True


# subject: lines of (anchor, words, arithmetic with the names of the equation's arguments, which of its evaluations)
LINES: dict[str, tuple[tuple[str, str, str, Pick], ...]] = {
    "Parameters": (
        (
            "P2",
            "attention of a layer",
            "{hidden_size}*({heads} + 2*{key_value_heads})*{head_dim} + {hidden_size}*{heads}*{head_dim}",
            any_call,
        ),
        ("P6", "MLP of a layer, gated", "(2 + 1)*{hidden_size}*{width}", any_call),
        ("P15", "norms of a layer", "{number}*{hidden_size}", lambda i: i["number"] == 2),
        ("P1", "token table; the head is as large", "{vocab_size}*{embedding_size}", any_call),
    ),
    "Memory of a GPU, bytes": (
        (
            "M8",
            "parameters, whole",
            "{bytes_per_parameter}*{dense}/{dense_ranks}",
            lambda i: i["bytes_per_parameter"] == 2,
        ),
        (
            "M8",
            "gradients, in float32",
            "{bytes_per_parameter}*{dense}/{dense_ranks}",
            lambda i: i["bytes_per_parameter"] == 4,
        ),
        (
            "M8",
            "master copy and Adam's states, over 64 ranks",
            "{bytes_per_parameter}*{dense}/{dense_ranks}",
            lambda i: i["bytes_per_parameter"] == 12,
        ),
        ("A1", "inputs of norms, per token and layer", "{norms}*{hidden_size}*{bytes_per_value}", any_call),
        ("A2", "input of the first matrices", "{copies}*{bytes_per_value}*{hidden_size}", any_call),
        (
            "A3",
            "queries, keys, values, context",
            "{bytes_per_value}*{head_dim}*(2*{heads} + 2*{key_value_heads})",
            any_call,
        ),
        ("A5", "inside of the MLP", "{bytes_per_width}*{width}", lambda i: i["bytes_per_width"] > 0),
        (
            "A10",
            "kept by all layers",
            "{tokens}*({replicated}/{sigma} + {sharded}/{tp})",
            lambda i: i["dispatched"] == 0,
        ),
        ("A13", "logits", "{tokens}*{vocabulary}*({bytes_per_value} + 4)/{tp}", any_call),
        ("M12", "fragmentation", "{fraction}*{dynamic}", any_call),
        ("M13", "outside the model", "{context} + {workspace} + {buffers} + {fragmentation}", any_call),
    ),
    "FLOP of a token": (
        ("F1", "matrices of all layers, forward", "2*{tokens}*{weights}", lambda i: i["weights"] > 1e9),
        (
            "F2",
            "attention of a layer, forward, for each token attended to",
            "2*{tokens}*{attended}*{heads}*({key_dim} + {value_dim})",
            any_call,
        ),
        ("F1", "the head", "2*{tokens}*{weights}", lambda i: 0 < i["weights"] < 1e9),
        ("F5", "forward and backward, every token attending to all 4,096", "3*{forward}", any_call),
    ),
    "Communication of a GPU in a step": (
        (
            "C13",
            "parameters that data parallelism reduces",
            "{layers}*({sharded}/{tp} + {replicated}) + {ends}/{tp} + {other}",
            any_call,
        ),
        (
            "C1",
            "bandwidth of a ring over 8 nodes, bytes/s",
            "min({inside}, {members}*{outside})",
            lambda i: i["domains"] > 1,
        ),
        (
            "C2",
            "latency of the ring, s",
            "{start} + ({size} - {domains})*{hop_inside} + {domains}*{hop_outside}",
            lambda i: i["size"] == 64,
        ),
        (
            "C3",
            "bytes sent in a gather of one bucket",
            "({size} - 1)/{size}*{message}",
            lambda i: i["size"] == 64 and i["message"] < 2e8,
        ),
        (
            "C4",
            "seconds of the gathers of all buckets, one behind the other",
            "{sent}/{bandwidth} + {latency}",
            lambda i: i["size"] == 64 and i["sent"] < 2e10,
        ),
        ("C16", "seconds of the whole axis, hidden or not", "{scatter} + {gather}", lambda i: i["gather"] < 1e6),
    ),
    "Time of a step, seconds": (
        ("T12", "FLOP of a layer's products", "2*{tokens}*{sharded}/{tp}", any_call),
        (
            "T1",
            "products of a layer, forward",
            "{flop}/{rate} + {moved}/{bandwidth} + {kernels}*{launch}",
            any_call,
        ),
        (
            "T2",
            "rate of fused attention, FLOP/s",
            "{peak}*{fraction}*{sequence}/({sequence} + {half_sequence})*{width}",
            any_call,
        ),
        (
            "T4",
            "forward of a layer (products, attention, element-wise work), or the host",
            "max({device}, {host})",
            lambda i: i["device"] < 0.01,
        ),
        ("T4", "its backward", "max({device}, {host})", lambda i: i["device"] > 0.01),
        (
            "T15",
            "head and loss of a micro batch",
            "6*{tokens}*{weights}/{tp}/{rate} + {logits_bytes}/{memory}",
            any_call,
        ),
        (
            "T19",
            "all micro batches through all layers",
            "{micro_batches}*({layers}*{layer_seconds} + {tail})",
            lambda i: i["layer_seconds"] > 0,
        ),
        (
            "T5",
            "data axis left exposed",
            "{seconds} - {fraction}*min({seconds}, {window})",
            lambda i: i["seconds"] > 0 and 0 < i["fraction"] < 1,
        ),
        (
            "T20",
            "data axis, with what its hidden part costs",
            "{unhidable} + {exposed_seconds} + {traffic}*{sent}/{bandwidth}*{hidden}",
            lambda i: i["traffic"] > 0,
        ),
        ("T7", "optimizer", "{parameters}*{moved}/{bandwidth}", any_call),
    ),
}


def job() -> tuple[Any, Any, Workload, Strategy]:
    """What the example plans."""
    strategy = Strategy(
        framework="megatron", dp=64, dp_shard=64, zero_stage=1, micro_batch_size=1, gradient_accumulation_steps=16
    )
    return (
        load_model("llama-2-7b"),
        resolve_cluster(64, accelerator="a100-sxm4-80gb"),
        Workload(**COMMAND_JOB),
        strategy,
    )


def written(value: float) -> str:
    """A number as the document shows it: whole ones in full, others with six digits."""
    if isinstance(value, bool) or abs(value - round(value)) < 1e-9 * max(abs(value), 1.0) and abs(value) < 1e18:
        return f"{round(value):,}" if abs(value) < 1e15 else f"{value:.6g}"
    return f"{value:,.6g}" if 1e-4 <= abs(value) < 1e6 else f"{value:.6g}" if abs(value) < 1e-4 else f"{value:,.0f}"


def line(anchor: str, words: str, arithmetic: str, value: float) -> str:
    """One line of the example."""
    return f"{anchor:>4}  {words}: {arithmetic} = {written(value)}"


def section() -> str:
    """The whole section as the planner's functions make it now."""
    model, cluster, workload, strategy = job()
    calibration = load_calibration()
    with trace() as steps:
        counts = count_parameters(model)
        found = evaluate(model, cluster, workload, strategy, calibration)
    text = [TITLE, INTRODUCTION]
    sums = _sums(counts, found)
    for subject, lines in LINES.items():
        text += [f"### {subject}", "", "```"]
        text += [_filled(steps, *each) for each in lines]
        text += [line("", *each) for each in sums.get(subject, ())]
        text += ["```", ""]
    time, memory = intervals_of(calibration.name, (counts.total, counts.active), job(), found)
    assert time is not None and memory is not None
    text.append(
        f"80 % of runs like it lie between {time.low:.3g} and {time.high:.3g} s, and between {memory.low / 2**30:.3g} "
        f"and {memory.high / 2**30:.3g} GiB (E1 to E6).\n"
    )
    return "\n".join(text)


def _filled(steps: list[Step], anchor: str, words: str, arithmetic: str, pick: Pick) -> str:
    found = [each for each in steps if each.anchor == anchor and pick(each.inputs)]
    assert found, f"{anchor}, {words}: not among the equations that the example evaluates"
    step = found[0]
    values = {name: written(value) for name, value in step.inputs.items() if isinstance(value, (int, float))}
    return line(anchor, words, arithmetic.format(**values), step.result)


def _sums(counts: Any, found: Any) -> dict[str, list[tuple[str, str, float]]]:
    """How the parts make the figures of a plan."""
    layer = counts.layers[0].total
    memory, step = found.memory, found.step
    parts = {name: getattr(memory, name) for name in memory.__struct_fields__}
    tokens = 1.0 * 1024 * 4096
    flop = step.mfu * 64 * 312e12 * step.seconds
    return {
        "Parameters": [
            (
                "the model",
                f"32*{written(layer)} + 2*{written(counts.embedding)} + {written(counts.final_norm)}",
                counts.total,
            )
        ],
        "Memory of a GPU, bytes": [("the fullest GPU", _joined(parts), memory.total_bytes)],
        "FLOP of a token": [
            (
                "forward",
                f"{written(2.0 * 32 * counts.layers[0].total - 2.0 * 32 * 8192)} + 32*4,096*16,384 + 262,144,000",
                flop / tokens / 3.0,
            ),
            ("of a step, all tokens", f"{written(tokens)}*{written(flop / tokens)}", flop),
        ],
        "Time of a step, seconds": [
            ("a step", _joined(step.parts), step.seconds),
            ("MFU (F8)", f"{written(flop)}/(64*{written(312e12)}*{written(step.seconds)})", step.mfu),
            (
                "tokens/s of a GPU",
                f"{written(tokens)}/{written(step.seconds)}/64",
                step.tokens_per_second_per_gpu,
            ),
        ],
    }


def _joined(parts: dict[str, float]) -> str:
    return " + ".join(written(value) for value in parts.values() if value)


def rendered(text: str) -> str:
    """The document with the section replaced, or added at its end."""
    before = text.split(TITLE)[0].rstrip("\n")
    return f"{before}\n\n{section()}"


ARITHMETIC = re.compile(
    r"^ *(?P<anchor>[A-Z]\d+)?  ?(?P<words>[^:\n]*): (?P<left>.*) = (?P<right>[^=\n]*)$", flags=re.M
)

if __name__ == "__main__":
    MATHS.write_text(rendered(MATHS.read_text()))
