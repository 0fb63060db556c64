"""The report in a terminal. Text of the study is never read as markup."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tuner.report import rows, text, words
from tuner.report.evidence import Entry, Evidence, measured, read
from tuner.report.levers import Lever, levers, not_tried
from tuner.report.limits import limit_rows


def render(ledger_path: Path, console: Console) -> None:
    """
    Print the report of the study in this directory.

    Raises:
        InputError: It is no study, or has no result yet.
    """
    evidence = read(ledger_path)
    result, named = evidence.result, evidence.named
    sim = " (simulated)" if result["source"] == "simulated" else ""
    console.print(Text(words.headline(result), style="bold"))
    console.print(Text(f"Study {result['study']}{sim}, {result['model']}. {words.counts(result)}."))
    console.print(Text(f"Spent: {words.spent(result)}."))
    for warning in result["warnings"]:
        console.print(Text(f"Warning: {words.sentence(warning)}", style="yellow"))
    for line in words.relaxations(result):
        console.print(Text(f"  {words.sentence(line)}"))
    if named is not None:
        _named(evidence, named, console, sim)
    _print(console, _levers(levers(result, evidence.outcomes, resolution=result["resolution"]), evidence.currency, sim))
    same = not_tried(evidence.outcomes)
    if same:
        console.print(Text(f"Not tried, because every trial had the same value: {'; '.join(same)}.", style="dim"))
    _print(console, _trials(evidence, sim))


def _named(evidence: Evidence, named: Entry, console: Console, sim: str) -> None:
    role, base = words.role_of_named(evidence.result), evidence.baseline
    console.print(Text(f"\n{role.capitalize()}{sim}: trial {named['trial']}: {text.knobs(named['configuration'])}"))
    commands = rows.scripts(evidence.commands(named["trial"]))
    for name, command in commands:
        console.print(Text(f"{name}:", style="dim"))
        console.print(Text(command, style="cyan"), soft_wrap=True)  # no padding: it has to survive copy and paste
    heads = ["", role] if base is None else ["", role, "baseline", f"{role} is"]
    figures = _table(f"Figures{sim}", heads, right=(1, 2, 3))
    for pair in rows.pairs(evidence):
        figures.add_row(*_plain(pair.name, pair.named, pair.baseline, pair.change)[: len(heads)])
    _print(console, figures)
    tails = measured(evidence)
    for who, (entry, _) in tails.items():
        n = text.UNKNOWN if entry["n"] is None else f"{entry['n']:,}"
        title = f"Limits: {who}{sim}, n = {n} requests"
        limits = _table(title, ["limit", "promised", "measured", "margin", "verdict", "violations"], right=(1, 2, 3))
        for row in limit_rows(entry):
            style = "" if row.kept else "red"
            limits.add_row(*_plain(row.name, row.limit, row.value, row.margin, row.decision, row.counts), style=style)
        _print(console, limits)
    console.print(Text(f"A request is good when it is: {rows.good_means(evidence)}.", style="dim"))
    views = _table(
        f"Two views of the inter-token tail{sim}",
        ["view", "", "measured", "limit", "share above the limit"],
        right=(2, 3),
    )
    for tail in rows.tail_rows(tails):
        views.add_row(*_plain(tail.view, tail.who, tail.value, tail.limit, tail.over))
    _print(console, views)


def _levers(found: Sequence[Lever], currency: str, sim: str) -> Table:
    heads = ["lever", "value", "trials", "best", f"{currency} per 1,000 good", "than the best other", "n"]
    table = _table(f"What each lever is worth{sim}", heads, right=(2, 3, 6))
    for row in found:
        best = text.UNKNOWN if row.trial is None else str(row.trial)
        table.add_row(*_plain(row.knob, row.value, str(row.trials), best, row.cost, row.difference, row.n))
    return table


def _trials(evidence: Evidence, sim: str) -> Table:
    unit = evidence.result["load"]["unit"]
    heads = ["trial", "outcome", f"{evidence.currency} per 1,000 good", "good/s", f"at {unit}", "worst margin", "n"]
    table = _table(f"All trials{sim}", [*heads, "configuration and reason"], right=(2, 3, 4, 5, 6))
    for row in rows.trial_rows(evidence):
        trial = f"{row.trial} {row.mark}".strip()
        ending = f"{row.outcome}, {row.sure}" if row.sure else row.outcome
        what = f"{row.configuration}\n{row.reason}" if row.reason else row.configuration
        style = "dim" if row.cost == text.UNKNOWN else "bold" if row.mark else ""
        table.add_row(*_plain(trial, ending, row.cost, row.goodput, row.load, row.margin, row.n, what), style=style)
    return table


def _table(title: str, heads: Sequence[str], right: Sequence[int]) -> Table:
    table = Table(
        title=Text(title), title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for place, head in enumerate(heads):
        table.add_column(Text(head), justify="right" if place in right else "left", overflow="fold", header_style="dim")
    return table


def _plain(*words: str) -> list[Text]:
    return [Text(word) for word in words]


def _print(console: Console, table: Table) -> None:
    if table.row_count:
        console.print()
        console.print(table)
