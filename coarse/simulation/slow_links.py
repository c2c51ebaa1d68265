# Pure: no MPI, threads, clock or environment.
"""Links that are slower than their model says, told from measured transfers alone.

Of the links that slow transfers took, that one is blamed, at that share of its rate, with which the model comes
nearest to all that was measured; then the next, until the model fits or no further link makes it fit better. A
transfer that was as fast as it should be speaks against a link no more than as far as it needed its rate: so a link
that is narrowed to what one way draws is found by the other. Links that were always used together look alike, and
the first is taken: it predicts the same.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from coarse.hardware.degradation import at_share
from coarse.hardware.links import Link
from coarse.simulation.probe_batches import ProbeBatch, probe_batch_s
from coarse.simulation.sites import Site

TOLERANCE = 0.02
"""A transfer that takes no more than this share longer than it should is as fast as it should be."""
_MOST_LINKS = 16
_MOST_ROUNDS = 8
"""Most rounds in which a share is approached: start-ups, and rates that a path does not draw, hide a part of a loss."""
_LEAST_GAIN = 0.01

Measured = Sequence[tuple[ProbeBatch, tuple[float, ...]]]
"""Probe batches, and the seconds that each of their transfers took."""


def estimated_links(site: Site, measured: Measured) -> tuple[Link, ...]:
    """Return the site's links, those to blame at the share of their rate with which the model comes to the times."""
    return _at_shares(site, blamed_shares(site, measured)).links


def blamed_shares(site: Site, measured: Measured) -> dict[int, float]:
    """Link -> share of its rate that is left, of the links to blame."""
    shares: dict[int, float] = {}
    ratios = [_ratios(site, each) for each in measured]
    for _ in range(_MOST_LINKS):
        fits = [_fitted(site, measured, shares, ratios, link) for link in sorted(_suspects(site, measured, ratios))]
        best = min(fits, key=lambda fit: fit[0], default=None)
        if best is None or best[0] > _misfit(ratios) * (1 - _LEAST_GAIN):
            break
        _, shares, ratios = best
    return shares


Ratios = list[tuple[float, ...]]
"""Ratios of measured to modelled seconds, of each probe batch's transfers."""
_Fit = tuple[float, dict[int, float], Ratios]
"""The misfit that is left, with which shares, and the ratios then."""


def _fitted(site: Site, measured: Measured, shares: Mapping[int, float], ratios: Ratios, link: int) -> _Fit:
    """Return the best fit that blaming one link more can reach.

    The slowest is explained by the link if it has no other reason; the least slow, and one between, if it has.
    """
    slow = sorted(
        (row[number], index, number)
        for index, row in enumerate(ratios)
        for number, send in enumerate(measured[index][0].sends)
        if row[number] > 1 + TOLERANCE and link in send.path(site)
    )
    chosen = {slow[place][1:] for place in (0, len(slow) // 2, -1)}
    fits = [_explaining(site, measured, shares, ratios, link, *transfer) for transfer in sorted(chosen)]
    return min(fits, key=lambda fit: fit[0])


def _explaining(
    site: Site, measured: Measured, shares: Mapping[int, float], ratios: Ratios, link: int, index: int, number: int
) -> _Fit:
    """Return the fit with that share of a link at which the model comes to the time of one transfer."""
    tried, known, ratio = dict(shares), site, ratios[index][number]
    for _ in range(_MOST_ROUNDS):
        tried[link] = tried.get(link, 1.0) / ratio
        known = _at_shares(site, tried)
        ratio = _ratios(known, measured[index])[number]
        if abs(ratio - 1) < TOLERANCE / 10:
            break
    now = [
        _ratios(known, each) if _uses(site, each[0], link) else before
        for each, before in zip(measured, ratios, strict=True)
    ]
    return _misfit(now), tried, now


def _suspects(site: Site, measured: Measured, ratios: Ratios) -> set[int]:
    """Return the links of transfers that are slower than the model has them."""
    return {
        link
        for (probe_batch, _), row in zip(measured, ratios, strict=True)
        for send, ratio in zip(probe_batch.sends, row, strict=True)
        if ratio > 1 + TOLERANCE
        for link in send.path(site)
    }


def _uses(site: Site, probe_batch: ProbeBatch, link: int) -> bool:
    return any(link in send.path(site) for send in probe_batch.sends)


def _ratios(known: Site, measured: tuple[ProbeBatch, tuple[float, ...]]) -> tuple[float, ...]:
    probe_batch, seconds = measured
    expected = probe_batch_s(known, probe_batch)
    return tuple(taken_s / expected_s for taken_s, expected_s in zip(seconds, expected, strict=True))


def _misfit(ratios: Ratios) -> float:
    return sum(abs(math.log(ratio)) for row in ratios for ratio in row)


def _at_shares(site: Site, shares: Mapping[int, float]) -> Site:
    links = (at_share(link, shares[number]) if number in shares else link for number, link in enumerate(site.links))
    return replace(site, links=tuple(links))
