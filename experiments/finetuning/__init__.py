"""Fine-tuning of transformers' GPT-2, OPT and BERT on questions in SQuAD's format, in any mode.

Weights are random and tokenizers are trained at run time: no hub is ever asked for anything.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # threads of its own would take the workers' cores
