"""What a finished pretraining run leaves: its model as ``from_pretrained`` reads it, where Hugging Face has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megatron.core.utils import unwrap_model

from recipes.pretrain import checkpoints
from recipes.pretrain.config import CoreConfig
from recipes.pretrain.hugging_face import start as hugging_face
from recipes.pretrain.hugging_face import transfer
from recipes.pretrain.model import Built
from recipes.tokenizer import load_tokenizer
from toolkit.plan import Plan


def save(plan: Plan, core: CoreConfig, built: Built, folder: Path, rank: int, say: Any) -> Path:
    """The trained weights in ``model``, as ``from_pretrained`` reads them, where Hugging Face has such a model.

    Returns the folder with the result: the last checkpoint's where there is no such model.
    """
    settings, reason = hugging_face.final_config(plan, core)
    if settings is None:
        say(f"note: no folder 'model' is written: {reason}")
        return folder
    checkpoints.whole_parameters(built)
    chunks = unwrap_model(built.chunks)
    tokenizer = load_tokenizer(plan)
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    transfer.export(
        chunks, chunks[0].config, special | settings, plan.model.vocab_size, folder / "model", tokenizer.save_pretrained
    )
    return folder / "model"
