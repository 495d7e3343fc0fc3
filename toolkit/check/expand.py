"""Expansion of one word of a parsed script: quotes, variables that the script assigned, arithmetic, arrays.

Parsed by tree-sitter's grammar of bash, so continuation lines, quotes and heredocs are the shell's own. Left out:
globs, braces, ``${X/a/b}`` and other operators on values (their result is unknown).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from toolkit.check.text import is_known, mark, split

Node = Any  # of tree_sitter
Value = str | list[str]  # of a variable, or of an array

_PLAIN = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_ARRAY = re.compile(r"([A-Za-z_]\w*)\[[@*]\]")
_ELEMENT = re.compile(r"([A-Za-z_]\w*)\[(\d+)\]")
_DEFAULT = re.compile(r"([A-Za-z_]\w*):?[-=](.*)", re.DOTALL)
_ASSERTED = re.compile(r"([A-Za-z_]\w*):?\?.*", re.DOTALL)
_IN_NUMBER = re.compile(r"\$?\{?([A-Za-z_]\w*)\}?")
_EXPANSIONS = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "process_substitution")
_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip


class Expander:
    """Words of one source text, as the shell at ``place`` makes them."""

    def __init__(self, source: bytes, place: int, values: dict[str, Value]) -> None:
        self.source, self.place, self.values = source, place, values

    def raw(self, node: Node) -> str:
        """The node's own text."""
        return self.source[node.start_byte : node.end_byte].decode(errors="replace")

    def fields(self, node: Node) -> list[str]:
        """The words that one word becomes: an unquoted variable may be several, an array is."""
        elements = self._elements(node)
        if elements is not None:
            return elements
        if node.type in _EXPANSIONS:
            return split(self._expansion(node))
        if node.type == "concatenation" and any(child.type in _EXPANSIONS for child in node.children):
            return split(self.text(node)) if not self._has_quotes(node) else [self.text(node)]
        return [self.text(node)]

    def text(self, node: Node) -> str:
        """The word as one text, quotes removed."""
        if node.type == "raw_string":
            return self.raw(node)[1:-1]
        if node.type == "ansi_c_string":
            return self.raw(node)[2:-1].replace("\\n", "\n").replace("\\t", "\t")
        if node.type in _EXPANSIONS:
            return self._expansion(node)
        if node.type == "array":
            return " ".join(self.array(node))
        quoted = node.type in ("string", "translated_string")
        start, end = (node.start_byte + 1, node.end_byte - 1) if quoted else (node.start_byte, node.end_byte)
        if node.type == "translated_string":
            start += 1
        return self.composed(node, start, end, quoted)

    def composed(self, node: Node, start: int, end: int, quoted: bool) -> str:
        """Source between two bytes with its expansions and quoted pieces put in."""
        parts, at = [], start
        for child in node.named_children:
            if child.type not in (*_EXPANSIONS, "string", "raw_string", "ansi_c_string", "concatenation"):
                continue
            if quoted and child.type not in _EXPANSIONS:
                continue
            parts += [self._literal(at, child.start_byte, quoted), self.text(child)]
            at = child.end_byte
        return "".join([*parts, self._literal(at, end, quoted)])

    def array(self, node: Node) -> list[str]:
        """The elements of ``( ... )``."""
        return [field for child in node.named_children if child.type != "comment" for field in self.fields(child)]

    def look_up(self, name: str) -> str:
        """What the script gave a variable, or the mark of an unknown one."""
        value = self.values.get(name)
        if value is None:
            return mark(self.place, name)
        return " ".join(value) if isinstance(value, list) else value

    def _literal(self, start: int, end: int, quoted: bool) -> str:
        text = self.source[max(start, 0) : max(end, start)].decode(errors="replace")
        if quoted:
            return re.sub(r'\\([$`"\\\n])', lambda found: "" if found[1] == "\n" else found[1], text)
        return re.sub(r"\\(.)", lambda found: "" if found[1] == "\n" else found[1], text, flags=re.DOTALL)

    def _has_quotes(self, node: Node) -> bool:
        return any(child.type in ("string", "raw_string", "ansi_c_string") for child in node.children)

    def _elements(self, node: Node) -> list[str] | None:
        """``"${name[@]}"``, alone in its word."""
        inside = node
        if node.type == "string" and len(node.named_children) == 1:
            inside = node.named_children[0]
            if self.raw(node)[1:-1] != self.raw(inside):
                return None
        found = _ARRAY.fullmatch(self.raw(inside)[2:-1]) if inside.type == "expansion" else None
        arguments = inside.type in _EXPANSIONS and self.raw(inside) in ("$@", "${@}", "$*", "${*}")
        value = self.values.get(found[1]) if found else self.values.get("@") if arguments else None
        if isinstance(value, str):
            return split(value)
        return list(value) if value is not None else None

    def _expansion(self, node: Node) -> str:
        raw = self.raw(node)
        if node.type in ("command_substitution", "process_substitution"):
            return mark(self.place, raw if raw.startswith("$") else f"$({raw.strip('`')})")
        if node.type == "arithmetic_expansion" or raw.startswith("$(("):
            return self._number(raw)
        if node.type == "simple_expansion":
            name = raw[1:]
            return self.look_up(name) if name[:1].isalpha() or name[:1] == "_" else self._argument(name, raw)
        inside = raw[2:-1]
        if _PLAIN.fullmatch(inside):
            return self.look_up(inside) if inside[0].isalpha() or inside[0] == "_" else self._argument(inside, raw)
        array = _ARRAY.fullmatch(inside)
        if array:
            return self.look_up(array[1])
        element = _ELEMENT.fullmatch(inside)
        if element and isinstance(self.values.get(element[1]), list):
            value = self.values[element[1]]
            return value[int(element[2])] if int(element[2]) < len(value) else ""
        asserted = _ASSERTED.fullmatch(inside)
        if asserted:
            return self.look_up(asserted[1])
        return self._default(inside, raw)

    def _argument(self, name: str, raw: str) -> str:
        """``$1`` where the arguments are known."""
        given = self.values.get("@")
        if name.isdigit() and isinstance(given, list) and 0 < int(name) <= len(given):
            return given[int(name) - 1]
        return mark(self.place, raw)

    def _default(self, inside: str, raw: str) -> str:
        found = _DEFAULT.fullmatch(inside)
        if not found:
            return mark(self.place, raw)
        name, default = found[1], found[2].strip("\"'")
        value = self.values.get(name)
        if isinstance(value, str) and is_known(value):
            return value
        if name.startswith("SLURM_") or name in self.values:
            return mark(self.place, raw) if value is None else self.look_up(name)
        if "$" in default:
            plain = re.fullmatch(r"\$\{?([A-Za-z_]\w*)\}?", default)
            return self.look_up(plain[1]) if plain else mark(self.place, raw)
        return default

    def _number(self, raw: str) -> str:
        """``$(( ... ))`` where every variable in it is a known number."""
        inside = raw[3:-2]

        def value(found: re.Match[str]) -> str:
            known = self.look_up(found[1])
            return known if known.strip().isdigit() else "?"

        text = _IN_NUMBER.sub(value, inside).replace("/", "//")
        result = None if "?" in text else computed(text)
        return str(result) if result is not None else mark(self.place, raw)


def computed(text: str) -> int | None:
    """The value of integer arithmetic with + - * // %; None for anything else."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(text)

    try:
        return value(tree)
    except (ValueError, ZeroDivisionError, RecursionError):
        return None
