"""Options of several commands: what to plan (plan, estimate, launch), how long runs may take. The glossary's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from toolkit.gpu_counts import MOST_GPUS
from toolkit.recipe import CHOICES
from toolkit.strategy import CP_METHODS, FRAMEWORKS, OFFLOAD, RECOMPUTE
from toolkit.workload import MOST_SEQUENCES, MOST_TOKENS

Function = TypeVar("Function", bound=Callable[..., Any])

MOST_PRICE = 1e6  # of a GPU-hour, in any currency

# option, field of Strategy, help
PINS = (
    (("--tp", "--tensor-parallel"), "tp", "Tensor parallel degree."),
    (("--pp", "--pipeline-parallel"), "pp", "Pipeline parallel degree."),
    (("--cp", "--context-parallel"), "cp", "Context parallel degree."),
    (("--ep", "--expert-parallel"), "ep", "Expert parallel degree."),
    (("--etp", "--expert-tensor-parallel"), "etp", "Tensor parallel degree of the experts."),
    (("--dp", "--data-parallel"), "dp", "Data parallel degree."),
    (("--dp-shard",), "dp_shard", "Ranks that share one sharded copy (hybrid sharding)."),
    (("--vpp", "--virtual-pipeline-stages"), "virtual_pipeline_stages", "Model chunks per pipeline stage."),
    (("--zero",), "zero_stage", "ZeRO stage (Megatron's distributed optimizer is 1)."),
    (("--hpz",), "hpz", "Group that keeps a secondary parameter copy (ZeRO++)."),
    (("--recompute-layers",), "recompute_layers", "Layers of a stage that full recomputation runs again; 0: all."),
    (("--micro-batch",), "micro_batch_size", "Sequences per GPU per forward pass."),
    (("--accumulation",), "gradient_accumulation_steps", "Micro batches per optimizer step."),
)
RANGES = {"zero_stage": click.IntRange(0, 3), "recompute_layers": click.IntRange(0, 10_000)}
METHOD_WORDS = {"ring": "p2p", "ulysses": "a2a"}  # other names of ways of sharing keys and values


def request_options(function: Function) -> Function:
    """Model, cluster and workload."""
    for option in reversed(
        (
            click.option("--params", metavar="SIZE", help="Model size, e.g. 7B: the nearest registered shape."),
            click.option("--model", metavar="NAME|PATH", help="Registry name, config.json, or a folder holding one."),
            click.option("--recipe", metavar="NAME", help="Take model, batch and schedule from a recipe."),
            click.option(
                "--gpus",
                metavar="N",
                help="GPUs in all: 64, or nodes x GPUs of a node: 8x8. For plan also 8..512 or 8,16,48.",
            ),
            click.option("--accelerator", metavar="NAME", help="e.g. h100, a100-80gb, mi300x."),
            click.option("--cluster", metavar="NAME|FILE", help="A named cluster or your own TOML."),
            click.option("--gpus-per-node", type=click.IntRange(min=1), help="Where it differs from the cluster's."),
            click.option("--sequence-length", type=click.IntRange(1, MOST_TOKENS), help="Tokens per sequence."),
            click.option(
                "--global-batch",
                type=click.IntRange(1, MOST_SEQUENCES),
                help="Sequences per optimizer step; a recipe's rate follows.",
            ),
            click.option("--tokens", metavar="N", help="Tokens to train on in all, e.g. 1T."),
            click.option("--dataset", metavar="NAME|PATH", help="Hub name, local JSONL/Parquet/text, or: sample."),
            click.option("--tokenizer", metavar="NAME|PATH", help="Hub name or folder, or: byte."),
            click.option(
                "--learning-rate", type=click.FloatRange(0.0, 1.0, min_open=True), help="Peak of the schedule."
            ),
            click.option("--framework", type=click.Choice(["any", *FRAMEWORKS]), default="any", show_default=True),
            click.option("--method", type=click.Choice(["full", "lora", "qlora"]), help="What is trained."),
            click.option("--lora-rank", type=click.IntRange(1, 10**6), help="Rank of the adapters; 16 unless given."),
            click.option("--precision", type=click.Choice(["bf16", "fp16", "fp32", "fp8"])),
            click.option(
                "--optimizer", type=click.Choice(CHOICES["optimizer"]), help="What updates the weights; adamw is fused."
            ),
            click.option(
                "--price-per-gpu-hour",
                type=click.FloatRange(0.0, MOST_PRICE, min_open=True),
                metavar="PRICE",
                help="For costs, in your own currency; else the cluster's, where its file has one.",
            ),
            click.option(
                "--calibration",
                metavar="NAME|FILE",
                default="assumed",
                show_default=True,
                help="Coefficients of the estimates.",
            ),
        )
    ):
        function = option(function)
    return function


def strategy_options(function: Function) -> Function:
    """Every degree of a strategy, to pin."""
    function = click.option(
        "--recompute", type=click.Choice(RECOMPUTE), help="Recompute activations in the backward pass."
    )(function)
    function = click.option(
        "--cp-method",
        type=click.Choice([*CP_METHODS, *METHOD_WORDS]),
        help="How context-parallel ranks share keys and values (Megatron's --cp-comm-type).",
    )(function)
    function = click.option("--offload", type=click.Choice(OFFLOAD), help="What lives in host memory (DeepSpeed).")(
        function
    )
    function = click.option(
        "--sequence-parallel/--no-sequence-parallel", default=None, help="Megatron's, inside tensor parallelism."
    )(function)
    for names, field, text in reversed(PINS):
        allowed = RANGES.get(field, click.IntRange(1, MOST_GPUS))
        function = click.option(*names, field, type=allowed, help=text)(function)
    return function


def pins_of(options: dict[str, Any]) -> dict[str, int]:
    """The pinned fields of Strategy, out of a command's options."""
    pins = {field: options[field] for _, field, _ in PINS if options.get(field) is not None}
    if options.get("recompute") is not None:
        pins["recompute"] = RECOMPUTE.index(options["recompute"])
    if options.get("cp_method") is not None:
        pins["cp_method"] = CP_METHODS.index(METHOD_WORDS.get(options["cp_method"], options["cp_method"]))
    if options.get("offload") is not None:
        pins["offload"] = OFFLOAD.index(options["offload"])
    if options.get("sequence_parallel") is not None:
        pins["sequence_parallel"] = int(options["sequence_parallel"])
    return pins


def time_limit(seconds: float, help_text: str) -> Callable[[Function], Function]:
    """``--time-limit`` of the processes that a command starts; ``help_text`` says what it holds for."""
    return click.option(
        "--time-limit",
        type=click.FloatRange(min=0.0, min_open=True),
        default=seconds,
        show_default=True,
        metavar="SECONDS",
        help=help_text,
    )


def launcher_option(function: Function) -> Function:
    """What starts the processes of a batch job; the names are those of ``toolkit.emit.script.LAUNCHERS``."""
    return click.option(
        "--launcher",
        type=click.Choice(["torchrun", "srun"]),
        default="torchrun",
        show_default=True,
        help="In train.sbatch: one torchrun per node, or one srun task per process.",
    )(function)
