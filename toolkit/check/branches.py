"""Branches whose outcome is known: the ``case`` and ``if`` of a value that the script gives once."""

from __future__ import annotations

import re
from collections import Counter
from fnmatch import fnmatchcase
from typing import Any

from toolkit.check.expand import Expander, Node
from toolkit.check.text import is_known


def parsed(text: str) -> Any:
    """The syntax tree of bash source."""
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language())).parse(text.encode())


class Branches:
    """Which commands of one source text run, where that can be told."""

    def __init__(self, text: str, expand: Expander) -> None:
        self.text, self.expand = text, expand
        self.given: Counter[str] | None = None  # how often each variable is assigned

    def known(self, node: Node | None) -> bool:
        """A value that is known and that the script gives once: only then is one branch taken and no other."""
        if node is None or not is_known(self.expand.text(node)):
            return False
        names = re.findall(r"\$\{?([A-Za-z_]\w*)", self.expand.raw(node))
        return all(self._times(name) == 1 for name in names)

    def _times(self, name: str) -> int:
        if self.given is None:
            self.given = Counter()
            waiting = [parsed(self.text).root_node]
            while waiting:
                node = waiting.pop()
                if node.type == "variable_assignment":
                    self.given[self.expand.raw(node.child_by_field_name("name"))] += 1
                waiting += node.children
        return self.given[name]

    def of_case(self, node: Node) -> list[Node]:
        """The commands of the first pattern that matches."""
        text = self.expand.text(node.child_by_field_name("value"))
        for item in node.named_children:
            if item.type != "case_item":
                continue
            patterns = [self.expand.raw(value).strip("\"'") for value in item.children_by_field_name("value")]
            if any(fnmatchcase(text, pattern) for pattern in patterns):
                return list(item.named_children[len(patterns) :])
        return []

    def of_if(self, node: Node) -> list[Node] | None:
        """The commands of ``if [ "$a" = b ]`` that run; None where that is not known."""
        condition = node.child_by_field_name("condition")
        tested = condition is not None and condition.type == "test_command" and condition.named_children
        test = condition.named_children[0] if tested else None
        if test is None or test.type != "binary_expression" or len(test.named_children) < 2:  # noqa: PLR2004
            return None
        left, right = test.child_by_field_name("left"), test.child_by_field_name("right")
        sign = next((child.type for child in test.children if child.type in ("=", "==", "!=")), "")
        if not sign or not (self.known(left) and self.known(right)):
            return None
        true = (self.expand.text(left) == self.expand.text(right)) == (sign != "!=")
        body = [child for child in node.named_children if child != condition]
        others = [child for child in body if child.type in ("else_clause", "elif_clause")]
        if true:
            return [child for child in body if child not in others]
        return others
