"""
A discrete-event model of vLLM deployments, in virtual time.

A request's life: `level` makes it, `cluster` lets it arrive and routes it to an `engine`, where the `scheduler` gives
it tokens step by step and `blocks` to keep them in; `steptime` says how long each step takes; at each step's end the
tokens go out; `level` writes down what a client would have seen. `setup` says what the engines of a configuration are
like. Nothing here knows a clock or a random number: equal inputs, equal results.
"""
