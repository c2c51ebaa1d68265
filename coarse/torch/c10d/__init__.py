"""Parts of the c10d backend "coarse", which is coarse/torch/process_group.py."""
