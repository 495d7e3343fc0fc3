"""Where a run's weights come from and which Hugging Face model it ends as, by the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipes import hub, ranks
from recipes.model_source import has_weights, hub_or_path, require_source
from recipes.pretrain.config import CoreConfig
from recipes.pretrain.hugging_face import architecture
from recipes.pretrain.hugging_face.files import Weights
from recipes.pretrain.hugging_face.transfer import start_from
from recipes.pretrain.model import Start
from toolkit.errors import ToolkitError
from toolkit.plan import Plan


def initial_weights(plan: Plan, core: CoreConfig, rank: int) -> tuple[Start | None, str]:
    """What gives the model its weights (None: they are drawn), and one sentence on it; every rank calls it.

    As the contract's ``init`` says: those of the model's folder or hub name where it has some, or drawn ones. Raises
    ToolkitError for a checkpoint that cannot be read or that the megatron file's model cannot be given.
    """
    require_source(plan)
    source = hub_or_path(plan)
    if plan.contract.init == "random" or not source or not has_weights(source):
        return None, f"random weights (seed {core.training.seed})"
    folder = Path(source) if Path(source).is_dir() else _downloaded(source, rank)
    config = _config(plan, folder)
    architecture.check(core, plan, config, str(folder))
    return start_from(Weights(folder), config["model_type"], plan.model.vocab_size), f"weights from {folder}"


def final_config(plan: Plan, core: CoreConfig) -> tuple[dict[str, Any] | None, str]:
    """The ``config.json`` of the trained model, or None and why there is none."""
    folder = Path(hub_or_path(plan) or ".nowhere")
    known = (folder / "config.json").is_file()
    try:
        config = _config(plan, folder) if known else architecture.config_of(plan.model, plan.contract.sequence_length)
        architecture.check(core, plan, config, plan.contract.model)
        return config, ""
    except ToolkitError as error:
        return None, "; ".join(problem.message for problem in error.problems)


def _config(plan: Plan, folder: Path) -> dict[str, Any]:
    """The folder's ``config.json``, with the rotary base that the contract may set anew."""
    config = architecture.read_config(folder)
    if plan.contract.rope_theta:
        for place in (config, config.get("rope_parameters")):
            if isinstance(place, dict) and (place is not config or "rope_theta" in config):
                place["rope_theta"] = plan.contract.rope_theta
    return config


def _downloaded(source: str, rank: int) -> Path:
    from huggingface_hub import snapshot_download

    def download() -> str:
        hub.settle()
        try:
            return str(snapshot_download(source, allow_patterns=["*.safetensors*", "*.json", "tokenizer*"]))
        except Exception as error:  # the library raises many kinds: network, name, permission, disk
            raise ToolkitError(
                f"cannot download {source!r}: {hub.reason(error)}",
                remedy="download it elsewhere and give its folder, or set init to random in the contract",
            ) from error

    ranks.on_first_rank(download, rank)
    return Path(download())  # at hand by now, or once more on a node with a cache of its own
