"""Counts a model that has no decoder here by building it with transformers on the meta device (no memory).

The only module of this package that imports transformers, and only when it is called.
"""

from __future__ import annotations

import re
from typing import Any

from toolkit.decode.common import builder
from toolkit.decode.reader import MOST_LAYERS, Reader
from toolkit.errors import Problems, ToolkitError
from toolkit.model import ModelSpec

SHARDED, REPLICATED, ROUTED = range(3)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|decoder_layers|layer)\.(\d+)\.")
_EXPERT = re.compile(r"(?:^|\.)experts?\.")
_SHARED = re.compile(r"shared_expert")
_WHOLE = re.compile(r"norm|router|\.gate\.weight$|ln_|layernorm|_a_proj|alpha|lambda")
_OUTSIDE = re.compile(r"vision|visual|audio|image|video|multi_modal|projector|connector|resampler|mtp")


def count_on_meta_device(config: dict[str, Any], name: str, source: str) -> ModelSpec:
    """The ModelSpec whose layers are counted from the module that transformers builds.

    Raises ToolkitError when transformers does not know the model_type either, refuses the values, or when a
    key that planning needs (layers, width, heads, vocabulary) is nowhere to be read.
    """
    model, built, version = _build(config)
    text = built.get_text_config(decoder=True)
    with Problems() as problems:
        read = Reader(_plain(text), str(text.model_type), problems, nested=True)
        layers = read.count("num_hidden_layers", "n_layer", "num_layers", most=MOST_LAYERS)
        hidden = read.count("hidden_size", "n_embd", "d_model")
        heads = read.count("num_attention_heads", "n_head", "num_heads", default=0, least=0)
        experts = read.count(
            "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", default=0, least=0
        )
        chosen = read.count(
            "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", default=0, least=0
        )
        width = read.count("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", default=4 * hidden)
        fields: dict[str, Any] = {
            "hidden_size": hidden,
            "intermediate_size": width,
            "num_attention_heads": heads,
            "num_key_value_heads": read.count("num_key_value_heads", "num_kv_heads", default=heads, least=0),
            "head_dim": read.count("head_dim", default=hidden // heads if heads else 0, least=0),
            "num_experts": experts,
            "num_experts_per_tok": chosen,
            "moe_intermediate_size": read.count(
                "moe_intermediate_size", "expert_ffn_hidden_size", default=width if experts else 0, least=0
            ),
            "max_position_embeddings": read.count("max_position_embeddings", "n_positions", default=0, least=0),
        }
        if experts and not chosen:
            problems.add(f"{experts} experts, but no key tells how many a token uses", "add num_experts_per_tok")
    counted = _sort_parameters(model, layers, hidden, experts)
    rows = counted.pop("rows")
    notes = [f"counted on the meta device by transformers {version}: the shape of its layers is not known here"]
    notes += [
        f"{part} counts as used by every token: how its experts are chosen is not known" for part in counted.pop("odd")
    ]
    return ModelSpec(
        name=name,
        source=source,
        model_type=str(config.get("model_type")),
        num_hidden_layers=len(rows),
        mixers="" if heads else "M" * len(rows),
        mlps="".join("E" if row[2] else "D" for row in rows) if experts else "",
        counted_layers=tuple((s, r, e, e * chosen // experts if e else 0) for s, r, e in rows),
        notes=tuple(notes),
        **fields,
        **counted,
        **builder(read),
    )


def _build(config: dict[str, Any]) -> tuple[Any, Any, str]:
    import contextlib
    import importlib
    import io
    import warnings

    with (
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        modeling_auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")

        transformers.logging.set_verbosity_error()
        kind = config.get("model_type")
        if kind not in transformers.CONFIG_MAPPING:
            raise ToolkitError(f"transformers {transformers.__version__} does not know model_type {kind!r} either")
        vision = kind in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        text = kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if not vision and not text:
            raise ToolkitError(f"model_type {kind!r} is not a language model that transformers trains with a head")
        auto = transformers.AutoModelForImageTextToText if vision else transformers.AutoModelForCausalLM
        plain = {key: value for key, value in config.items() if key not in ("auto_map", "quantization_config")}
        try:
            built = transformers.CONFIG_MAPPING[kind].from_dict(plain)
            with torch.device("meta"):
                model = auto.from_config(built)
        except Exception as error:  # whatever the library raises for values that it cannot build
            first = str(error).strip().splitlines()
            raise ToolkitError(
                f"transformers {transformers.__version__} cannot build it: {type(error).__name__}: "
                f"{first[0][:200] if first else ''}",
                remedy="correct the config, or give one of a known family",
            ) from error
    if getattr(built, "is_encoder_decoder", False):
        raise ToolkitError("it is an encoder-decoder", remedy="plan a decoder-only model")
    return model, built, transformers.__version__


def _plain(text: Any) -> dict[str, Any]:
    """The language model's keys, with the canonical names that its attribute map answers to."""
    values: dict[str, Any] = text.to_dict()
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "num_experts", "head_dim"):
        try:
            value = getattr(text, name, None)
        except Exception:  # a configuration whose layers differ refuses to tell one value for all
            continue
        if isinstance(value, int):
            values[name] = value
    for name in ("intermediate_size", "moe_intermediate_size"):  # some have one width per layer
        value = values.get(name)
        if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
            values[name] = max(value)
    return values


def _sort_parameters(model: Any, layers: int, hidden: int, experts: int) -> dict[str, Any]:
    """Every parameter into its layer (sharded, replicated, routed), the ends, or what lies outside."""
    try:
        table = getattr(model.get_input_embeddings(), "weight", None)
        last = getattr(model.get_output_embeddings(), "weight", None)
    except NotImplementedError:
        table = last = None
    if table is None or table.shape[-1] != hidden:
        raise ToolkitError("its token embedding is not hidden_size wide", remedy="give a model of a known family")
    vocabulary = table.shape[0] if last is None or last is table else last.shape[0]
    found = [[0, 0, 0] for _ in range(layers)]
    outside = {"more_embeddings": (table.shape[0] - vocabulary) * hidden}
    odd: dict[str, None] = {}
    final, deepest = False, 0
    for name, parameter in model.named_parameters():
        if parameter is table or parameter is last:
            continue
        count, match = parameter.numel(), _LAYER.search(name)
        if match and int(match[1]) < layers and not _OUTSIDE.search(name):
            kind = _kind(name, parameter, experts)
            if experts and kind != ROUTED and _EXPERT.search(name) and not _SHARED.search(name):
                odd[_LAYER.sub(".N.", name)] = None
            found[int(match[1])][kind] += count
            deepest = max(deepest, int(match[1]))
        elif not final and count == hidden and parameter.dim() == 1 and not _OUTSIDE.search(name):
            final = True
        else:
            part = name.rsplit(".", 1)[0]
            part = next((piece for piece in part.split(".") if _OUTSIDE.search(piece)), part)
            outside[part] = outside.get(part, 0) + count
    return {
        "rows": found[: deepest + 1],  # some configurations count half layers
        "odd": list(odd),
        "vocab_size": vocabulary,
        "tie_word_embeddings": last is None or last is table,
        "final_norm": final,
        "counted_largest_tensor": max(parameter.numel() for parameter in model.parameters()),
        "other_parameters": {part: count for part, count in outside.items() if count},
    }


def _kind(name: str, parameter: Any, experts: int) -> int:
    """Whether a layer's parameter belongs to routed experts, else whether tensor parallelism divides it."""
    if experts and not _SHARED.search(name):
        listed = re.search(r"experts\.\d+\.", name) is not None
        stacked = parameter.dim() == 3 and parameter.shape[0] == experts
        biases = parameter.dim() == 2 and parameter.shape[0] == experts and _EXPERT.search(name) is not None
        if listed or stacked or (biases and "router" not in name):
            return ROUTED
    return REPLICATED if parameter.dim() < 2 or _WHOLE.search(name) else SHARDED
