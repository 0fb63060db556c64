"""How many tokens of KV cache fit beside the weights."""

from tuner.simulator.steptime import ModelShape

#: Held back on each GPU for activations, CUDA graphs and the context. Seen with vLLM on 80 GB GPUs: 3 to 5 GiB.
ACTIVATION_BYTES = 4 * 1024**3
#: Held back on each GPU for communication buffers where several GPUs work together.
COMMUNICATION_BYTES = 1024**3


def kv_tokens(
    shape: ModelShape,
    *,
    memory_bytes: float,
    utilization: float,
    tensor_parallel: int,
    activation_bytes: float | None = None,
) -> int:
    """
    Tokens of KV cache of one engine; <= 0 where the weights do not fit.

    (memory * utilization - activations - communication) * TP - weights, over the KV bytes of a token on all its GPUs.

    Args:
        shape: The model.
        memory_bytes: Of one GPU, as its driver reports it.
        utilization: `gpu_memory_utilization`, in (0, 1].
        tensor_parallel: GPUs of the engine. With more of them than KV heads, each head is kept several times.
        activation_bytes: Of one GPU; None = `ACTIVATION_BYTES`.
    """
    held = ACTIVATION_BYTES if activation_bytes is None else activation_bytes
    each = memory_bytes * utilization - held - (COMMUNICATION_BYTES if tensor_parallel > 1 else 0)
    copies = max(1.0, tensor_parallel / shape.kv_heads)
    return int((each * tensor_parallel - shape.weight_bytes) // (shape.kv_bytes_per_token * copies))
