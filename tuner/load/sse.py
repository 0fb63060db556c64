"""
Server-sent events from bytes that may be split or joined anywhere. Pure.

Source: the event stream format of the HTML standard, section 9.2. Beyond it, a last event without its blank line
counts.
"""

#: No event of an answer is near this long; a body that has none is not an event stream.
MOST_BYTES = 16 * 1024 * 1024


class Events:
    """
    Cuts a body into the `data` of its events.

    Lines may end in LF, CRLF or CR. An event named `error` is handed on as the JSON object `{"error": data}`.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """
        The events that are complete after these bytes.

        Raises:
            ValueError: An event of over `MOST_BYTES` bytes.
        """
        if self._rest:
            data = self._rest + data
        held = b""
        if b"\r" in data:
            if data.endswith(b"\r"):
                data, held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n\n")
        if end < 0:
            if len(data) > MOST_BYTES:
                raise ValueError(f"an event of over {MOST_BYTES} bytes")
            self._rest = data + held
            return []
        self._rest = data[end + 2 :] + held
        found = []
        for block in data[:end].split(b"\n\n"):
            if block.startswith(b"data: ") and b"\n" not in block:
                found.append(block[6:])
            else:
                found.extend(_data(block))
        return found

    def flush(self) -> list[bytes]:
        """What the end of the body completes."""
        rest, self._rest = self._rest.replace(b"\r", b"\n"), b""
        return _data(rest) if rest.strip() else []


def _data(block: bytes) -> list[bytes]:
    """The data of one event, with several `data` lines joined; empty for comments and events without data."""
    lines = []
    failed = False
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
        elif name == b"event" and value.strip() == b"error":
            failed = True
    if not lines:
        return []
    data = b"\n".join(lines)
    return [b'{"error": ' + data + b"}" if failed else data]
