"""Where an export comes from: study, trial, promise, figures. In words for people, and as data. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.report import text
from tuner.report.limits import limit_name

SIMULATED = (
    "SIMULATED: no engine ran. Every figure below comes from a model of the engine; measure before you rely on it."
)


@dataclass(frozen=True)
class Origin:
    """
    Provenance of one export.

    Args:
        study: Name of the study.
        trial: Its number.
        role: `winner`, `baseline`, or "" for any other trial.
        source: `live` or `simulated`.
        engine_version: Of vLLM, as the engine told it, or as it is assumed where none ran.
        entry: What `result.json` says of the configuration.
        result: `result.json`.
        warnings: Sentences for people.
    """

    study: str
    trial: int
    role: str
    source: str
    engine_version: str
    entry: Mapping[str, Any]
    result: Mapping[str, Any]
    warnings: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The head of every export, a sentence a line; no line holds a line break."""
        role = f" ({self.role})" if self.role else ""
        found = [f"Trial {self.trial}{role} of study {self.study}, exported by tuner."]
        if self.source == "simulated":
            found.append(SIMULATED)
        found += [
            f"model: {self.result['model']}; vLLM {self.engine_version}; source: {self.source}",
            f"configuration: {text.knobs(self.entry['configuration'])}",
            f"promised: {'; '.join(self._promised()) or 'nothing'}",
            f"{'simulated' if self.source == 'simulated' else 'measured'}: {'; '.join(self._figures())}",
        ]
        found += [f"warning: {each}" for each in self.warnings]
        return [" ".join("".join(c if c.isprintable() else " " for c in line).split()) for line in found]

    def as_json(self) -> dict[str, object]:
        """The same as data."""
        kept = (
            "configuration", "gpus", "cost_per_hour", "cost_per_1k_good_requests", "goodput_rps", "attainment",
            "offered", "n", "verified", "repeats",
        )  # fmt: skip
        return {
            "study": self.study,
            "trial": self.trial,
            "role": self.role or None,
            "source": self.source,
            "model": self.result["model"],
            "engine_version": self.engine_version,
            "slo": self.result["slo"],
            "currency": self.result["currency"],
            "measured": {name: self.entry.get(name) for name in kept},
            "limits": [
                {"name": each["name"], "estimate": each["estimate"], "threshold": each["threshold"]}
                for each in self.entry.get("limits") or ()
            ],
            "warnings": list(self.warnings),
        }

    def _promised(self) -> Sequence[str]:
        slo = self.result["slo"]
        found = [f"{limit_name(each['name'])} ≤ {text.milliseconds(each['threshold_s'])}" for each in slo["limits"]]
        if slo["attainment"] is not None:
            found.append(f"attainment ≥ {text.share(slo['attainment'])}")
        return found

    def _figures(self) -> Sequence[str]:
        entry, currency = self.entry, self.result["currency"]
        found = [
            f"{text.money(entry['cost_per_1k_good_requests'], currency)} per 1,000 good requests",
            f"goodput {text.number(entry['goodput_rps'])} requests/s",
        ]
        for limit in entry.get("limits") or ():
            value = limit["estimate"]
            shown = text.share(value) if limit["name"] == "attainment" else text.milliseconds(value)
            found.append(f"{limit_name(limit['name'])} {shown}")
        n = entry.get("n")
        found.append(f"n = {n:,} requests" if n is not None else "n unknown")
        found.append("verified on fresh schedules" if entry.get("verified") else "not verified")
        return found
