"""Tests of reading engine metrics."""

import pytest

from tuner.deployment import counters

PAGE = """\
# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 1e+03
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 600.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="local_compute"} 100.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 300.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="a \\"quoted\\", name"} 7
vllm:nixl_bytes_transferred_sum{engine="0"} 4096
vllm:nixl_bytes_transferred_bucket{engine="0",le="1.0"} 1
vllm:mooncake_store_operation_bytes_total{engine="0",operation="get",status="ok"} 10
vllm:mooncake_store_operation_bytes_total{engine="0",operation="get",status="failed"} 1
vllm:mooncake_store_operation_bytes_total{engine="0",operation="put",status="ok"} 100
vllm:kv_offload_load_time_sum{engine="0",transfer_type="CPU_to_GPU"} 0.5
vllm:kv_offload_cpu_cache_usage_perc{engine="0"} 0.5
python_gc_objects_collected_total{generation="0"} 5
broken line
"""


def test_counters_are_kept_by_name_and_split_by_their_label():
    """Sources and operations are told apart, engines are summed, other programs' metrics and buckets are left out."""
    assert counters.counters(PAGE) == {
        "prompt_tokens_total": 1000.0,
        "prompt_tokens_by_source_total.local_compute": 700.0,
        "prompt_tokens_by_source_total.external_kv_transfer": 300.0,
        "request_success_total.length": 7.0,
        "nixl_bytes_transferred_sum": 4096.0,
        "mooncake_store_operation_bytes_total.get": 11.0,
        "mooncake_store_operation_bytes_total.put": 100.0,
        "kv_offload_load_time_sum": 0.5,
    }


def test_gauges_are_summed_and_the_fullest_cache_counts():
    """Running requests add up over engines; usage does not."""
    other = PAGE.replace("} 0.25", "} 0.75")
    assert counters.gauges([PAGE, other]) == {"num_requests_running": 6.0, "kv_cache_usage_perc": 0.75}


def test_difference_counts_a_new_counter_from_zero():
    """A family that appears during the level started at zero."""
    assert counters.difference({"a": 2.0}, {"a": 5.0, "b": 1.0}) == {"a": 3.0, "b": 1.0}


def test_sides_of_a_split_deployment_stay_apart():
    """Totals are there, and prefill's and decode's own counters too; one of `engine` needs no second name."""
    parts = [("prefill", {"a": 1.0}), ("decode", {"a": 2.0}), ("engine", {"a": 4.0})]
    assert counters.total(parts) == {"a": 7.0, "prefill.a": 1.0, "decode.a": 2.0}


@pytest.mark.parametrize("text", ["", "# only a comment\n", "<html>404</html>"])
def test_page_without_samples_has_no_counters(text):
    """Nothing is invented where nothing is said."""
    assert counters.counters(text) == {}
