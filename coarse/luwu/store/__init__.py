"""Storage of optimizer states that do not fit in memory (LuWu 3.3)."""
