# Pure: no MPI, threads, clock or environment.
"""Counting: a prompt names a number, and the right answer is so many marks and an end. Every answer can be checked."""

from __future__ import annotations

from collections.abc import Sequence

START, END, MARK = 0, 1, 2
FIRST_NUMBER = 6
"""Tokens from MARK + 1 to here are never right."""
MOST = 6
"""The largest number that is asked for."""
VOCABULARY = FIRST_NUMBER + MOST
LONGEST_ANSWER = 10
"""Tokens of an answer after which it is cut."""
EXACT, NEAR = 1.0, 0.5
"""The reward of a right answer, and what a wrong one stays below."""


def prompt_of(number: int) -> list[int]:
    """Two tokens; `number` is 1..MOST."""
    return [START, FIRST_NUMBER + number - 1]


def is_right(number: int, answer: Sequence[int]) -> bool:
    """So many marks, and the end."""
    return list(answer) == [MARK] * number + [END]


def reward_of(number: int, answer: Sequence[int]) -> float:
    """1 for a right answer, else half the share of the right one with which it begins."""
    right = [MARK] * number + [END]
    if list(answer) == right:
        return EXACT
    begun = 0
    while begun < min(len(answer), len(right)) and answer[begun] == right[begun]:
        begun += 1
    return NEAR * begun / len(right)
