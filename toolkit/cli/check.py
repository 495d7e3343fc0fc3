"""``toolkit check``: what is wrong with the user's own launch scripts and hostfiles, without running them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.errors import Problems, ToolkitError
from toolkit.gpu_counts import MOST_GPUS
from toolkit.workload import MOST_TOKENS

if TYPE_CHECKING:
    from toolkit.check.facts import Facts

MOST_BYTES = 2**20  # of a script
COUNT = click.IntRange(1, MOST_GPUS)
SECONDS = click.FloatRange(0.0, 1e9, min_open=True)


@click.command("check")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--gpus", type=COUNT, help="GPUs that the job is to have in all.")
@click.option("--gpus-per-node", type=COUNT, help="GPUs of a node.")
@click.option("--max-gpus-per-node", type=COUNT, help="What a job may have of one node, where that is fewer.")
@click.option("--cluster", metavar="NAME|FILE", help="Takes the sizes of nodes, and the site's cap, from a cluster.")
@click.option("--node-cpus", type=COUNT, help="CPUs of a node, as Slurm counts them.")
@click.option("--step-seconds", type=SECONDS, help="Of an optimizer step: for the time before the kill.")
@click.option("--save-seconds", type=SECONDS, help="Of a checkpoint.")
@click.option("--samples", type=click.IntRange(1, MOST_TOKENS * 1000), help="Prepared while the other ranks wait.")
@click.option("--samples-per-second", type=SECONDS, help="The rate of that.")
@click.option("--timeout-seconds", type=SECONDS, help="Of the process group, where the script does not say.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(files: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Read launch scripts (sbatch, srun, torchrun, accelerate, deepspeed) and DeepSpeed hostfiles for what is wrong.

    Nothing is run. Scripts that start one another are given together; - is the standard input. Exit code 1 where
    there is an error, 0 where there are at most warnings.

    \b
    toolkit check train.sbatch --cluster dgx-h100
    toolkit check train.sbatch run.sh hostfile --gpus 64 --step-seconds 20 --save-seconds 90
    """
    from toolkit.check.run import check
    from toolkit.report.check import lines

    texts = _texts(files)
    facts = facts_of(options)
    found = check(texts, facts, _exists(files), _syntax)
    if as_json:
        import json

        import msgspec

        from toolkit.check.rules_signals import recommended
        from toolkit.check.run import steps

        derived = {
            "nodes": facts.nodes,
            "preparing_seconds": facts.preparing_seconds,
            "lead_seconds": facts.lead_seconds,
            "recommended_lead_seconds": recommended(facts),
        }
        document = {"findings": msgspec.to_builtins(found), "steps": steps(texts, facts), "derived": derived}
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        click.echo("\n".join(lines(found, list(files))))
    if any(each.severity == "error" for each in found):
        raise SystemExit(1)


def _texts(files: tuple[str, ...]) -> dict[str, str]:
    """Every file's text; raises ToolkitError with all that cannot be read."""
    found: dict[str, str] = {}
    with Problems() as problems:
        for name in files:
            try:
                found[name] = _text(Path(name))
            except OSError as error:
                problems.add(f"cannot read {name}: {error.strerror or error}", "give scripts and hostfiles")
            except ToolkitError as error:
                problems.absorb(error)
    return found


def _text(path: Path) -> str:
    if str(path) == "-":
        data = sys.stdin.buffer.read(MOST_BYTES + 1)
    else:
        with path.open("rb") as file:  # also a pipe, and no more of what never ends
            data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES or b"\0" in data:
        raise ToolkitError(f"{path} is no script", remedy="give scripts and hostfiles")
    if not data.strip():
        raise ToolkitError(f"{path} is empty", remedy="give scripts and hostfiles")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ToolkitError(f"{path} is no UTF-8 text: {error}", remedy="save it as UTF-8") from error


def facts_of(options: dict[str, Any]) -> Facts:
    """The facts that options give, with what a cluster adds."""
    import msgspec

    from toolkit.check.facts import Facts

    given = {name: value for name, value in options.items() if value is not None}
    name = given.pop("cluster", None)
    facts = Facts(**given)
    if name is None:
        return facts
    from toolkit.registry.clusters import read_cluster, resolve_cluster

    spec = resolve_cluster(None, cluster=name)
    size = read_cluster(name)[0].gpus_per_node
    taken = {
        "gpus_per_node": facts.gpus_per_node or size,
        "max_gpus_per_node": facts.max_gpus_per_node or spec.site.max_gpus_per_node,
        "fast_domain_gpus": spec.fast_domain if spec.fast_domain_gpus else 0,
        "cluster": spec.name,
    }
    return msgspec.structs.replace(facts, **taken)


def _syntax(text: str) -> list[tuple[int, str]]:
    """What ``bash -n`` says, which reads and runs nothing; nothing where there is no bash."""
    import re
    import subprocess

    if text.startswith("#!") and "bash" not in text.partition("\n")[0] and "/sh" not in text.partition("\n")[0]:
        return []
    try:
        done = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    said = done.stderr.decode(errors="replace") if done.returncode else ""
    found = re.findall(r"line (\d+): (.+)", said)
    return [(int(line), message[:120]) for line, message in found[:1]]


def _exists(files: tuple[str, ...]) -> Any:
    """Whether a path of a script is there, seen from here (where sbatch is called) or from beside the script."""
    roots = [Path(), *dict.fromkeys(Path(name).parent for name in files)]

    def exists(path: str) -> bool | None:
        return any(each.exists() for each in _places(roots, path))

    return exists


def _places(roots: list[Path], path: str) -> Iterator[Path]:
    for root in roots:
        yield root / path
