"""How people spell what a column says, and the one word that the rest of the planner reads.

A table of patterns for each column: the first that a text has gives the word. Case, blanks around and the ways to say
nothing (NA, n/a, -, unknown) do not matter. Where the normalised column is blank or absent, the raw one beside it
serves. A text that no pattern knows is a fault of its row, with column and text: a guess would be a wrong prediction.
"""

from __future__ import annotations

import re

BLANKS = frozenset(
    ("", "na", "n/a", "n.a.", "n.a", "#n/a", "nan", "null", "-", "--", "—", "–", "?", "unknown", "unspecified")
    + ("not stated", "not specified", "not reported", "tbd")
)
_YES = r"(true|yes|y|on|1|1\.0|enabled)$"
_NO = r"(false|no|n|off|none|0|0\.0|disabled|never)$"

# (pattern, word), the first that is found; a text that begins with ^ in the pattern must be that as a whole
PRECISION = (
    (r"fp4", "nvfp4"),
    (r"int4|nf4|\b4[-_ ]?bit", "int4-base"),
    (r"mx[-_ ]?fp8|fp8[-_ ]?mx", "mxfp8"),
    (r"fp8|float8|\bf8|e4m3", "fp8"),
    (r"bf[-_ ]?(loat)?16|bfp16", "bf16"),
    (r"fp[-_ ]?16|float16|\bf16|\bhalf\b|^16([-_](mixed|true))?$", "fp16"),
    (r"tf32|fp[-_ ]?32|float32|\bf32|\bsingle\b|^32([-_]true)?$", "fp32"),
)
RECOMPUTE = (
    (rf"^{_NO}|^(w/?o|without|no)\b", "none"),
    (r"select|\bsac\b|minimal|policy", "selective"),
    (rf"^{_YES}|full|uniform|block|every|whole|all|(gradient|activation)[-_ ]?checkpoint", "full"),
    (r"attn|attention|norm|mlp|moe", "selective"),
)
ZERO = (
    (r"no[-_ ]?shard", "0"),
    (r"hsdp|hybrid|fsdp in node|fsdp ?\+ ?dp|fsdp\d+ x dp", "hsdp"),
    (r"grad[-_ ]?op|\bz2\b|zero[-_ ]?(stage)?[-_ ]?2|stage[-_ ]?2|^2(\.0)?$|optim_grads$", "2"),
    (r"\bz3\b|zero[-_ ]?(stage)?[-_ ]?3|stage[-_ ]?3|^3(\.0)?$|fsdp|full[-_ ]?shard|optim_grads_params", "3"),
    (r"zero[-_ ]?infinity", "3"),
    (r"\bz1\b|zero[-_ ]?(stage)?[-_ ]?1|stage[-_ ]?1|^1(\.0)?$|dist\w*[-_ ]?opt|^optim$", "1"),
    (rf"^{_NO}|zero[-_ ]?(stage)?[-_ ]?0|stage[-_ ]?0|\bddp\b|^dp$", "0"),
)
MEMORY = (
    (r"^((?!reserv).)*alloc", "allocated"),  # whichever is named first
    (r"reserv", "reserved"),
    (r"device|nvidia-smi|nvml|\bsmi\b", "device"),
    (r"^unspecified$", "unspecified"),
)
TASK = (
    (r"infer|serv|generat|decod|\bdpo\b|\bppo\b|rlhf|grpo|reward|distil", ""),
    (r"\bdora\b|\bia3\b|adapter|p-tuning|(prompt|prefix)[-_ ]?tuning", ""),
    (r"qlora", "qlora"),
    (r"lora", "lora"),
    (r"sft|tun|\bft\b", "sft"),
    (r"train|full|cpt|bench|\blm\b", "pretrain"),
)
OUTCOME = (
    (r"^(?!.*(oom|memory)).*(fail|crash|error|abort|hang|hung|killed)", ""),  # of what, is not said
    (r"oom|out[- _]of[- _]memory", "OOM"),
    (r"^(ok|okay|success\w*|succeeded|pass(ed)?|fits?|done|complete[ds]?|finished|true|yes|1)$", "ok"),
)
SWITCH = ((f"^{_YES}", "1"), (f"^{_NO}", "0"))
OFFLOAD = (
    (f"^{_NO}", "none"),
    (r"nvme|disk|ssd", ""),
    (r"param|weight|model", "params+optim"),
    (r"optim", "optimizer"),
    (r"act", "activations"),
    (r"^cpu|^zero[-_ ]?offload|^host", "optimizer"),
)
Table = tuple[tuple[str, str], ...]
# column: its table, and the raw column that serves where it is blank
COLUMNS: dict[str, tuple[Table, str]] = {
    "precision_norm": (PRECISION, "precision"),
    "recompute_norm": (RECOMPUTE, "recompute"),
    "zero_norm": (ZERO, "zero_stage"),
    "mem_basis": (MEMORY, "mem_kind"),
    "task": (TASK, ""),
    "outcome": (OUTCOME, ""),
    "sp": (SWITCH, ""),
    "tied": (SWITCH, ""),
    "compile": (SWITCH, ""),
    "flash_attn": (SWITCH, ""),
    "offload": (OFFLOAD, ""),
}
_AS_WRITTEN = frozenset(("compile", "flash_attn"))  # more words than a switch, which their readers know
_NOTHING_IF_UNKNOWN = frozenset(("mem_basis", "outcome"))


def is_blank(text: str) -> bool:
    """Whether a field says nothing."""
    return text.strip().casefold() in BLANKS


def word_of(table: Table, text: str) -> str:
    """The word of a text by a table; empty where no pattern fits, or where the pattern means what is not modelled."""
    folded = text.strip().casefold()
    return next((word for pattern, word in table if re.search(pattern, folded)), "")


def is_known(table: Table, text: str) -> bool:
    """Whether a pattern fits, also one of what is not modelled."""
    return any(re.search(pattern, text.strip().casefold()) for pattern, _ in table)


def spelled(texts: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of a row with one spelling for each meaning, and the columns that nobody understands with why.

    Raw columns stay as they are: they tell more than the word (which modules, how many ranks share a copy).
    """
    found = {column: "" if is_blank(text) else text for column, text in texts.items()}
    if texts.get("mem_basis", "").casefold() == "unspecified":  # a statement there: what was read could not be told
        found["mem_basis"] = "unspecified"
    if not (found.get("zero_norm") or found.get("zero_stage")):  # "DeepSpeed ZeRO-3"
        named = re.search(r"zero[-_ ]?(?:stage)?[-_ ]?([0-3])\b", found.get("framework", "").casefold())
        found |= {"zero_norm": named[1]} if named else {}
    faults: dict[str, str] = {}
    for column, (table, raw) in COLUMNS.items():
        source = column if found.get(column) else raw
        text = found.get(source, "")
        if not text:
            continue
        if text.casefold() == "none" and column == "precision_norm":
            found[column] = ""
            continue
        word, known = word_of(table, text), is_known(table, text)
        if column in _AS_WRITTEN:
            found[column] = word or text
        elif word:
            found[column] = word
        elif column in _NOTHING_IF_UNKNOWN and not known:
            found[column] = ""
        else:
            faults[column] = f"not modelled: {source} {text[:40]!r}"
    return found, faults
