"""What stands around a command in a script: what starts it, ``&`` behind it, the rest of its pipeline, ``set``."""

from __future__ import annotations

from toolkit.check.expand import Expander, Node

# what starts the command behind it, with the words that it takes before that
PREFIXES = {"exec": 0, "command": 0, "nohup": 0, "time": 0, "setsid": 0, "stdbuf": 0, "nice": 0, "timeout": 1, "env": 0}
WITH_VALUE = {  # options of these whose value is a word of its own
    "timeout": ("-k", "-s", "--kill-after", "--signal"),
    "nice": ("-n", "--adjustment"),
    "env": ("-u", "-C", "--unset", "--chdir"),
    "exec": ("-a",),
    "stdbuf": ("-i", "-o", "-e", "--input", "--output", "--error"),
    "time": ("-f", "-o", "--format", "--output"),
}


def change_options(options: set[str], words: list[str]) -> None:
    """What ``set`` with these words does to the options that are on."""
    letters = {"e": "errexit", "u": "nounset"}
    for at, word in enumerate(words):
        change = options.add if word.startswith("-") else options.discard
        if word[:1] in ("-", "+"):
            for letter in word[1:]:
                if letter in letters and (letter != "u" or word[0] == "-"):
                    change(letters[letter])
            if "o" in word and at + 1 < len(words):
                change(words[at + 1])


def without_prefix(words: list[str], prefix: dict[str, str]) -> list[str]:
    """The command behind ``exec``, ``env A=B``, ``timeout 10`` and the like."""
    while words and words[0].rpartition("/")[2] in PREFIXES:
        name = words[0].rpartition("/")[2]
        if name == "command" and words[1:2] and words[1] in ("-v", "-V"):
            return words
        at = 1
        while at < len(words) and (words[at].startswith("-") or (name == "env" and "=" in words[at])):
            if name == "env" and "=" in words[at] and not words[at].startswith("-"):
                key, _, value = words[at].partition("=")
                prefix[key] = value
            at += 2 if words[at] in WITH_VALUE.get(name, ()) else 1
        words = words[at + PREFIXES[name] :]
    return words


def in_background(node: Node) -> bool:
    """Whether ``&`` follows the command, or what it is a part of."""
    while node is not None and node.type in (
        "command",
        "redirected_statement",
        "pipeline",
        "list",
        "compound_statement",
    ):
        following = node.next_sibling
        if following is not None and following.type == "&":
            return True
        node = node.parent
    return False


def pipe_behind(node: Node, expand: Expander) -> tuple[str, ...]:
    """Names of the commands behind it in its pipeline."""
    inner = node
    while inner.parent is not None and inner.parent.type == "redirected_statement":
        inner = inner.parent
    parent = inner.parent
    if parent is None or parent.type != "pipeline":
        return ()
    names, seen = [], False
    for child in parent.named_children:
        if seen:
            raw = expand.raw(child).split()
            names.append(raw[0].rpartition("/")[2] if raw else "")
        seen = seen or child == inner
    return tuple(names)
