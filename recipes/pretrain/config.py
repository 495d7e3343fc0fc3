"""``megatron_core.json``: what ``toolkit emit`` hands to this program, read before torch is imported.

Every key of the first five sections is a keyword of the library's own class (megatron-core 0.16.1), so
the file can be read beside the library's documentation:

| section | keywords of |
|---|---|
| ``transformer`` | ``megatron.core.transformer.TransformerConfig`` |
| ``model`` | ``megatron.core.models.gpt.GPTModel`` (``vocab_size`` is the padded one) |
| ``parallel`` | ``megatron.core.parallel_state.initialize_model_parallel`` |
| ``ddp`` | ``megatron.core.distributed.DistributedDataParallelConfig`` |
| ``optimizer`` | ``megatron.core.optimizer.OptimizerConfig`` |
| ``training`` | :class:`Training` below |

Values that JSON cannot hold are names: dtypes ``"fp32"``, ``"bf16"``, ``"fp16"``; ``activation_func``
``"silu"``, ``"gelu"`` or ``"gelu_tanh"``. What depends on the machine that a job lands on (fused kernels,
device of initialisation) is decided there, by :mod:`recipes.pretrain.machine`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from toolkit import plan as plans
from toolkit.errors import Problems, ToolkitError
from toolkit.plan import Plan
from toolkit.recipe import Contract


class Training(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the loop needs: sequences per forward and per step, steps, and the learning-rate schedule.

    ``train_steps`` 0 means as many as the plan's contract says in tokens or epochs (epochs need the
    length of the data, which only this program knows). The peak and final learning rates are the
    optimizer's ``lr`` and ``min_lr``.
    """

    micro_batch_size: int
    global_batch_size: int
    sequence_length: int
    train_steps: int = 0
    lr_warmup_steps: int = 0
    lr_decay_style: str = "cosine"  # cosine | linear | constant
    seed: int = 42


class CoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. ``megatron_core`` is the version whose keywords it uses."""

    megatron_core: str = ""
    transformer: dict[str, Any]
    model: dict[str, Any]
    parallel: dict[str, Any]
    ddp: dict[str, Any]
    optimizer: dict[str, Any]
    training: Training


def load(plan_path: Path, core_path: Path) -> tuple[Plan, CoreConfig, bytes]:
    """Both files, and the text of the plan; raises ToolkitError with the problems of both."""
    text, plan, core = b"", None, None
    with Problems() as problems:
        try:
            text = _read(plan_path)
            plan = plans.load(text, str(plan_path))
        except ToolkitError as error:
            problems.absorb(error)
        try:
            core = msgspec.json.decode(_read(core_path), type=CoreConfig)
        except ToolkitError as error:
            problems.absorb(error)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            problems.add(f"{core_path}: {error}", f"write it again with: toolkit emit {plan_path} --out DIR")
    assert plan is not None and core is not None  # otherwise the block above has raised
    return plan, core, text


def learning_rate_contract(plan: Plan, core: CoreConfig) -> Contract:
    """The plan's contract with the schedule of the megatron file, which is what this program follows."""
    return msgspec.structs.replace(
        plan.contract,
        learning_rate=core.optimizer["lr"],
        min_learning_rate=core.optimizer.get("min_lr") or 0.0,
        warmup_steps=core.training.lr_warmup_steps,
        schedule=core.training.lr_decay_style,
        total_steps=core.training.train_steps or plan.contract.total_steps,
        global_batch_size=core.training.global_batch_size,
        sequence_length=core.training.sequence_length,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ToolkitError(f"cannot read {path}: {error}", remedy="make it with: toolkit plan ... --out DIR") from error
