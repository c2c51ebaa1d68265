# Pure: no MPI, threads, clock or environment.
"""Search of the links that are slower than their model says, from measured transfers alone.

The search picks, of the links that slow transfers took, the one link and the share of its rate with which the model
comes nearest to all measurements; then the next one, until the model fits or no further link makes it fit better. A
transfer that was as fast as expected speaks against a link only as far as it needed the link's rate: so a link that is
narrowed to what one way draws is found by the other. Links that were always used together cannot be told apart, and the
first is taken: it predicts the same times.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from coarse.hardware.degradation import at_share
from coarse.hardware.links import Link
from coarse.simulation.probe_batches import ProbeBatch, probe_batch_s
from coarse.simulation.sites import Site

TOLERANCE = 0.02
"""Share by which a transfer may take longer than expected and still count as fast enough."""
_MOST_LINKS = 16
_MOST_ROUNDS = 8
"""Most rounds that approach a share. Start-ups, and rates that a path does not draw, hide a part of a loss."""
_LEAST_GAIN = 0.01

Measured = Sequence[tuple[ProbeBatch, tuple[float, ...]]]
"""Probe batches, and the seconds that each of their transfers took."""


def estimated_links(site: Site, measured: Measured) -> tuple[Link, ...]:
    """Return the site's links, with the slow ones at the share of their rate that fits the measured times."""
    return _at_shares(site, blamed_shares(site, measured)).links


def blamed_shares(site: Site, measured: Measured) -> dict[int, float]:
    """Return, for each slow link, the share of its rate that is left."""
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
"""Measured to modelled seconds of each probe batch's transfers."""
_Fit = tuple[float, dict[int, float], Ratios]
"""Unrepresentable that is left, the shares that leave it, and the ratios then."""


def _fitted(site: Site, measured: Measured, shares: Mapping[int, float], ratios: Ratios, link: int) -> _Fit:
    """Return the best fit with one more slow link, whose share explains a slow transfer through it.

    The link explains the slowest transfer if that has no other reason; the least slow, and one between, if it has.
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
    """Return the fit with the share of a link at which the model comes to the time of one transfer."""
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
    """Return the links of all transfers that are slower than the model expects."""
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
