"""What the c10d backend "coarse" is made of; coarse/torch/process_group.py is the backend."""
