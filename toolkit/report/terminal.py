"""What a person reads: rich tables of plans, the parts of one plan, its reasons and equations."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from toolkit.equation import Step
from toolkit.estimates import AXES, CommunicationEstimate
from toolkit.interval import Interval
from toolkit.plan import Plan
from toolkit.report.tables import Column, draw
from toolkit.strategy import describe
from toolkit.units import format_bytes, format_count, format_seconds
from toolkit.workload import batch_unit

RUNS = "the runs are rows, by their name, of tests/published/runs.csv and further_runs.csv; errors: docs/accuracy.md"
BAR_WIDTH = 30  # characters
PIPE_WIDTH = 140  # COLUMNS is no wish: readline, and so pytest, sets it wherever it is loaded
_VERDICT_STYLE = {"fits": "green", "tight": "yellow", "no": "red"}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command line, where a reader that went away is no failure; rich would exit with 1."""
        raise BrokenPipeError


def console() -> Console:
    """A console on standard output; plain and wide enough for most tables when it is not a terminal."""
    made = _Console(highlight=False, soft_wrap=False)
    if not made.is_terminal:
        made = _Console(highlight=False, width=PIPE_WIDTH)
    return made


def heading(out: Console, plan_model: Any, total: int, active: int, cluster: Any, workload: Any) -> None:
    """Three lines: what, where, how much."""
    parameters = f"{format_count(total)} parameters"
    if active != total:
        parameters += f", {format_count(active)} active"
    out.print(Text(f"{plan_model.name}: {parameters}", style="bold"))
    domain = f", {cluster.fast_domain} in a fast domain" if cluster.fast_domain != cluster.gpus_per_node else ""
    layout = f"{cluster.nodes} x {cluster.gpus_per_node}{domain}"
    out.print(
        f"{cluster.num_gpus} x {cluster.accelerator.name} ({cluster.name}: {layout}), "
        f"{format_bytes(cluster.accelerator.memory_bytes)} usable each",
        markup=False,
    )
    out.print(
        f"{workload.method}, {workload.precision}, {workload.global_batch_size} {batch_unit(workload)} x "
        f"{workload.sequence_length} tokens per step",
        markup=False,
    )


def plans_table(out: Console, plans: Sequence[Plan]) -> None:
    """One line per plan, best first."""
    columns = (
        Column("#"),
        Column("plan", "left", wraps=True),
        Column("memory\nGiB"),
        Column("80%", "left", spare=1, called="80% interval of memory"),
        Column("verdict", "left"),
        Column("step\ns"),
        Column("80%", "left", spare=2, called="80% interval of the step"),
        Column("tokens/s\nper GPU", spare=4, called="tokens/s per GPU"),
        Column("MFU", spare=3),
    )
    rows = [
        (
            str(rank),
            describe(plan.strategy),
            f"{plan.memory.total_bytes / 2**30:.1f}",
            _between(plan.memory_interval80, lambda value: f"{value / 2**30:.0f}"),
            Text(plan.verdict, style=_VERDICT_STYLE[plan.verdict]),
            seconds_in_words(plan.step.seconds),
            _between(plan.step_interval80, seconds_in_words),
            f"{plan.step.tokens_per_second_per_gpu:,.0f}",
            f"{plan.step.mfu:.1%}",
        )
        for rank, plan in enumerate(plans, 1)
    ]
    draw(out, columns, rows)


def _between(found: Interval | None, words: Callable[[float], str]) -> str:
    return f"{words(found.low)}-{words(found.high)}" if found else "-"


def error_bars(out: Console, title: str, plan: Plan) -> None:
    """Where 80 % of comparable runs lie, and which runs are the nearest."""
    sentences = []
    for what, found, words in (
        ("step", plan.step_interval80, format_seconds),
        ("memory", plan.memory_interval80, format_bytes),
    ):
        if found is not None:
            runs = ", ".join(f"{run.id} ({run.source})" for run in found.based_on)
            near = "nothing like it was measured, the nearest" if found.is_extrapolated else "runs like it"
            sentences.append(f"{what} {words(found.low)} to {words(found.high)}; {near}: {runs}")
    if sentences:
        sentences.append(RUNS)
    reasons(out, title, sentences)


