"""Transcribes the defaults of transformers' configuration classes into toolkit/decode/defaults.json.

Run it as a program to rewrite the file; tests/decode/test_against_transformers.py fails when it is stale.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[2] / "toolkit" / "decode" / "defaults.json"
# what never changes the number or the division of parameters
IRRELEVANT = re.compile(
    r"token_id|token_index|dropout|drop|initializer|_init|use_cache|eps|epsilon|hidden_act|activation|id2label|label2id"
    r"|transformers_version|chunk_size|return_dict|problem_type|^output_|^rope|rope_(theta|scaling|param)|no_rope|torch|dtype|_std|summary|scor|router_aux"
    r"|router_jitter|norm_topk|topk_method|topk_group|^n_group$|scaling|scale_attn|multiplier|logit|limit|time_step_(min|max|floor)"
    r"|kernels|mambapy|scan|residual_in|rescale|pretraining_tp|architectures|is_encoder|is_decoder|beta|alpha|loss|clip"
    r"|softcapping|logits|causal_mask|prefix|softmax|select_strategy|seq_length|num_image|mm_tokens|query_pre"
)


def defaults() -> dict[str, dict[str, Any]]:
    """model_type -> {"defaults": {key: value}, "aliases": {other name: key}}, for every family decoded."""
    from transformers import CONFIG_MAPPING

    from toolkit.decode import families
    from toolkit.decode.towers import TOWERS

    wanted = sorted({*families.known(), *TOWERS, "idefics2_perceiver"})
    found: dict[str, dict[str, Any]] = {}
    for name in wanted:
        config = _class(CONFIG_MAPPING, name)
        if config is None:
            continue
        values = {}
        for field in dataclasses.fields(config):
            value = field.default
            if isinstance(value, tuple):
                value = list(value)
            plain = isinstance(value, (bool, int, float, str)) or (
                isinstance(value, list) and all(isinstance(item, (int, str)) for item in value)
            )
            if plain and not IRRELEVANT.search(field.name):
                values[field.name] = value
        aliases = {new: old for new, old in (config.attribute_map or {}).items() if not IRRELEVANT.search(new)}
        found[name] = {"defaults": values} | ({"aliases": aliases} if aliases else {})
    return found


def _class(mapping: Any, name: str) -> Any:
    if name in mapping:
        return mapping[name]
    for owner in (
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_5",
        "qwen3_5_moe",
        "glm4v",
        "glm4v_moe",
        "internvl",
        "idefics2",
        "idefics3",
        "smolvlm",
        "llama4",
        "qwen2_5_omni_thinker",
    ):
        for spec in getattr(mapping[owner], "sub_configs_defaults", {}).values():
            config = getattr(spec, "config_class", spec)
            if getattr(config, "model_type", "") == name:
                return config
    return None


def text() -> str:
    """The file as it should be."""
    return json.dumps(defaults(), indent=0, sort_keys=True) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
