"""Which decoder reads which ``model_type``, and which class names and other names mean the same family."""

from __future__ import annotations

from toolkit.decode import classic, dense, hybrids, latent, linear, moe, moe_keys, state_space, vision
from toolkit.decode.common import Fields
from toolkit.decode.reader import Reader, Unsupported

# parts of vision-language models whose language part is a known family with defaults of its own
_SAME = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
    "kimi_k2": "deepseek_v3",
    "exaone_v3": "exaone",
}
ALIASES = {
    "minimax_text_01": "minimax",
    "minimax_m1": "minimax",
}
_TABLES = (
    classic.FAMILIES,
    moe.FAMILIES,
    moe_keys.FAMILIES,
    latent.FAMILIES,
    state_space.FAMILIES,
    hybrids.FAMILIES,
    linear.FAMILIES,
)


def known() -> list[str]:
    """Every model_type that can be decoded."""
    text = [family for table in (dense.FAMILIES, *_TABLES) for family in table]
    return sorted({*text, *_SAME, *vision.FAMILIES})


def decode_text(read: Reader) -> Fields:
    """Fields of a language model; the reader's family must be known."""
    family = _SAME.get(read.family, read.family)
    if family in dense.FAMILIES:
        fields = dense.decode(read, dense.FAMILIES[family])
        if read.family == "glm4v_text":  # always biased, whatever the config says
            fields["attention_bias"] = True
        return fields
    for table in _TABLES:
        if family in table:
            return table[family](read)
    raise Unsupported(f"a language model of model_type {read.family!r}")