def seconds_in_words(value: float) -> str:
    """Three digits, never as a power of ten."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def memory_bars(out: Console, plan: Plan) -> None:
    """The parts of the memory estimate as bars of the limit."""
    limit = plan.memory_limit_bytes
    out.print(
        Text(
            f"memory of the fullest GPU: {format_bytes(plan.memory.total_bytes)} of {format_bytes(limit)}", style="bold"
        )
    )
    full, sliver = ("█", "▏") if out.encoding.startswith("utf") else ("#", "|")
    for name in plan.memory.__struct_fields__:
        value = getattr(plan.memory, name)
        if value:
            bar = full * max(1, round(BAR_WIDTH * value / limit)) if value > 0.002 * limit else sliver
            out.print(
                f"  {name.removesuffix('_bytes').replace('_', ' '):24}{format_bytes(value):>12}  {bar}", markup=False
            )
    host = plan.host_memory.total_bytes
    if host:
        of = f" of {format_bytes(plan.cluster.host_memory_bytes)}" if plan.cluster.host_memory_bytes else ""
        out.print(f"  host memory of a node: {format_bytes(host)}{of}", markup=False)


def step_parts(out: Console, plan: Plan) -> None:
    """Where the time of a step goes."""
    step = plan.step
    out.print(
        Text(
            f"time of a step: {format_seconds(step.seconds)} (between {format_seconds(step.lower_seconds)} with "
            f"perfect overlap and {format_seconds(step.upper_seconds)} with none)",
            style="bold",
        )
    )
    for name, value in step.parts.items():
        if value > 0:
            label = name.removesuffix("_seconds").replace("_", " ")
            out.print(f"  {label:24}{format_seconds(value):>12}  {value / step.seconds:6.1%}", markup=False)


def reasons(out: Console, title: str, sentences: Iterable[str]) -> None:
    """A titled list of sentences; nothing when there are none."""
    sentences = list(sentences)
    if sentences:
        out.print(Text(title, style="bold"))
        for sentence in sentences:
            out.print(paragraph(sentence, out.width), markup=False, soft_wrap=True)


def paragraph(text: str, width: int, first: str = "  - ", indent: int = 4) -> str:
    """A paragraph whose further lines are indented; options such as --cluster are not broken."""
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def candidates(
    out: Console, total: int, feasible: int, seconds: float, eliminated: dict[str, int], words: dict[str, str]
) -> None:
    """How many candidates there were, and which constraint removed how many."""
    out.print(Text(f"{total:,} candidates, {feasible:,} feasible, {seconds:.3f} s", style="bold"))
    for name, count in sorted(eliminated.items(), key=lambda item: -item[1]):
        line = paragraph(words.get(name, name), out.width, f"  {count:>10,}  ", 14)
        out.print(line, markup=False, soft_wrap=True)


def ladder(out: Console, rungs: Iterable[Any], limit_bytes: float) -> None:
    """The rungs of the ladder with what each needs and gives."""
    columns = (
        Column("rung", "left", wraps=True),
        Column("legal"),
        Column("fitting"),
        Column("least memory", spare=1),
        Column("best step"),
    )
    rows = [
        (
            rung.name,
            f"{rung.legal:,}",
            f"{rung.fitting:,}",
            f"{format_bytes(rung.least_bytes)} of {format_bytes(limit_bytes)}",
            format_seconds(rung.best_seconds) if rung.fitting else "does not fit",
        )
        for rung in rungs
    ]
    draw(out, columns, rows, "The ladder")


def equations(out: Console, title: str, steps: Iterable[Step], shown: set[str]) -> None:
    """Every equation of one subject once, under it what it gave for which values.

    ``shown`` collects what was printed: an evaluation that an earlier subject showed is left out.
    """
    found: dict[str, list[str]] = {}
    for step in steps:
        values = ", ".join(f"{name}={_value(value)}" for name, value in step.inputs.items())
        head = f"  [{step.anchor}] {step.name} = {step.text}"
        line = f"{_result(step)}    {values}"
        if f"{head} {line}" not in shown:
            shown.add(f"{head} {line}")
            found.setdefault(head, []).append(line)
    if found:
        out.print(Text(f"\n{title}", style="bold"))
    for head, evaluations in found.items():
        lines = (paragraph(line, out.width, "      = ", 10) for line in evaluations)
        out.print("\n".join((head, *lines)), markup=False, soft_wrap=True)


def axes(out: Console, sent: CommunicationEstimate) -> None:
    """Bytes and seconds of every axis in use, before any of it is hidden."""
    for axis in AXES:
        sent_bytes, seconds = getattr(sent, f"{axis}_bytes"), getattr(sent, f"{axis}_seconds")
        if sent_bytes:
            out.print(f"  {axis}: {format_bytes(sent_bytes)} sent in {format_seconds(seconds)}", markup=False)


def sums(out: Console, what: str, parts: dict[str, str], total: str) -> None:
    """How the parts make the figure that the plan shows."""
    line = f"{what}: {' + '.join(f'{name} {value}' for name, value in parts.items())} = {total}"
    out.print(paragraph(line, out.width, "  ", 4), markup=False, soft_wrap=True)


def _result(step: Step) -> str:
    """The raw value, and the readable one of bytes and seconds (told by the name of the equation)."""
    value = step.result
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if step.name.endswith("_bytes") and value >= 2**20:
            return f"{_value(value)} ({format_bytes(value)})"
        if step.name.endswith("_seconds") and value > 0:
            return f"{_value(value)} ({format_seconds(value)})"
    return _value(value)


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value) if not isinstance(value, tuple) else f"({len(value)} values)"
    if abs(value) < 1e15 and (isinstance(value, int) or float(value).is_integer()):
        return f"{int(value):,}"
    return f"{value:,.6g}" if abs(value) < 1e6 or abs(value) >= 1e15 else f"{value:,.0f}"
