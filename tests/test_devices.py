"""The shipped table of accelerators."""

import pytest

from tuner import devices
from tuner.slo import Pool


@pytest.mark.parametrize("spelling", ["H100-80GB", "h100", "H100_SXM", "h100 80gb"])
def test_spelling_does_not_matter(spelling):
    """Every usual spelling of a GPU finds the same row."""
    assert devices.find(spelling) is devices.devices()["H100-80GB"]


def test_an_unknown_device_is_none_not_a_guess():
    """A name outside the table yields nothing, so that no figure is made up."""
    assert devices.find("H1000") is None


def test_every_row_is_complete_and_sourced():
    """Figures are positive, fp8 is absent only where the chip has none, and each row names where it comes from."""
    for device in devices.devices().values():
        assert min(device.memory_gib, device.bf16_flops, device.memory_bytes_per_s, device.link_bytes_per_s) > 0
        assert device.fp8_flops is None or device.fp8_flops > device.bf16_flops
        assert device.source


def test_h100_figures_match_the_data_sheet():
    """989 TFLOP/s and 3.35 TB/s, as published for the SXM5 module."""
    h100 = devices.find("H100")
    assert (h100.bf16_flops, h100.memory_bytes_per_s) == (989e12, 3.35e12)


def test_a_pool_may_state_its_own_memory():
    """The objective file's figure wins over the table; a CPU slot without one is unknown, not zero."""
    pool = Pool(name="a", unit="gpu", device="L4", nodes=1, per_node=1, price_per_hour=1.0)
    own = Pool(name="a", unit="gpu", device="L4", nodes=1, per_node=1, price_per_hour=1.0, memory_gib=20.0)
    slot = Pool(name="c", unit="cpu", device="slot", nodes=1, per_node=1, price_per_hour=0.0)
    assert [devices.unit_memory_gib(each) for each in (pool, own, slot)] == [22.5, 20.0, None]
