"""From a Hugging Face ``config.json`` to a ModelSpec, by family; never a guess."""

from __future__ import annotations

import re
from typing import Any

from msgspec import structs

from toolkit.decode.reader import MOST_PARAMETERS, Reader, Unsupported
from toolkit.errors import Problems, ToolkitError
from toolkit.model import ModelSpec

__all__ = ["decode_config"]

_LLAMA_KEYS = {
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "hidden_act",
    "initializer_range",
    "attention_bias",
    "mlp_bias",
    "torch_dtype",
    "dtype",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "use_cache",
    "transformers_version",
    "pretraining_tp",
    "attention_dropout",
}


def decode_config(config: Any, name: str, source: str = "") -> ModelSpec:
    """The ModelSpec of a decoded ``config.json``; all its problems are raised together.

    A family that is not known here is counted on the meta device where transformers is installed (and says
    so in the notes); else it is an error that names the nearest families known.
    """
    if not isinstance(config, dict):
        raise ToolkitError(f"the config of {name} is not an object of keys and values", remedy="give a config.json")
    thinker = config.get("thinker_config")
    if isinstance(thinker, dict):  # Qwen-Omni: the part that reads and answers; what speaks is trained apart
        config = {"model_type": f"{config.get('model_type')}_thinker"} | thinker
    family, notes = _family(config, name)
    if isinstance(thinker, dict):
        notes.append("thinker_config alone is counted: the talker and the vocoder are separate models")
    from toolkit.decode import families, vision

    try:
        if family not in set(families.known()):
            raise Unsupported(f"model_type {family!r}")
        with Problems() as problems:
            read = Reader(config, family, problems)
            if config.get("is_encoder_decoder") is True:
                problems.add("is_encoder_decoder is true: encoder-decoder models are not supported", "plan a decoder")
            if family in vision.FAMILIES:
                fields, more = vision.decode(read, vision.FAMILIES[family], families.decode_text)
            else:
                fields, more = families.decode_text(read), []
            for part, number in fields.get("other_parameters", {}).items():
                if number > MOST_PARAMETERS:
                    problems.add(f"{part} would have {number:.1e} parameters", "correct the widths in the config")
    except Unsupported as unsupported:
        return _elsewhere(config, family, name, source, unsupported, notes)
    notes += read.notes + more
    unread = read.unread() if family not in vision.FAMILIES else []
    if unread:
        notes.append(f"keys that a {family} model does not use were ignored: {', '.join(unread)}")
    if read.values.get("num_nextn_predict_layers"):
        notes.append("multi-token prediction layers are not counted: transformers does not train them")
    return ModelSpec(name=name, source=source, model_type=family, notes=tuple(dict.fromkeys(notes)), **fields)


def _family(config: dict[str, Any], name: str) -> tuple[str, list[str]]:
    """The model_type, or what the class name says, or llama when every key is one of llama's."""
    from toolkit.decode import families

    kind = config.get("model_type")
    if isinstance(kind, str) and kind:
        return families.ALIASES.get(kind.casefold(), _spelled(kind)), []
    if kind is not None:
        raise ToolkitError(f"model_type of {name} is {kind!r}, not a text", remedy="correct it in the config")
    classes = config.get("architectures")
    if isinstance(classes, list) and classes and isinstance(classes[0], str):
        stem = re.sub(r"(ForCausalLM|ForConditionalGeneration|LMHeadModel|Model)$", "", classes[0])
        wanted = re.sub(r"[^a-z0-9]", "", stem.casefold())
        found = [family for family in families.known() if re.sub(r"[^a-z0-9]", "", family) == wanted]
        if found:
            return found[0], [f"model_type is missing: read as {found[0]}, from architectures {classes[0]}"]
        raise ToolkitError(
            f"the config of {name} has no model_type, and its architecture {classes[0]!r} is not known",
            remedy=f"add model_type; known: {', '.join(families.known())}",
        )
    core = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}
    if core <= set(config) <= _LLAMA_KEYS:
        return "llama", ["model_type is missing: every key is one of llama's, so it is read as llama"]
    raise ToolkitError(
        f"the config of {name} has no model_type (keys: {', '.join(map(str, list(config)[:8])) or 'none'})",
        remedy="a Hugging Face config.json names its model_type; add it, for example model_type llama",
    )


def _spelled(kind: str) -> str:
    """The family's own spelling of a model_type that differs in case or hyphens (Yi, InternLM2)."""
    from toolkit.decode import families

    known = set(families.known())
    for candidate in (kind, kind.casefold(), kind.casefold().replace("-", "_")):
        if candidate in known:
            return candidate
    return kind


def _elsewhere(
    config: dict[str, Any], family: str, name: str, source: str, unsupported: Unsupported, notes: list[str]
) -> ModelSpec:
    """Count with transformers if it is there; else say what is unknown and what is nearest."""
    import difflib
    import importlib.util

    from toolkit.decode import families

    what = unsupported.problems[0].message
    near = difflib.get_close_matches(family, families.known(), n=3, cutoff=0.5)
    nearest = f"the nearest known: {', '.join(near)}" if near else f"known: {', '.join(families.known())}"
    nearest += "; if its layers are like those of a known one, plan with a copy of the file that names that model_type"
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None:
        raise ToolkitError(
            f"{name}: {what} is not known here",
            remedy=f"{nearest}; with transformers installed it can be counted on the meta device",
        ) from unsupported
    from toolkit.decode.meta import count_on_meta_device

    try:
        spec = count_on_meta_device(config, name, source)
        return structs.replace(spec, notes=(*notes, *spec.notes))
    except ToolkitError as error:
        raise ToolkitError(
            f"{name}: {what} is not known here, and transformers could not count it: {error.problems[0].message}",
            *error.problems[1:],
            remedy=error.problems[0].remedy or nearest,
        ) from error
