"""One picture of a level: distribution of TTFT and of token gaps against their limits."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tuner import metrics
from tuner.outcome import Level
from tuner.records import Record

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
_MOST_POINTS = 600
_LEAST_SHARE = 5e-4  # every picture reaches down to here

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def tails_png(level: Level, records: Sequence[Record], title: str) -> bytes | None:
    """
    Survival curves on logarithmic axes, so that the tail is what one sees; a dashed line for every limit.

    Requests without a token, and gaps that never came, stay in the denominators: their curve ends above zero.

    Args:
        level: Its limits are drawn.
        records: All of the level; the measured ones are used.
        title: Above the picture.

    Returns:
        A PNG; None when no measured request got a token.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measured = [record for record in records if record.phase == "measured"]
    first = [value for record in measured if (value := metrics.ttft_s(record)) is not None]
    gaps = [metrics.itl_s(record) for record in measured if len(record.chunks) > 1]
    if not first:
        return None
    missing = sum(metrics.undelivered(record) for record in measured)
    itl = (
        np.repeat(np.concatenate([g for g, _ in gaps]), np.concatenate([n for _, n in gaps])) if gaps else np.array([])
    )
    figure = Figure(figsize=(9, 3.6))
    FigureCanvasAgg(figure)
    # Fixed margins: a layout that adapts draws everything twice, and a study has a picture for each trial.
    axes = figure.subplots(1, 2, gridspec_kw={"left": 0.09, "right": 0.98, "bottom": 0.15, "top": 0.88, "wspace": 0.25})
    _survival(axes[0], np.asarray(first), len(measured), "TTFT", "requests")
    _survival(axes[1], itl, len(itl) + missing, "ITL (token-normalised)", "gaps")
    for ax, metric in zip(axes, ("ttft", "itl"), strict=True):
        for limit in level.score.limits if level.score is not None else ():
            if limit.name.startswith(f"{metric}_"):
                ax.axvline(limit.threshold * 1000, color="tab:red", linestyle="--", linewidth=1)
                ax.axhline(limit.allowed, color="tab:red", linestyle=":", linewidth=1)
                ax.plot(limit.threshold * 1000, limit.allowed, "o", color="tab:red", label=f"limit {limit.name}")
        if ax.get_legend_handles_labels()[1]:
            ax.legend(loc="lower left", fontsize=8)
    figure.suptitle(f"{title}, level {level.number}, load {level.offered:.3g}", fontsize=10)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90, metadata={"Software": None})
    return buffer.getvalue()


def _survival(
    ax: "Axes", values_s: "np.ndarray[tuple[int], np.dtype[np.float64]]", n: int, name: str, unit: str
) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    ax.set_xlabel(f"{name}, ms")
    ax.set_ylabel(f"share of {unit} above (n = {n})")
    ax.set_yscale("log")
    ax.set_ylim(_LEAST_SHARE, 1.2)  # also where there is nothing to draw
    ax.grid(visible=True, alpha=0.3)
    if len(values_s) == 0:
        return
    ordered = np.sort(values_s) * 1000
    above = (n - np.arange(1, len(ordered) + 1)) / n
    shown = _points(int(np.count_nonzero(above > 0)))
    ax.step(ordered[shown], above[shown], where="post")
    ax.set_ylim(min([_LEAST_SHARE, *(above[shown] / 2)]), 1.2)
    if ordered[0] > 0:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())


def _points(n: int) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    """Places of at most about 600 of `n` values, dense towards the tail, which a logarithmic axis spreads."""
    if n <= _MOST_POINTS:
        return np.arange(n)
    from_end = np.geomspace(1, n, _MOST_POINTS).astype(np.intp)
    return n - np.unique(from_end)[::-1]
