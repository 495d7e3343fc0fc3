"""``toolkit models``: the registered models, or the exact parameter count of one."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.lines import PIPE_WIDTH, wrapped

if TYPE_CHECKING:
    from toolkit.estimate.parameters import ModelParameters
    from toolkit.model import ModelSpec

# shape keys in the order they are shown; what is 0, false or empty is left out
_SHAPE = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "tie_word_embeddings",
    "sliding_window",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "state_size",
    "mamba_intermediate_size",
    "mamba_num_heads",
    "mixers",
    "mlps",
)


@click.command("models")
@click.argument("model", required=False)
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
def command(model: str | None, as_json: bool) -> None:
    """List registered models, or count the parameters of MODEL: a name, a config.json, or a folder with one."""
    if model is None:
        _list(as_json)
    else:
        _show(model, as_json)


def _list(as_json: bool) -> None:
    from toolkit.estimate.parameters import count_parameters
    from toolkit.registry.models import load_model, names
    from toolkit.units import format_count

    rows = []
    for name in names():
        spec = load_model(name)
        count = count_parameters(spec)
        rows.append((name, count.total, count.active, spec.model_type, spec.source))
    rows.sort(key=lambda row: (row[3], row[1]))
    if as_json:
        keys = ("name", "total_parameters", "active_parameters", "model_type", "source")
        click.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return
    texts = [("NAME", "TOTAL", "ACTIVE", "TYPE", "SOURCE")]
    texts += [(n, format_count(t), format_count(a) if a != t else "", kind, source) for n, t, a, kind, source in rows]
    wide = [max(len(row[column]) for row in texts) for column in range(4)]
    for name, total, active, kind, source in texts:
        line = f"{name:<{wide[0]}}  {total:>{wide[1]}}  {active:>{wide[2]}}  {kind:<{wide[3]}}  "
        click.echo(wrapped(line, source, PIPE_WIDTH))


def _show(text: str, as_json: bool) -> None:
    from toolkit.estimate.parameters import count_parameters
    from toolkit.registry.models import load_model

    spec = load_model(text)
    count = count_parameters(spec)
    if as_json:
        click.echo(json.dumps(_document(spec, count), indent=2))
        return
    click.echo(f"{spec.name}  ({spec.model_type}{', ' + spec.source if spec.source else ''})")
    lines = [("total parameters", f"{count.total:,}")]
    if count.active != count.total:
        lines.append(("active parameters", f"{count.active:,}"))
    lines.append(("without embeddings", f"{count.non_embedding:,}"))
    click.echo(_aligned(lines))
    click.echo("\nby part")
    click.echo(_aligned([(name, f"{number:,}") for name, number in count.by_part().items()]))
    click.echo("\nshape")
    click.echo(_aligned([(name, _runs(value)) for name, value in _shape(spec).items()]))
    for note in spec.notes:
        click.echo(f"note: {note}")


def _document(spec: ModelSpec, count: ModelParameters) -> dict[str, Any]:
    return {
        "name": spec.name,
        "total_parameters": count.total,
        "active_parameters": count.active,
        "non_embedding_parameters": count.non_embedding,
        "by_part": count.by_part(),
        "largest_tensor_parameters": count.largest_tensor,
        "largest_layer_parameters": count.largest_layer,
        "model_type": spec.model_type,
        "source": spec.source,
        "shape": _shape(spec),
        "notes": list(spec.notes),
    }


def _shape(spec: ModelSpec) -> dict[str, Any]:
    values = {name: getattr(spec, name) for name in _SHAPE}
    return {name: value for name, value in values.items() if value}


def _runs(value: Any) -> str:
    """One letter per layer in short: DDDEE becomes ``3 D, 2 E``; longer patterns stay as they are."""
    if not isinstance(value, str):
        return str(value)
    runs = [f"{len(list(group))} {letter}" for letter, group in itertools.groupby(value)]
    return ", ".join(runs) if len(runs) <= 4 else value


def _aligned(lines: list[tuple[str, str]]) -> str:
    left = max(len(name) for name, _ in lines)
    right = max(len(value) for _, value in lines)
    return "\n".join(f"  {name:<{left}}  {value:>{min(right, 40)}}" for name, value in lines)
