"""Parameters of vision towers, exactly as the modelling files of transformers 5.24 build them.

Symbols: ``h`` width, ``f`` MLP width, ``p`` patch side, ``c`` channels, ``n`` patches of the image.
"""

from __future__ import annotations

from collections.abc import Callable

from toolkit.decode.reader import MOST_LAYERS, Reader


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """A matrix and, with ``bias``, its bias."""
    return inputs * outputs + bias * outputs


def layer_norm(width: int, bias: bool = True) -> int:
    """A scale and, with ``bias``, a shift."""
    return width * (1 + bias)


def _block(h: int, f: int) -> int:
    """LayerNorm, attention and MLP with biases everywhere: ``4h(h+1) + (h+1)f + (f+1)h + 4h``."""
    return 4 * linear(h, h) + linear(h, f) + linear(f, h) + 2 * layer_norm(h)


def side(read: Reader, key: str) -> int:
    """A side length, given once or as [height, width] of a square."""
    value = read.raw(key)
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        read.values = read.values | {key: value[0]}
    known = read.default(key)
    if value is None and isinstance(known, list) and known:
        return int(known[0])
    return read.count(key)


def _shape(read: Reader) -> tuple[int, int, int, int, int]:
    """``h, f, layers, c*p*p, n``."""
    patch, image = side(read, "patch_size"), side(read, "image_size")
    return (
        read.count("hidden_size"),
        read.count("intermediate_size"),
        read.count("num_hidden_layers", most=MOST_LAYERS),
        read.count("num_channels", default=3) * patch * patch,
        (image // patch) ** 2,
    )


def clip(read: Reader) -> int:
    """CLIP: class token, positions, norms before and after; the patch embedding has no bias."""
    h, f, layers, pixels, patches = _shape(read)
    return h + pixels * h + (patches + 1) * h + 2 * layer_norm(h) + layers * _block(h, f)


def siglip(read: Reader) -> int:
    """SigLIP: positions, norm after; a pooling head with its own attention unless switched off."""
    h, f, layers, pixels, patches = _shape(read)
    total = linear(pixels, h) + patches * h + layers * _block(h, f) + layer_norm(h)
    if read.flag("vision_use_head", default=True):
        total += h + 4 * linear(h, h) + layer_norm(h) + linear(h, f) + linear(f, h)
    return total


def idefics(read: Reader) -> int:
    """The tower of Idefics2, Idefics3 and SmolVLM: SigLIP without its head."""
    h, f, layers, pixels, patches = _shape(read)
    return linear(pixels, h) + patches * h + layers * _block(h, f) + layer_norm(h)


def pixtral(read: Reader) -> int:
    """Pixtral: RMSNorm, gated MLP, rotary positions, no biases."""
    h, f, layers, pixels, _ = _shape(read)
    wide = read.count("num_attention_heads") * read.count("head_dim", default=h // read.count("num_attention_heads"))
    return pixels * h + h + layers * (4 * h * wide + 3 * h * f + 2 * h)


def internvl(read: Reader) -> int:
    """InternViT: class token, positions, layer scales, optional query and key norms."""
    h, f, layers, pixels, patches = _shape(read)
    biased, rms = read.flag("attention_bias", "qkv_bias"), read.text("norm_type") == "rms_norm"
    block = 3 * linear(h, h, biased) + linear(h, h) + linear(h, f) + linear(f, h) + 2 * layer_norm(h, not rms) + 2 * h
    block += 2 * h * read.flag("use_qk_norm", "qk_normalization")
    total = h + h * read.flag("use_mask_token") + linear(pixels, h) + layers * block
    if read.flag("use_absolute_position_embeddings", default=True):
        total += (patches + 1) * h
    return total + (0 if read.flag("use_mean_pooling", default=True) else layer_norm(h))


def llama4(read: Reader) -> int:
    """Llama 4: class token, positions, norms before and after, pixel-shuffle adapter."""
    h, f, layers, pixels, patches = _shape(read)
    adapter = f * read.count("projector_input_dim") + read.count("projector_output_dim") ** 2
    return h + (patches + 1) * h + pixels * h + 2 * layer_norm(h) + layers * _block(h, f) + adapter


def _patches_3d(read: Reader, h: int, bias: bool) -> int:
    patch, depth = side(read, "patch_size"), side(read, "temporal_patch_size")
    return linear(read.count("in_channels", default=3) * depth * patch * patch, h, bias)


def qwen2_vl(read: Reader) -> int:
    """Qwen2-VL: rotary positions, LayerNorm; the merger joins ``m * m`` patches."""
    h, merge = read.count("embed_dim"), read.count("spatial_merge_size") ** 2
    f = int(h * read.ratio("mlp_ratio", 4.0))
    merger = layer_norm(h) + linear(h * merge, h * merge) + linear(h * merge, read.count("hidden_size"))
    return _patches_3d(read, h, False) + read.count("depth", most=MOST_LAYERS) * _block(h, f) + merger


def qwen2_5_vl(read: Reader) -> int:
    """Qwen2.5-VL: RMSNorm, gated MLP with biases."""
    h, f, merge = read.count("hidden_size"), read.count("intermediate_size"), read.count("spatial_merge_size") ** 2
    block = 2 * h + 4 * linear(h, h) + 2 * linear(h, f) + linear(f, h)
    merger = h + linear(h * merge, h * merge) + linear(h * merge, read.count("out_hidden_size"))
    return _patches_3d(read, h, False) + read.count("depth", most=MOST_LAYERS) * block + merger


def qwen3_vl(read: Reader) -> int:
    """Qwen3-VL: learned positions, LayerNorm; deepstack mergers feed the first language layers."""
    h, f, merge = read.count("hidden_size"), read.count("intermediate_size"), read.count("spatial_merge_size") ** 2
    out = read.count("out_hidden_size")
    join = linear(h * merge, h * merge) + linear(h * merge, out)
    levels = read.items("deepstack_visual_indexes", int)
    if levels is None:
        levels = read.default("deepstack_visual_indexes") or []
    total = _patches_3d(read, h, True) + read.count("num_position_embeddings") * h
    total += read.count("depth", most=MOST_LAYERS) * _block(h, f) + layer_norm(h) + join
    return total + len(levels) * (layer_norm(h * merge) + join)


def glm4v(read: Reader) -> int:
    """GLM-4.1V: RMSNorm, gated MLP as wide as the output, down-sampling convolution, gated merger."""
    h, out, f = read.count("hidden_size"), read.count("out_hidden_size"), read.count("intermediate_size")
    patch, merge = side(read, "patch_size"), read.count("spatial_merge_size") ** 2
    block = 2 * h + linear(h, 3 * h, read.flag("attention_bias")) + h * h + 3 * h * out
    merger = out * out + layer_norm(out) + 3 * out * f
    total = (side(read, "image_size") // patch) ** 2 * h + _patches_3d(read, h, True) + 2 * h
    return total + read.count("depth", most=MOST_LAYERS) * block + linear(h * merge, out) + merger


TOWERS: dict[str, Callable[[Reader], int]] = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "idefics2_vision": idefics,
    "idefics3_vision": idefics,
    "smolvlm_vision": idefics,
    "pixtral": pixtral,
    "internvl_vision": internvl,
    "intern_vit_6b": internvl,  # remote
    "llama4_vision_model": llama4,
    "qwen2_vl_vision": qwen2_vl,
    "qwen2_5_vl_vision": qwen2_5_vl,
    "qwen3_vl_vision": qwen3_vl,
    "qwen3_vl_moe_vision": qwen3_vl,
    "qwen3_5_vision": qwen3_vl,
    "qwen3_5_moe_vision": qwen3_vl,
    "glm4v_vision": glm4v,
    "glm4v_moe_vision": glm4v,
}
