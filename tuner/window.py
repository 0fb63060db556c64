"""When a night must be over: `--until 06:00` and `--budget 2h` as one moment. Pure but for the clock it is given."""

import datetime as dt
import re

from tuner.errors import InputError


def until(text: str, now: dt.datetime) -> dt.datetime:
    """
    The next moment that a text names.

    Args:
        text: `06:00`, local time, today or tomorrow; or a whole date and time such as `2026-11-30T06:00`.
        now: Local, with its time zone.

    Raises:
        InputError: It names no time, or one that has passed.
    """
    clock = re.fullmatch(r"(\d{1,2}):(\d{2})", text)
    try:
        if clock:
            wall = now.replace(tzinfo=None)
            named = wall.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
            named += dt.timedelta(days=named <= wall)
            return named.astimezone(now.tzinfo)
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"--until: got {text!r}: write a time of day such as 06:00, or a date with it: 2026-11-30T06:00"
        ) from None
    found = found.astimezone(now.tzinfo) if found.tzinfo is not None else found.replace(tzinfo=now.tzinfo)
    if found <= now:
        raise InputError(f"--until: got {text!r}: that has passed; it is {now:%Y-%m-%dT%H:%M}")
    return found
