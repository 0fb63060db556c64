"""Numbers and values → text for people: units always, three significant digits, never rounded across a limit. Pure."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence

#: Shown where a value is unknown or does not apply.
UNKNOWN = "–"
_MOST_DIGITS = 12
#: What stands for a secret in `commands.json`.
_MASKS = ("***",)


def number(value: float | None, digits: int = 3, *, full: bool = False) -> str:
    """
    `digits` significant digits in plain decimals, thousands grouped: 0.0123, 4.2, 1,234; never an exponent.

    Zeros at the end go, unless `full`.
    """
    if value is None:
        return UNKNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    shown = f"{value:,.{decimals}f}"
    if "." in shown and not full:
        shown = shown.rstrip("0").rstrip(".")
    return shown.replace("-", "−")


def beside(value: float | None, limit: float, digits: int = 3) -> str:
    """
    `value` with as many digits as it takes to stay on its side of `limit`.

    500.4 beside 500 is `500.4`, although three digits would say that it is kept.
    """
    if value is None or not math.isfinite(value):
        return number(value)
    for more in range(digits, _MOST_DIGITS):
        shown = number(value, more)
        read = float(shown.replace(",", "").replace("−", "-"))
        if (read > limit) == (value > limit) and (read == limit) == (value == limit):
            return shown
    return repr(value)


def milliseconds(value_s: float | None) -> str:
    """Seconds as `12.3 ms`, from 10 s on as `12.3 s`."""
    if value_s is None:
        return UNKNOWN
    return f"{number(value_s)} s" if abs(value_s) >= 10 else f"{number(value_s * 1000)} ms"


def duration(value_s: float | None) -> str:
    """Wall time: `48 s`, `12 min`, `3.5 h`."""
    if value_s is None:
        return UNKNOWN
    if value_s < 120:
        return f"{number(value_s)} s"
    return f"{number(value_s / 60)} min" if value_s < 7200 else f"{number(value_s / 3600)} h"


def share(value: float | None, digits: int = 3) -> str:
    """0.987 → `98.7 %`."""
    return UNKNOWN if value is None else f"{number(value * 100, digits)} %"


def share_beside(value: float | None, limit: float) -> str:
    """A share that stays on its side of the promised one: 0.98996 beside 0.99 is `98.996 %`, not `99 %`."""
    return UNKNOWN if value is None else f"{beside(value * 100, limit * 100)} %"


def signed_share(value: float | None) -> str:
    """A margin: `−12.3 %` is kept with room, `+4 %` is broken."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return number(value)
    shown = number(abs(value) * 100)
    return "0 %" if shown == "0" else f"{'+' if value > 0 else '−'}{shown} %"


def money(value: float | None, currency: str) -> str:
    """`0.0123 USD`; from 10 on to the cent."""
    return UNKNOWN if value is None else f"{amount(value)} {currency}"


def amount(value: float | None) -> str:
    """Money without its currency, for columns that name it."""
    if value is None or not math.isfinite(value) or value == 0:
        return number(value)
    return number(value, max(3, math.floor(math.log10(abs(value))) + 3), full=True)


def change(new: float | None, old: float | None) -> str:
    """`25 % lower`, `4 % higher`, `the same`; unknown without both values or with an old one of zero."""
    if new is None or old is None or old == 0:
        return UNKNOWN
    ratio = new / old - 1
    percent = abs(ratio) * 100
    if percent < 0.05:
        return "the same"
    shown = f"{percent:.0f}" if percent >= 10 else "under 1" if percent < 0.95 else number(percent, 2)
    return f"{shown} % {'lower' if ratio < 0 else 'higher'}"


def flag_value(value: object) -> str:
    """A knob's value as people write it: `on`, `off`, 2048, text."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def knobs(configuration: Mapping[str, object]) -> str:
    """`tensor_parallel_size=1, replicas=2`; the engine's defaults where nothing is set."""
    known = {name: value for name, value in configuration.items() if value is not None}
    return ", ".join(f"{name}={flag_value(value)}" for name, value in sorted(known.items())) or "engine defaults"


def count(n: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def shell(argv: Sequence[str], env: Mapping[str, str] | None = None, *, lines: bool = False) -> str:
    """
    One command as a POSIX shell takes it, secrets as the names of their variables.

    A masked value in `env` becomes `NAME="$NAME"`. The result, read by a shell, gives exactly these arguments; with
    `lines` it continues on a new line before each `--flag`.
    """
    words = [shlex.quote(word) for word in argv]
    if env:
        words = ["env", *(_setting(name, value) for name, value in sorted(env.items())), *words]
    if not lines:
        return " ".join(words)
    return " ".join(f"\\\n    {word}" if word.startswith("--") else word for word in words)


def _setting(name: str, value: str) -> str:
    if value in (*_MASKS, f"${name}", f"${{{name}}}"):
        return f'{name}="${name}"'
    if value.startswith("$") and value[1:].replace("_", "a").isalnum():
        return f'{name}="{value}"'
    return f"{name}={shlex.quote(value)}"


def tight(words: str) -> str:
    """The same words with no line break between a number and its unit, or a sign and its number."""
    return re.sub(r"(?<=[\d≤≥=>]) (?=\S)|(?<=\S) (?==)", "\N{NO-BREAK SPACE}", words)
