"""What a finished run leaves: the model, its adapters, and both merged into one where that is asked for.

model    what ``from_pretrained`` reads: the whole model, or the adapters as peft reads them
base     the model that adapters belong to, where it was drawn from a seed and is nowhere else
merged   with --merge, the base with the adapters added to its weights
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from recipes import ranks
from recipes.finetune import model as models
from recipes.model_source import hub_or_path
from toolkit.plan import Plan


def save(trainer: Any, plan: Plan, tokenizer: Any, folder: Path, merge: bool) -> list[Path]:
    """Write it; every rank calls this, rank 0 writes. Returns the folders."""
    adapters = plan.contract.method != "full"
    drawn = adapters and (not hub_or_path(plan) or plan.contract.init == "random")
    if plan.strategy.framework == "fsdp":
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")  # sharded, it would write nothing
    first = trainer.args.process_index == 0
    if drawn:
        if first:  # peft looks for it when it saves
            trainer.model.get_base_model().config.save_pretrained(folder / "base")
        for config in trainer.model.peft_config.values():
            config.base_model_name_or_path = str((folder / "base").resolve())
    if trainer.own_use_cache is not None:
        trainer.model.config.use_cache = trainer.own_use_cache
    trainer.save_model(str(folder / "model"))
    ranks.barrier()
    if first and drawn:
        _base(plan, tokenizer).save_pretrained(folder / "base")
        tokenizer.save_pretrained(folder / "base")
    if first and adapters and merge:
        merged(plan, tokenizer, folder)
    ranks.barrier()
    return [folder / "model", *([folder / "merged"] if adapters and merge else [])]


def merged(plan: Plan, tokenizer: Any, folder: Path) -> Path:
    """``W + alpha / rank B A`` of every matrix with an adapter, in the model's 16 bits; one process, in host memory.

    Of a 4-bit base it is the base before it was quantised: adding to rounded weights and rounding again would
    lose what the adapters have learnt.
    """
    import peft

    whole = peft.PeftModel.from_pretrained(_base(plan, tokenizer), str(folder / "model")).merge_and_unload()
    target = folder / "merged"
    partial = folder / ".merged"
    shutil.rmtree(partial, ignore_errors=True)
    whole.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return target


def _base(plan: Plan, tokenizer: Any) -> Any:
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()  # or under ZeRO-3 the model would come into being sharded over all ranks
    return models.load_base(plan, tokenizer, half=True)[0]
