"""When a night must be over: `--until 06:00` and `--budget 2h` as one moment. Pure but for the clock it is given."""

import datetime as dt
import re

from tuner.errors import InputError

#: A time of day that passed so lately names no window of the next day: whoever starts late does not mean a whole day.
LATE = dt.timedelta(hours=4)


def until(text: str, now: dt.datetime) -> dt.datetime:
    """
    The next moment that a text names.

    Args:
        text: `06:00`, local time, today or tomorrow; or a whole date and time such as `2026-11-30T06:00`.
        now: Local, with its time zone.

    Raises:
        InputError: It names no time, or one that has passed; a time of day, not more than `LATE` ago.
    """
    clock = re.fullmatch(r"(\d{1,2}):(\d{2})", text)
    try:
        if clock:
            wall = now.replace(tzinfo=None)
            named = wall.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
            if wall - LATE < named <= wall:
                raise InputError(
                    f"--until: got {text!r}: that has passed; it is {wall:%H:%M}. A night that is late is not made up "
                    "for by day; where the next day is meant, write the date with it"
                )
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
