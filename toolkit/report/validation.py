"""Tables of a validation: errors by group, verdicts, and what was skipped. Draws what the document says."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_COLUMNS = ("runs", "median", "p90", "worst", "bias", "rank")


def show(out: Console, found: dict[str, Any], brief: bool = False) -> None:
    """Coverage, the summary, and the reasons of skipped rows."""
    coverage, summary = found["coverage"], found["summary"]
    complete, scored = coverage["complete_rows"], coverage["complete_rows_scored"]
    share = f"{scored / complete:.1%}" if complete else "none"
    out.print(
        f"{coverage['scored']:,} of {coverage['rows']:,} rows scored; {share} of the {complete:,} that state model, "
        f"GPUs, strategy, batch, sequence and a measurement; calibration '{found['calibration']}'",
        markup=False,
    )
    _table(out, "", {"all": summary["all"], "recommended by scoreset": summary["recommended"]})
    if not brief:
        for title in ("by_framework", "by_accelerator", "by_source"):
            _table(out, title.replace("_", " "), summary[title])
        _skipped(out, summary["all"]["skipped"]["reasons"])
    out.print(
        "error: (predicted - measured) / measured; bias: its median; rank: Spearman's coefficient within groups that "
        "differ only in strategy",
        markup=False,
    )
    _choice(out, summary["recommended"]["step_time"])


def _choice(out: Console, times: dict[str, Any]) -> None:
    """How many groups and pairs the order of step times rests on, and what picking by it costs."""
    choice = times["choice"]
    if not choice["pairs"]:
        return
    out.print(
        f"order of step times, recommended runs: {times['rank_groups']} groups of three strategies or more; of "
        f"{choice['pairs']:,} pairs measured more than 3 % apart {choice['pairs_in_order']:.0%} are in order; picking "
        f"the least prediction of a group costs {choice['mean_regret']:.1%} in the mean",
        markup=False,
    )


def _table(out: Console, title: str, groups: dict[str, Any]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(title, justify="left", no_wrap=True, overflow="ellipsis", min_width=23, max_width=30)
    for kind in ("time", "memory"):
        for index, name in enumerate(_COLUMNS):
            table.add_column(f"{kind}\n{name}" if index == 0 else f"\n{name}", justify="right")
    table.add_column("verdicts\nwrong", justify="right", no_wrap=True)
    table.add_column("rows\nskipped", justify="right", no_wrap=True)
    for name, values in groups.items():
        verdicts = values["verdicts"]
        wrong = verdicts["oom_called_fit"] + verdicts["fit_called_no"]
        cells = [cell for kind in ("step_time", "peak_memory") for cell in _cells(values[kind])]
        judged = f"{wrong} of {verdicts['rows']}" if verdicts["rows"] else "-"
        table.add_row(Text(name or "(not stated)"), *cells, judged, str(values["skipped"]["rows"] or "-"))
    out.print(table)


def _cells(errors: dict[str, Any]) -> list[str]:
    if not errors["rows"]:
        return ["-"] * len(_COLUMNS)
    rank = errors["rank_correlation"]
    return [
        f"{errors['rows']:,}",
        f"{errors['median_abs_relative_error']:.1%}",
        f"{errors['p90_abs_relative_error']:.1%}",
        f"{errors['worst_abs_relative_error']:.0%}",
        f"{errors['bias']:+.1%}",
        "-" if rank is None else f"{rank:.2f}",
    ]


def _skipped(out: Console, reasons: dict[str, int]) -> None:
    if not reasons:
        return
    out.print(Text("skipped", style="bold"))
    for reason, count in reasons.items():
        out.print(f"  {count:,}: {reason}", markup=False)
