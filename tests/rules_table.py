"""The page docs/rules.md, made from the rules of ``toolkit check``: ``python -m tests.rules_table`` writes it."""

from __future__ import annotations

from pathlib import Path

from toolkit.check.rules import RULES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "rules.md"
HEAD = """# What `toolkit check` looks for

`toolkit check FILE...` reads launch scripts (sbatch and bash: srun, torchrun, accelerate, deepspeed) and DeepSpeed
hostfiles, and runs nothing of them. Scripts are read by the grammar of bash and expanded as a shell would, as far as
the text tells: what a variable holds, what is expanded in the batch shell and what on each node, what `srun`,
`bash -c`, `eval` and scripts written by a heredoc start. It does not read what a script sources, nor values that only
running tells. Every finding has file and line, what is wrong, what happens otherwise, what to write instead, and where
that was seen. The severity below is the usual one; where less or more is known it is another.

Facts that make it say more: `--cluster` or `--gpus-per-node` (and `--max-gpus-per-node`, a site's cap on a job),
`--gpus`, `--node-cpus`, `--step-seconds` and `--save-seconds` (the time before the kill), `--samples` and
`--samples-per-second` (data that is prepared while other ranks wait).

| rule | usually | what happens otherwise | seen in, written in |
|---|---|---|---|
"""


def rendered() -> str:
    """The whole page."""
    return HEAD + "".join(f"| `{code}` | {severity} | {why} | {source} |\n" for code, (severity, why, source) in rows())


def rows() -> list[tuple[str, tuple[str, str, str]]]:
    """Rules in their order, without what a table cannot hold."""
    return [(code, (rule.severity, rule.why.replace("|", "\\|"), rule.source)) for code, rule in RULES.items()]


def write() -> bool:
    """Whether the page was another."""
    before = PAGE.read_text() if PAGE.exists() else ""
    if before == rendered():
        return False
    PAGE.write_text(rendered())
    return True


if __name__ == "__main__":
    write()
