"""Open-loop load: when requests arrive, what they say, and the client that sends them."""
