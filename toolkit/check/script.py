"""A launch script read as the shell would run it: every command with its words, and where it would run.

The walk goes through the text once, from top to bottom: every branch of an ``if`` or ``case`` whose outcome is not
known, a loop's body once, a function's body where it stands. What ``srun``, ``bash -c``, ``eval`` and scripts written
by a heredoc start is walked too, each in its own shell. Left out: what a sourced file does, and values that only
running would tell.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.check import options as slurm_options
from toolkit.check.branches import Branches, parsed
from toolkit.check.commands import Assignment, Call, Script, Step
from toolkit.check.directives import directives
from toolkit.check.expand import Expander, Node, Value
from toolkit.check.surroundings import change_options, in_background, pipe_behind, without_prefix
from toolkit.check.text import BATCH, NODE, mark, plain, whole
from toolkit.errors import ToolkitError

SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
CARRIERS = ("singularity", "apptainer", "docker", "podman", "shifter", "nsys", "ncu", "numactl", "conda", "mamba", "uv",
            "poetry", "taskset", "ssh", "pdsh", "clush", "xargs", "parallel")  # fmt: skip
STARTED = ("torchrun", "torchrun_script", "deepspeed", "accelerate", "ft_launcher", "python", "python3", *SHELLS)
MOST_NESTED = 6
MOST_LETTERS = 100_000  # of a value


def read(name: str, text: str, others: Mapping[str, str] | None = None) -> Script:
    """A script; ``others`` are scripts that it may start, by their file's name."""
    script = Script(name, text, directives(text))
    clean = plain(text.replace("\r\n", "\n").removeprefix("\ufeff"))
    walker = _Walker(script, clean, BATCH, script.values, None, 0, dict(others or {}), 0)
    try:
        walker.walk_all(note_errors=True)
    except RecursionError as error:
        raise ToolkitError(f"{name} is nested too deeply to be read", remedy="give scripts and hostfiles") from error
    return script


