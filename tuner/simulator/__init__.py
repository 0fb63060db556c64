"""
A discrete-event model of vLLM deployments, in virtual time.

A request's life: `level` makes it, `cluster` lets it arrive and has a `router` choose an `engine`, where `scheduler`
gives it tokens step by step and `blocks` to keep them in; `steptime` and `tables` say how long each step takes; at each
step's end the tokens go out; `level` writes down what a client would have seen. With prefill and decode apart, `split`
takes the place of `cluster`; a `store` holds KV blocks that engines have no room for. `fleet` is a deployment as data,
`setup` makes it of a configuration. `compiled` and `kernel` are `engine`, `scheduler`, `blocks` and `store` once more,
faster, to the last bit. Nothing here knows a clock or a random number: equal inputs, equal results.
"""
