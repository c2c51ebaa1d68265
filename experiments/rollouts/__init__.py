"""Reinforcement learning by groups of rollouts (GRPO) on a task whose answers are checked."""
