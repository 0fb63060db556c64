"""
"500ms" → 0.5: the only place where a unit is converted.

Every quantity in a file is a number with its unit; a bare number is refused with the remedy. Numbers take the usual
spellings (`1e-3`, `1.5e0`, `1_000`). Conversion is exact and rounded once, so `0.28/s` is 1008.0 per hour, and
`parse_x(format_x(value)) == value` for every value.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from tuner.errors import UnitError

#: Hours in a month, where a monthly price becomes an hourly one.
MONTH_H = 730

_NUMBER = re.compile(r"[-+]?([0-9][0-9_]{0,30}(\.[0-9_]{0,30})?|\.[0-9]{1,30})([eE][-+]?[0-9]{1,3})?")
_GIB = 2**30

_TIMES = {
    "us": Fraction(1, 1_000_000),
    "µs": Fraction(1, 1_000_000),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_RATES = {"/s": Fraction(1), "/min": Fraction(1, 60), "/h": Fraction(1, 3600), "rps": Fraction(1)}
_MONEY = {"/h": Fraction(1), "/s": Fraction(3600), "/min": Fraction(60), "/month": Fraction(1, MONTH_H)}
_BYTES = {"": 1, "k": 1000, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": _GIB, "Ti": 2**40}
_BANDWIDTHS = {f"{prefix}B/s": Fraction(factor) for prefix, factor in _BYTES.items()} | {
    f"{prefix}{bit}": Fraction(_BYTES[prefix], 8) for prefix in ("", "k", "M", "G", "T") for bit in ("bit/s", "bps")
}
_SIZES = {f"{prefix}B": Fraction(factor, _GIB) for prefix, factor in _BYTES.items()}
_BUDGETS = {"gpu-hours": "gpu_hours", "gpu-hour": "gpu_hours", "trials": "trials", "trial": "trials"}


@dataclass(frozen=True)
class Amount:
    """One limit of a budget; `kind` is a field of `slo.Budget`. `currency` is set for `currency` only."""

    kind: Literal["trials", "wall_s", "gpu_hours", "currency"]
    value: float
    currency: str | None = None


def parse_time_s(text: str) -> float:
    """Seconds, >= 0, from `500ms`, `2s`, `10min`, `1.5h`, `1d` or `50us`."""
    return _parse(text, _TIMES, "a time", "500ms or 2s")


def parse_rate_rps(text: str) -> float:
    """Requests per second, >= 0, from `4/s`, `240/min`, `1000/h` or `4 rps`."""
    return _parse(text, _RATES, "a rate", "4/s or 240/min")


def parse_share(text: str) -> float:
    """A share in [0, 1] from `99%` or `0.99`; `99` without the sign is an error, not 1."""
    value, unit = _split(text, "a share", "99% or 0.99")
    if unit not in ("", "%"):
        raise UnitError(f"got {text}: a share is written 99% or 0.99")
    share = _float(value / 100 if unit else value, text)
    if share > 1:
        remedy = f"; write {text}% where a percentage is meant" if not unit and value <= 100 else ""
        raise UnitError(f"got {text}: a share lies between 0 and 1{remedy}")
    return share


def parse_money_per_hour(text: str) -> float:
    """Currency per hour, >= 0, from `3.99/h`, `0.28/s`, `0.05/min` or `2436896/month` (a month is 730 h)."""
    hint = "; the currency stands in prices.currency" if re.search(r"[A-Z]{3}|[$€¥£]", text) else ""
    return _parse(text, _MONEY, "a price", f"3.99/h, 0.28/s or 2436896/month{hint}")


def parse_bandwidth(text: str) -> float:
    """Bytes per second, >= 0, from `50 GB/s`, `1.5 TiB/s`, `100 Gbit/s` or `100 Gbps`."""
    return _parse(text, _BANDWIDTHS, "a bandwidth", "50 GB/s or 100 Gbit/s")


def parse_size_gib(text: str) -> float:
    """GiB (2**30 bytes), >= 0, from `80 GiB`, `512 MiB` or decimal `80 GB`."""
    return _parse(text, _SIZES, "a size", "80 GiB or 80 GB")


def parse_budget(text: str) -> Amount:
    """
    One limit from `6 gpu-hours`, `2h` (wall time), `50 USD` or `40 trials`; above 0.

    Raises:
        UnitError: No such form, zero, or a part of a trial.
    """
    forms = "6 gpu-hours, 2h, 50 USD or 40 trials"
    value, unit = _split(text, "a budget", forms)
    if value == 0:
        raise UnitError(f"got {text}: a budget must be above 0")
    if unit.lower() in _BUDGETS:
        if _BUDGETS[unit.lower()] == "gpu_hours":
            return Amount("gpu_hours", _float(value, text))
        if value.denominator != 1:
            raise UnitError(f"got {text}: trials are whole, write 40 trials")
        return Amount("trials", float(value))
    if unit in _TIMES:
        return Amount("wall_s", _float(value * _TIMES[unit], text))
    if re.fullmatch(r"[A-Z]{3}", unit):
        return Amount("currency", _float(value, text), unit)
    raise UnitError(f"got {text}: a budget is written {forms}")


def format_number(value: float) -> str:
    """The shortest decimal that reads back as the same float, without a trailing `.0`."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def format_time(seconds: float) -> str:
    """`0.5s`: files written by the program have seconds throughout."""
    return f"{format_number(seconds)}s"


def format_rate(rate_rps: float) -> str:
    """`4/s`."""
    return f"{format_number(rate_rps)}/s"


def format_money_per_hour(price: float) -> str:
    """`3.99/h`."""
    return f"{format_number(price)}/h"


def format_bandwidth(bytes_per_s: float) -> str:
    """`50 GB/s`, or bytes where gigabytes would not read back exactly."""
    text = f"{format_number(bytes_per_s / 1e9)} GB/s"
    return text if parse_bandwidth(text) == bytes_per_s else f"{format_number(bytes_per_s)} B/s"


def format_size(gib: float) -> str:
    """`80 GiB`."""
    return f"{format_number(gib)} GiB"


def format_budget(amount: Amount) -> str:
    """`6 gpu-hours`, `7200s`, `50 USD` or `40 trials`."""
    unit = {"trials": " trials", "wall_s": "s", "gpu_hours": " gpu-hours", "currency": f" {amount.currency}"}
    return f"{format_number(amount.value)}{unit[amount.kind]}"


def _parse(text: str, units: Mapping[str, Fraction], what: str, forms: str) -> float:
    value, unit = _split(text, what, forms)
    if not unit:
        raise UnitError(f"got {text}: {what} needs a unit; write {forms}")
    if unit not in units:
        raise UnitError(f"got {text}: {unit!r} is no unit of {what}; write {forms}")
    return _float(value * units[unit], text)


def _split(text: str, what: str, forms: str) -> tuple[Fraction, str]:
    """Exact value and unit. A negative value is an error: no quantity of a file may be."""
    stripped = text.strip()
    match = _NUMBER.match(stripped)
    if match is None:
        raise UnitError(f"got {text or 'nothing'}: {what} is a number with its unit; write {forms}")
    value = Fraction(match.group().replace("_", ""))
    if value < 0:
        raise UnitError(f"got {text}: {what} cannot be negative")
    return value, stripped[match.end() :].strip()


def _float(value: Fraction, text: str) -> float:
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if value and (result == 0 or not math.isfinite(result)):
        raise UnitError(f"got {text}: out of range")
    return result
