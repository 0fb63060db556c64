"""Where the load goes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.errors import InputError


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server."""

    host: str
    port: int
    model: str  # name under which it serves the model
    headers: Mapping[str, str] = field(default_factory=dict)  # header name → name of the environment variable
    tls: bool = False
    path: str = ""  # before `/v1/…`

    def header_values(self, environment: Mapping[str, str]) -> dict[str, str]:
        """
        Headers with their values; secrets exist only there.

        Raises:
            InputError: A variable that is not set, or whose value cannot stand in a header.
        """
        values = {}
        for name, variable in self.headers.items():
            value = environment.get(variable)
            if value is None or not value.isprintable() or not value.isascii():
                raise InputError(f"header {name}: the environment variable {variable} is not set to printable text")
            values[name] = value
        return values
