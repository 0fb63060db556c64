"""Which vLLM deployment serves your traffic within its latency promises for the least money, and how sure are we?"""
