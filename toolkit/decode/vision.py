"""Vision-language models: a language model, a vision tower and what joins them, all counted exactly.

The language part is decoded like any other model; tower and projector are counted here and held whole by
every rank. Sources: the configuration and modelling files of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from toolkit.decode.common import Fields
from toolkit.decode.reader import Reader, Unsupported
from toolkit.decode.towers import TOWERS, layer_norm, linear

Projector = Callable[[Reader, Reader, Fields], dict[str, int]]
_TEXT_KEYS = ("text_config", "llm_config", "language_config")


class VisionLanguage(NamedTuple):
    """Families of the two parts where the config does not name them, and the projector between them.

    ``flat`` publishers keep the language model's keys at the top level. ``forward`` lets a tied head that only
    the language part states count for the whole.
    """

    text: str
    vision: str
    projector: Projector
    fixed: bool = False  # the parts' families are fixed whatever model_type they carry
    flat: bool = False
    forward: bool = False


def _features(read: Reader) -> int:
    """How many layers of the tower feed the projector."""
    value = read.raw("vision_feature_layer", "vision_feature_layers")
    if value is None:
        value = read.default("vision_feature_layer", "vision_feature_layers")
    return len(value) if isinstance(value, list) else 1


def _llava(read: Reader, vision: Reader, text: Fields) -> dict[str, int]:
    biased = read.flag("multimodal_projector_bias", default=True)
    inputs, hidden = vision.count("hidden_size") * _features(read), text["hidden_size"]
    return {"projector": linear(inputs, hidden, biased) + linear(hidden, hidden, biased)}


def _llava_next(read: Reader, vision: Reader, text: Fields) -> dict[str, int]:
    return _llava(read, vision, text) | {"image_newline": text["hidden_size"]}


def _vipllava(read: Reader, vision: Reader, text: Fields) -> dict[str, int]:
    found = _llava(read, vision, text)
    return {"projector": found["projector"] + layer_norm(vision.count("hidden_size") * _features(read))}


def _mistral3(read: Reader, vision: Reader, text: Fields) -> dict[str, int]:
    biased, wide, hidden = read.flag("multimodal_projector_bias"), vision.count("hidden_size"), text["hidden_size"]
    merger = wide + wide * read.count("spatial_merge_size") ** 2 * wide
    return {"projector": merger + linear(wide * _features(read), hidden, biased) + linear(hidden, hidden, biased)}


def _paligemma(read: Reader, vision: Reader, text: Fields) -> dict[str, int]:
    width = vision.count("projection_dim", default=read.count("projection_dim", default=text["hidden_size"]))
    return {"projector": linear(vision.count("hidden_size"), width)}


def _gemma3(read: Reader, vision: Reader, text: Fields) -> dict[str, int]:
    return {"projector": linear(vision.count("hidden_size"), text["hidden_size"], False) + vision.count("hidden_size")}


def _idefics2(read: Reader, vision: Reader, text: Fields) -> dict[str, int]:
    perceiver = read.sub("perceiver_config", "idefics2_perceiver")
    h, f, wide = text["hidden_size"], text["intermediate_size"], vision.count("hidden_size")
    size, number = perceiver.count("resampler_head_dim"), perceiver.count("resampler_n_heads")
    if perceiver.raw("hidden_size") not in (None, h):
        raise Unsupported("idefics2 whose perceiver is not as wide as its language model")
    layer = h * (2 * number + 2 * perceiver.count("num_key_value_heads")) * size + 3 * h + 3 * h * 4 * h
    resampler = perceiver.count("resampler_n_latents") * h + perceiver.count("resampler_depth") * layer + h
    return {"projector": 2 * wide * f + f * h, "resampler": resampler}


def _idefics3(read: Reader, vision: Reader, text: Fields) -> dict[str, int]:
    return {"projector": vision.count("hidden_size") * read.count("scale_factor") ** 2 * text["hidden_size"]}


def _internvl(read: Reader, vision: Reader, text: Fields) -> dict[str, int]:
    ratio = read.ratio("downsample_ratio", 0.5)
    wide, hidden = vision.count("hidden_size") * min(int(1 / ratio), 1000) ** 2, text["hidden_size"]
    return {"projector": layer_norm(wide) + linear(wide, hidden) + linear(hidden, hidden)}


def _llama4(read: Reader, vision: Reader, text: Fields) -> dict[str, int]:
    return {"projector": vision.count("vision_output_dim") * text["hidden_size"]}


def _cohere2(read: Reader, vision: Reader, text: Fields) -> dict[str, int]:
    wide, inner = (
        vision.count("hidden_size") * read.count("downsample_factor") ** 2,
        read.count("alignment_intermediate_size"),
    )
    return {"projector": linear(wide, inner) + linear(inner // 2, text["hidden_size"])}


def _aya(read: Reader, vision: Reader, text: Fields) -> dict[str, int]:
    wide = vision.count("hidden_size") * read.count("downsample_factor") ** 2
    inner = read.count("alignment_intermediate_size", default=text["hidden_size"])
    return {"projector": layer_norm(wide) + linear(wide, inner) + linear(inner // 2, text["hidden_size"])}


def _merger(read: Reader, vision: Reader, text: Fields) -> dict[str, int]:
    return {}  # the merger is part of the tower


FAMILIES: dict[str, VisionLanguage] = {
    "llava": VisionLanguage("llama", "clip_vision_model", _llava, forward=True),
    "llava_next": VisionLanguage("llama", "clip_vision_model", _llava_next),
    "llava_onevision": VisionLanguage("qwen2", "siglip_vision_model", _llava_next, forward=True),
    "vipllava": VisionLanguage("llama", "clip_vision_model", _vipllava),
    "mistral3": VisionLanguage("mistral", "pixtral", _mistral3),
    "paligemma": VisionLanguage("gemma", "siglip_vision_model", _paligemma),
    "gemma3": VisionLanguage("gemma3_text", "siglip_vision_model", _gemma3),
    "idefics2": VisionLanguage("mistral", "idefics2_vision", _idefics2),
    "idefics3": VisionLanguage("llama", "idefics3_vision", _idefics3),
    "smolvlm": VisionLanguage("llama", "smolvlm_vision", _idefics3),
    "internvl": VisionLanguage("qwen2", "internvl_vision", _internvl),
    "internvl_chat": VisionLanguage("qwen2", "intern_vit_6b", _internvl),  # remote
    "llama4": VisionLanguage("llama4_text", "llama4_vision_model", _llama4),
    "aya_vision": VisionLanguage("cohere2", "siglip_vision_model", _aya),
    "cohere2_vision": VisionLanguage("cohere2", "siglip_vision_model", _cohere2),
    "qwen2_vl": VisionLanguage("qwen2_vl_text", "qwen2_vl_vision", _merger, fixed=True, flat=True, forward=True),
    "qwen2_5_vl": VisionLanguage("qwen2_5_vl_text", "qwen2_5_vl_vision", _merger, fixed=True, flat=True, forward=True),
    "qwen3_vl": VisionLanguage("qwen3_vl_text", "qwen3_vl_vision", _merger, fixed=True),
    "qwen3_vl_moe": VisionLanguage("qwen3_vl_moe_text", "qwen3_vl_moe_vision", _merger, fixed=True),
    "qwen3_5": VisionLanguage("qwen3_5_text", "qwen3_5_vision", _merger, fixed=True),
    "qwen3_5_moe": VisionLanguage("qwen3_5_moe_text", "qwen3_5_moe_vision", _merger, fixed=True),
    "glm4v": VisionLanguage("glm4v_text", "glm4v_vision", _merger, fixed=True, forward=True),
    "glm4v_moe": VisionLanguage("glm4v_moe_text", "glm4v_moe_vision", _merger, fixed=True, forward=True),
}


def decode(read: Reader, family: VisionLanguage, decode_text: Callable[[Reader], Fields]) -> tuple[Fields, list[str]]:
    """Fields of the whole, and notes of its parts."""
    key = next((key for key in _TEXT_KEYS if isinstance(read.values.get(key), dict)), "")
    if key:
        table, where = read.values[key], f"{key}."
    elif family.flat:
        table, where = read.values, ""
    else:
        read.problems.add(f"text_config of {read.family} is missing", f"one of {', '.join(_TEXT_KEYS)} must be a table")
        table, where = {}, "text_config."
    text_family = family.text if family.fixed else _kind(table, where, read) or family.text
    text_read = Reader(table, text_family, read.problems, where, nested=bool(where))
    text = decode_text(text_read)
    if not isinstance(read.values.get("vision_config"), dict):
        raise Unsupported(f"{read.family} without vision_config")
    named = "" if family.fixed else _kind(read.values["vision_config"], "vision_config.", read)
    vision_family = named or family.vision
    if vision_family == read.family:  # old configs name the whole model here
        vision_family = family.vision
    if vision_family not in TOWERS:
        raise Unsupported(f"{read.family} with a vision tower of model_type {vision_family!r}")
    vision = read.sub("vision_config", vision_family)
    tower = TOWERS[vision_family](vision)
    parts = {"vision": tower} | family.projector(read, vision, text) | text.get("other_parameters", {})
    fields = text | {"other_parameters": parts, "tie_word_embeddings": _tied(read, text_read, family)}
    text_read.notes = [note for note in text_read.notes if "tie_word_embeddings" not in note]
    return fields, text_read.notes + vision.notes


def _kind(table: dict[str, Any], where: str, read: Reader) -> str:
    """The model_type of a part, empty when it has none."""
    return Reader(table, "", read.problems, where).text("model_type")


def _tied(read: Reader, text: Reader, family: VisionLanguage) -> bool:
    """The whole model's flag, else what the language part states, else the default of the whole."""
    whole = read.raw("tie_word_embeddings")
    part = text.raw("tie_word_embeddings")
    if whole is None or (family.forward and whole is False):
        if part is not None:
            return text.flag("tie_word_embeddings")
        if family.forward and not read.default("tie_word_embeddings"):
            return bool(text.default("tie_word_embeddings"))
    return read.flag("tie_word_embeddings", tell=True)
