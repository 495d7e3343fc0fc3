"""Everything that one plan is turned into: file name to text."""

from __future__ import annotations

import json
from collections.abc import Callable

from toolkit import plan as plans
from toolkit.emit import accelerate, deepspeed, megatron, script, shell, slurm, torchrun
from toolkit.errors import Problem, ToolkitError
from toolkit.plan import Plan
from toolkit.recipe import planned_steps


def bundle(plan: Plan, directory: str, launcher: str = "torchrun") -> dict[str, str]:
    """The files of ``--out DIR``; ``directory`` is how the batch script writes the path to them.

    ``launcher`` is what starts the processes of a batch job (:func:`toolkit.emit.slurm.batch_script`).

    ========================  ==================================  =======================================
    file                      for                                 read by
    ========================  ==================================  =======================================
    plan.json                 every plan                          the program, emit, verify, doctor
    launch.sh, train.sbatch   every plan                          bash, sbatch
    COMMANDS.txt              every plan                          you
    ds_config.json            DeepSpeed                           the program, DeepSpeed
    ds_config_auto.json       DeepSpeed                           your own Trainer script
    accelerate.yaml           DeepSpeed, FSDP on GPUs, DDP        accelerate launch
    megatron_core.json        Megatron                            the program
    megatron_args.txt         Megatron on GPUs                    Megatron-LM's pretrain_gpt.py
    ========================  ==================================  =======================================

    Raises ToolkitError with the problems of all files together.
    """
    files = script.files_of(plan, directory)
    makers: dict[str, Callable[[], str]] = {
        "plan.json": lambda: plans.dump(plan),
        "launch.sh": lambda: torchrun.launch_script(plan),
        "train.sbatch": lambda: slurm.batch_script(plan, files, launcher),
        "COMMANDS.txt": lambda: commands(plan, directory),
    }
    if plan.strategy.framework == "deepspeed":
        makers["ds_config.json"] = lambda: to_json(deepspeed.config(plan))
        makers["ds_config_auto.json"] = lambda: to_json(deepspeed.auto_twin(plan))
    if plan.strategy.framework == "megatron":
        makers["megatron_core.json"] = lambda: to_json(megatron.core_config(plan))
        if script.gpus_per_node(plan):
            makers["megatron_args.txt"] = lambda: megatron.arguments_text(plan)
    elif _accelerate_starts(plan):
        makers["accelerate.yaml"] = lambda: accelerate.text(plan, _join(directory, "ds_config.json"))
    texts: dict[str, str] = {}
    problems: dict[Problem, None] = {}  # a dictionary: several files have the same problem
    for name, make in makers.items():
        try:
            texts[name] = make()
        except ToolkitError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise ToolkitError(*problems)
    return texts


def to_json(values: object) -> str:
    """JSON as the committed files have it: two spaces, keys in the order given."""
    return json.dumps(values, indent=2) + "\n"


def commands(plan: Plan, directory: str) -> str:
    """``COMMANDS.txt``: how to start what was written, one command per paragraph."""
    cluster, framework = plan.cluster, plan.strategy.framework

    def file(name: str) -> str:
        return shell.quote(_join(directory, name))

    paragraphs = [("On Slurm", f"sbatch {file('train.sbatch')}")]
    if cluster.nodes == 1:
        paragraphs.append(("On this machine", f"bash {file('launch.sh')}"))
    else:
        start = f"RDZV_ENDPOINT=FIRST_NODE:29400 RDZV_ID=NAME bash {file('launch.sh')}"
        paragraphs.append((f"Without a scheduler, on each of the {cluster.nodes} nodes", start))
    if framework == "megatron" and script.gpus_per_node(plan):
        flags = f"torchrun ... pretrain_gpt.py $(cat {file('megatron_args.txt')}) --data-path ... --tokenizer-type ..."
        flags += "" if planned_steps(plan.contract) else " --train-iters ..."
        paragraphs.append(("With Megatron-LM core_v0.16.1 itself", flags))
    if _accelerate_starts(plan):
        more = f" --deepspeed {file('ds_config.json')}" if framework == "deepspeed" else ""
        ranks = "" if cluster.nodes == 1 else " --machine_rank N --main_process_ip FIRST_NODE --main_process_port 29400"
        start = f"accelerate launch --config_file {file('accelerate.yaml')}{ranks} -m recipes.{plan.program}.train"
        paragraphs.append(("With accelerate", f"{start} --plan {file('plan.json')}{more} --output-dir {file('run')}"))
    paragraphs.append(("Again, after editing plan.json", f"toolkit emit {file('plan.json')} --out DIR"))
    if plan.resilience is not None:
        steps = plan.resilience.checkpoint_steps
        paragraphs.append(
            (
                f"Checkpoints are written every {steps:,} steps, which loses least to failures; for another interval",
                "--save-steps N",
            )
        )
    ending = (
        "\nArguments after a script's name go to the program. The run is written to "
        f"{file('run')} and resumes from there; a stop request is the file STOP in it, or SIGUSR1.\n"
    )
    if note := script.stop_note(plan):
        ending += f"\nNote: {note}.\n"
    return "\n".join(f"{title}:\n  {command}\n" for title, command in paragraphs) + ending


def _accelerate_starts(plan: Plan) -> bool:
    """Not Megatron; nor FSDP on processors, where it would run DDP and the program itself shards."""
    framework = plan.strategy.framework
    return framework != "megatron" and not (framework == "fsdp" and plan.cluster.accelerator.is_cpu)


def _join(directory: str, name: str) -> str:
    return name if directory in ("", ".") else f"{directory.rstrip('/')}/{name}"
