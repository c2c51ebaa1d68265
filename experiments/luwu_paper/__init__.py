"""LuWu's evaluation, figure by figure; see docs/luwu.md."""
