"""Many-to-one push and pull by way of a switch (LuWu 3.2): reliable hops, adding and broadcasting.

`Sender` and `Receiver` are the two ends of one hop; `AddingSwitch` and `BroadcastingSwitch` join hops to a tree.
`experiments/many_to_one` has the machines as the paper describes them, and a simulation of both.
"""
