"""User's own model from a Hugging Face configuration, a function that returns a torch module, or a trace.

`source` reads what --model names. Only `built` imports transformers, and only it and `traced` import torch; `source`
imports them when a model needs them.
"""
