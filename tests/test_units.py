"""Quantities with their units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner import units
from tuner.errors import UnitError
from tuner.units import Amount


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("0.5s", 0.5),
        ("1234 ms", 1.234),
        ("17ms", 0.017),
        ("60s", 60),
        ("10min", 600),
        ("1.5h", 5400),
        ("1d", 86400),
        ("50us", 5e-5),
        ("50µs", 5e-5),
        ("1e-3s", 0.001),
        (".5s", 0.5),
        ("1_000ms", 1),
        ("0s", 0),
    ],
)
def test_times_are_seconds(text, seconds):
    """Every unit and every spelling of the number gives the nearest float, without an error of conversion."""
    assert units.parse_time_s(text) == seconds


def test_a_time_without_unit_is_refused_with_the_remedy():
    """0.5 could be seconds or milliseconds, a factor of a thousand apart."""
    with pytest.raises(UnitError, match=r"^got 0\.5: a time needs a unit; write 500ms or 2s$"):
        units.parse_time_s("0.5")


@pytest.mark.parametrize(
    "text", ["", "s", "5 parsecs", "500MS", "5m", "--5s", "1e999s", "1h30min", "nan s", "inf", "٣s"]
)
def test_what_is_no_time_is_refused(text):
    """An unknown unit, no number, several of them, or a number beyond floats is an error, never a guess."""
    with pytest.raises(UnitError):
        units.parse_time_s(text)


def test_negative_quantities_are_refused():
    """No quantity of a file can be below zero; zero itself is a value."""
    with pytest.raises(UnitError, match="cannot be negative"):
        units.parse_money_per_hour("-3/h")
    assert units.parse_rate_rps("0/s") == 0


@pytest.mark.parametrize(
    ("text", "rate"), [("4/s", 4), ("240/min", 4), ("3600/h", 1), ("4 rps", 4), ("1.5e1/s", 15), ("1e1/s", 10)]
)
def test_rates_are_requests_per_second(text, rate):
    """A rate per minute or hour is converted."""
    assert units.parse_rate_rps(text) == rate


@pytest.mark.parametrize(("text", "share"), [("99%", 0.99), ("0.99", 0.99), ("100%", 1), ("2 %", 0.02), ("0", 0)])
def test_shares_lie_between_zero_and_one(text, share):
    """A percentage and a fraction are two spellings of one share."""
    assert units.parse_share(text) == share


@pytest.mark.parametrize(("text", "remedy"), [("99", "write 99%"), ("101%", "between 0 and 1"), ("5ms", "99% or 0.99")])
def test_what_is_no_share_is_refused(text, remedy):
    """99 without a sign is not taken for 99 %."""
    with pytest.raises(UnitError, match=remedy):
        units.parse_share(text)


@pytest.mark.parametrize(
    ("text", "price"), [("3.99/h", 3.99), ("0.28/s", 1008), ("0.05/min", 3), ("730/month", 1), ("1.5e0/h", 1.5)]
)
def test_prices_are_per_hour(text, price):
    """0.28 a second are 1008 an hour; a month is 730 hours."""
    assert units.parse_money_per_hour(text) == price


def test_a_currency_inside_a_price_is_refused_with_its_place():
    """Currencies are not mixed: one stands in the file, for all prices."""
    with pytest.raises(UnitError, match=r"got 3.00 USD: .*the currency stands in prices.currency"):
        units.parse_money_per_hour("3.00 USD")


@pytest.mark.parametrize(
    ("text", "bytes_per_s"), [("50 GB/s", 50e9), ("100 Gbit/s", 12.5e9), ("100 Gbps", 12.5e9), ("1 GiB/s", 2**30)]
)
def test_bandwidths_are_bytes_per_second(text, bytes_per_s):
    """Bits and bytes, decimal and binary prefixes are told apart."""
    assert units.parse_bandwidth(text) == bytes_per_s


def test_an_ambiguous_bandwidth_is_refused():
    """Gb could be bits or bytes."""
    with pytest.raises(UnitError, match="'Gb/s' is no unit"):
        units.parse_bandwidth("50 Gb/s")


@pytest.mark.parametrize(("text", "gib"), [("80 GiB", 80), ("512 MiB", 0.5), ("1 TiB", 1024), ("1073741824 B", 1)])
def test_sizes_are_gib(text, gib):
    """1 GiB is 2**30 bytes."""
    assert units.parse_size_gib(text) == gib
    assert units.parse_size_gib("80 GB") == pytest.approx(74.5058, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("6 gpu-hours", Amount("gpu_hours", 6)),
        ("1 GPU-hour", Amount("gpu_hours", 1)),
        ("2h", Amount("wall_s", 7200)),
        ("50 USD", Amount("currency", 50, "USD")),
        ("40 trials", Amount("trials", 40)),
    ],
)
def test_budgets_of_every_kind(text, amount):
    """GPU-hours, wall time, money, trials."""
    assert units.parse_budget(text) == amount


@pytest.mark.parametrize("text", ["0h", "40", "2.5 trials", "50 usd", "6 gpuhours", "", "lots"])
def test_what_is_no_budget_is_refused(text):
    """Nothing, a bare number, half a trial, or an unknown unit."""
    with pytest.raises(UnitError):
        units.parse_budget(text)


_QUANTITY = st.floats(min_value=0, max_value=1e12, allow_nan=False) | st.integers(0, 10**12).map(float)


@given(_QUANTITY)
def test_what_is_written_reads_back_exactly(value):
    """Every format is read back as the same float, so that a resolved file loses nothing."""
    assert units.parse_time_s(units.format_time(value)) == value
    assert units.parse_rate_rps(units.format_rate(value)) == value
    assert units.parse_money_per_hour(units.format_money_per_hour(value)) == value
    assert units.parse_bandwidth(units.format_bandwidth(value)) == value
    assert units.parse_size_gib(units.format_size(value)) == value


@given(_QUANTITY.filter(lambda value: value > 0), st.sampled_from(["wall_s", "gpu_hours", "currency"]))
def test_budgets_read_back_exactly(value, kind):
    """A budget too is written without loss."""
    amount = Amount(kind, value, "JPY" if kind == "currency" else None)
    assert units.parse_budget(units.format_budget(amount)) == amount


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_a_unit_error(text):
    """No text makes a parser fail in any other way, or take long."""
    for parse in (
        units.parse_time_s,
        units.parse_rate_rps,
        units.parse_share,
        units.parse_money_per_hour,
        units.parse_bandwidth,
        units.parse_size_gib,
        units.parse_budget,
    ):
        try:
            parse(text)
        except UnitError as error:
            assert str(error)  # noqa: PT017  most texts are refused