class _Walker:
    def __init__(
        self,
        script: Script,
        text: str,
        place: int,
        values: dict[str, Value],
        step: Step | None,
        line: int,
        files: dict[str, str],
        depth: int,
    ) -> None:
        self.script, self.place, self.values, self.step = script, place, values, step
        self.line, self.files, self.depth, self.text = line, files, depth, text
        self.expand = Expander(text.encode(), place, values)
        self.branches = Branches(text, self.expand)

    def walk_all(self, note_errors: bool = False) -> None:
        root = parsed(self.text).root_node
        if note_errors and root.has_error:
            self._errors(root)
        self.walk(root, False)

    def _errors(self, node: Node) -> None:
        if node.type == "ERROR" or node.is_missing:
            self.script.errors.append(self._line(node))
            return
        for child in node.children:
            if child.has_error or child.is_missing:
                self._errors(child)

    def walk(self, node: Node, captured: bool) -> None:
        if node.type == "command":
            self._command(node, captured)
        elif node.type == "variable_assignment":
            self._assign(node)
        elif node.type == "redirected_statement":
            for child in node.children:
                if child.type not in ("file_redirect", "heredoc_redirect", "herestring_redirect"):
                    self.walk(child, captured)
            self._heredoc(node)
        elif node.type == "case_statement" and self.branches.known(node.child_by_field_name("value")):
            for child in self.branches.of_case(node):
                self.walk(child, captured)
        elif node.type == "if_statement" and self.branches.of_if(node) is not None:
            for child in self.branches.of_if(node) or []:
                self.walk(child, captured)
        elif node.type not in ("comment", "heredoc_body"):
            if node.type == "for_statement":
                self.values[self.expand.raw(node.child_by_field_name("variable"))] = mark(self.place, "$each")
            captured = captured or node.type in ("command_substitution", "process_substitution")
            for child in node.children:
                self.walk(child, captured)

    def _line(self, node: Node) -> int:
        return int(node.start_point[0]) + 1 + self.line

    def _assign(self, node: Node) -> tuple[str, str]:
        name_node, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        name = self.expand.raw(name_node).partition("[")[0]
        more = b"+=" in self.expand.source[name_node.end_byte : node.end_byte][:2]
        if value is None:
            found: Value = ""
        elif value.type == "array":
            found = self.expand.array(value)
        else:
            found = self.expand.text(value)
        if value is not None:
            for child in (value, *value.children):
                if child.type in ("command_substitution", "string", "concatenation", "array"):
                    self.walk(child, True)
                    break
        if sum(map(len, found)) > MOST_LETTERS:  # a script that doubles its own text
            found = mark(self.place, name)
        before = self.values.get(name)
        if more and isinstance(before, list):
            found = [*before, *(found if isinstance(found, list) else [found])]
        elif more and isinstance(before, str):
            found = before + (" ".join(found) if isinstance(found, list) else found)
        text = " ".join(found) if isinstance(found, list) else found
        if node.parent is None or node.parent.type != "command":
            self.values[name] = found
        raw = self.expand.raw(node)
        self.script.assignments.append(Assignment(name, text, raw, self._line(node), self.place, self.step))
        return name, text

    def _command(self, node: Node, captured: bool) -> None:
        prefix: dict[str, str] = {}
        words: list[str] = []
        for child in node.children:
            if child.type == "variable_assignment":
                name, text = self._assign(child)
                prefix[name] = text
                continue
            inside = child.named_children[0] if child.type == "command_name" and child.named_children else child
            if child.type in ("file_redirect", "herestring_redirect", "heredoc_redirect", "comment"):
                continue
            words += self.expand.fields(inside)
            self._substitutions(inside)
        if not words:
            return
        background = in_background(node)
        pipe = pipe_behind(node, self.expand)
        self._run(words, self._line(node), prefix, pipe, background, captured, self.expand.raw(node), self.step)

    def _substitutions(self, node: Node) -> None:
        if node.type in ("command_substitution", "process_substitution"):
            self.walk(node, True)
            return
        for child in node.children:
            self._substitutions(child)

    def _heredoc(self, node: Node) -> None:
        """``cat > FILE <<EOF`` writes a script that something may start."""
        heredocs = [child for child in node.children if child.type == "heredoc_redirect"]
        for heredoc in heredocs:
            parts = {child.type: child for child in heredoc.children}
            target = parts.get("file_redirect") or next((c for c in node.children if c.type == "file_redirect"), None)
            body, start = parts.get("heredoc_body"), parts.get("heredoc_start")
            if body is None or start is None:
                continue
            literal = any(quote in self.expand.raw(start) for quote in "'\"\\")
            text = (
                self.expand.raw(body) if literal else self.expand.composed(body, body.start_byte, body.end_byte, True)
            )
            if target is not None and target.named_children:
                self.files[self.expand.text(target.named_children[-1]).rpartition("/")[2]] = text
                continue
            command = next((child for child in node.children if child.type == "command"), None)
            if command is not None:
                words = [
                    field
                    for child in command.named_children
                    for field in self.expand.fields(
                        child.named_children[0] if child.type == "command_name" and child.named_children else child
                    )
                ]
                self._fed(words, text, self._line(body), command)

    def _fed(self, words: list[str], text: str, line: int, node: Node) -> None:
        """A shell that reads its commands from a heredoc."""
        step = self.step
        if words and words[0].rpartition("/")[2] == "srun":
            given, words, strange = slurm_options.read(words[1:])
            step = Step(self._line(node), given, in_background(node), tuple(strange))
        if words and words[0].rpartition("/")[2] in SHELLS and not any(not w.startswith("-") for w in words[1:]):
            self._inner(text, line - 1, step, [])

    def _run(
        self,
        words: list[str],
        line: int,
        prefix: dict[str, str],
        pipe: tuple[str, ...],
        background: bool,
        captured: bool,
        raw: str,
        step: Step | None,
    ) -> None:
        words = without_prefix(words, prefix)
        if not words:
            return
        name = words[0].rpartition("/")[2]
        place = NODE if step is not None and self.depth and self.place == NODE else self.place
        self.script.calls.append(Call(name, tuple(words), line, place, step, pipe, raw, prefix, captured))
        if name == "set" and self.place == BATCH and self.step is None:
            change_options(self.script.shell, words[1:])
        arguments = self.values.get("@")
        if name == "shift" and isinstance(arguments, list):
            self.values["@"] = arguments[(whole("".join(words[1:2])) or 1) :]
        if name == "srun":
            given, rest, strange = slurm_options.read(words[1:])
            inner = Step(line, given, background, tuple(strange))
            if rest:
                self._run(rest, line, prefix, pipe, background, captured, raw, inner)
        elif name in SHELLS:
            self._shell(words, line, step)
        elif name == "eval":
            self._inner(" ".join(words[1:]), line - 1, step)
        elif name in CARRIERS:
            at = next((i for i, word in enumerate(words[1:], 1) if word.rpartition("/")[2] in STARTED), None)
            if at is not None:
                self._run(words[at:], line, prefix, pipe, background, captured, raw, step)
        elif name in self.files and name != self.script.name:
            self._inner(self.files[name], line - 1, step, words[1:])

    def _shell(self, words: list[str], line: int, step: Step | None) -> None:
        for at, word in enumerate(words[1:], 1):
            if word.startswith("-") and not word.startswith("--") and "c" in word:
                if at + 1 < len(words):
                    self._inner(words[at + 1], line - 1, step, words[at + 3 :])
                return
            if not word.startswith("-"):
                file = word.rpartition("/")[2]
                if file in self.files and file != self.script.name:
                    self._inner(self.files[file], line - 1, step, words[at + 1 :])
                return

    def _inner(self, text: str, line: int, step: Step | None, arguments: list[str] | None = None) -> None:
        """Another script in a shell of its own with ``arguments``, or (None) in this one."""
        if self.depth >= MOST_NESTED:
            return
        place = NODE if step is not None else self.place
        values = self.values if arguments is None else self.values | {"@": list(arguments)}
        _Walker(self.script, text, place, values, step, line, self.files, self.depth + 1).walk_all()
