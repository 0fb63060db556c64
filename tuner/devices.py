"""What a GPU can hold and do at most, from the shipped table `data/devices.yaml`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from ruamel.yaml import YAML

from tuner.slo import Pool

GIB = 1024**3


@dataclass(frozen=True)
class Device:
    """Peak figures of one accelerator; what a kernel reaches is a share of them."""

    name: str
    kind: Literal["cuda", "rocm"]
    memory_gib: float  # as the driver reports it
    bf16_flops: float  # FLOP/s, dense
    fp8_flops: float | None  # FLOP/s, dense; None = no fp8 units
    memory_bytes_per_s: float
    link_bytes_per_s: float  # to another GPU of the same node, one direction
    ray_types: tuple[str, ...]  # what a Ray cluster calls it, the most exact name first
    source: str

    @property
    def memory_bytes(self) -> float:
        return self.memory_gib * GIB


@cache
def devices() -> Mapping[str, Device]:
    """The shipped table, by canonical name, in the order of the file."""
    return {
        name: Device(
            name=name,
            kind=row["kind"],
            memory_gib=float(row["memory_gib"]),
            bf16_flops=row["bf16_tflops"] * 1e12,
            fp8_flops=None if row["fp8_tflops"] is None else row["fp8_tflops"] * 1e12,
            memory_bytes_per_s=row["memory_gb_per_s"] * 1e9,
            link_bytes_per_s=row["link_gb_per_s"] * 1e9,
            ray_types=tuple(row["ray"]),
            source=row["source"],
        )
        for name, row in _rows().items()
    }


def find(name: str) -> Device | None:
    """The device of this name or alias; case, dashes, underscores and blanks do not matter. None = not in the table."""
    canonical = _names().get(_plain(name))
    return None if canonical is None else devices()[canonical]


def of_pool(pool: Pool) -> Device | None:
    """The device of a GPU pool; None for CPU slots and for GPUs that the table does not know."""
    return find(pool.device) if pool.unit == "gpu" else None


def unit_memory_gib(pool: Pool) -> float | None:
    """Memory of one unit of the pool in GiB: the pool's own figure, else the table's; None = unknown."""
    if pool.memory_gib is not None:
        return pool.memory_gib
    device = of_pool(pool)
    return None if device is None else device.memory_gib


def ray_types(pool: Pool) -> tuple[str, ...]:
    """What a Ray cluster may call the GPUs of a pool, the most exact name first; an unknown type by its own name."""
    device = of_pool(pool)
    return (pool.device,) if device is None else device.ray_types


def same(name: str, others: Iterable[str]) -> bool:
    """Whether one of the others is this name, spelt as it may be."""
    return _plain(name) in map(_plain, others)


@cache
def _rows() -> dict[str, dict[str, Any]]:
    text = files("tuner").joinpath("data/devices.yaml").read_text(encoding="utf-8")
    return dict(YAML(typ="safe", pure=True).load(text)["devices"])


@cache
def _names() -> dict[str, str]:
    return {_plain(spelling): name for name, row in _rows().items() for spelling in (name, *row["aliases"])}


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
