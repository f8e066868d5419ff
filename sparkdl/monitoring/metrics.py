"""Runs anywhere. The metrics of drift, by name: distances of the histograms of a feature."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.errors import ConfigError, suggest
from sparkdl.monitoring import chance, distances

# The counts of a feature: an array for each part, see `profiles.counting.PARTS`.
Counts = Mapping[str, Any]

_EMPTY = np.zeros(1, np.int64)


@dataclass(frozen=True)
class Metric:
    """A metric of drift.

    Attributes:
        distance: the distance between two histograms.
        part: the histogram of numbers; None if the metric is for categories only.
        threshold: the value from which on a feature has drifted, unless it is reached by chance.
        has_categories: True if the metric is for categories, too.
        is_p_value: True if a feature has drifted where the value is *smaller* than the threshold.
        in_stds: True if the distance is in widths of a bin, to be told in standard deviations. It
            then needs to know how far values lie beyond the training data.
        power: the power of the distance that is like a statistic of Pearson for small distances.
        by_chance: the distance that a sample reaches by chance, see `chance`; None draws samples.
    """

    distance: Callable[[Any, Any], float]
    part: str | None
    threshold: float
    has_categories: bool = True
    is_p_value: bool = False
    in_stds: bool = False
    power: int = 2
    by_chance: Callable[[Any, tuple[int, int], float], float] | None = None

    def applies_to(self, kind: str) -> bool:
        """Return True if the metric is defined for features of a kind."""
        return self.has_categories if kind == "category" else kind != "other" and bool(self.part)

    def value(self, feature: Mapping[str, Any], counts: Counts) -> float:
        """Return the metric of a feature.

        Nulls are one more bin, as a feature that gets lost has drifted, except for the metrics of
        numbers only, which need an order.

        Args:
            feature: the fields of the feature in the profile of the reference.
            counts: the counts of other data in the same bins.
        """
        value = self.distance(*self._histograms(feature, counts))
        if self.in_stds:
            value += _beyond(counts)
        return value * self._unit(feature)

    def limit(self, feature: Mapping[str, Any], counts: Counts, num_comparisons: int) -> float:
        """Return the threshold, or the value that is reached by chance if this is larger.

        Args:
            feature, counts: see `value`.
            num_comparisons: the number of features and metrics that are compared together. All of
                them exceed their limit by chance with the probability `chance.ALARM_RATE` at most
                (Bonferroni).
        """
        alpha = chance.ALARM_RATE / max(1, num_comparisons)
        if self.is_p_value:
            return min(self.threshold, alpha)
        reference, other = self._histograms(feature, counts)
        # The elements of one array are not independent: no more values count than rows.
        num = min(int(reference.sum()), int(feature["n"]))
        num_others = min(int(other.sum()), int(counts["n"][0]))
        if not num or not num_others:
            return self.threshold
        if self.by_chance:
            value = self.by_chance(reference, (num, num_others), alpha)
        else:
            value = chance.drawn(self._power, reference, other, (num, num_others), alpha)
            value **= 1 / self.power
        return max(self.threshold, value * self._unit(feature))

    def _power(self, reference: Any, counts: Any) -> Any:
        return self.distance(reference, counts) ** self.power

    def _unit(self, feature: Mapping[str, Any]) -> float:
        """Return the width of a bin in standard deviations, for a distance in widths of a bin."""
        if not (self.in_stds and feature["std"]):
            return 1.0
        bins = feature["bins"]
        width: float = (bins["high"] - bins["low"]) / (len(bins["counts"]) - 2)
        return width / float(feature["std"])

    def _histograms(self, feature: Mapping[str, Any], counts: Counts) -> list[Any]:
        """Return the bins of the reference and of other data."""
        part = "categories" if feature["kind"] == "category" else str(self.part)
        return [self._bins(part, numbers) for numbers in (reference_counts(feature), counts)]

    def _bins(self, part: str, counts: Counts) -> Any:
        bins = np.asarray(counts.get(part, _EMPTY))
        if not self.has_categories:
            return bins
        if part == "wide_bins" and len(bins) > 2:  # Values beyond the training data are one bin.
            bins = np.append(bins[1:-1], bins[0] + bins[-1])
        return np.append(bins, counts.get("nulls", _EMPTY))

    def has_drifted(self, value: float, threshold: float) -> bool:
        """Return True if a value tells of drift."""
        return value < threshold if self.is_p_value else value > threshold


def _beyond(counts: Counts) -> float:
    """Return the distance, in bins, of the values that lie further than the next bin.

    There is no finite value in the reference, so that each bin adds the share of the values beyond.
    """
    num = int(np.sum(counts.get("bins", _EMPTY)))
    return float(np.sum(counts.get("beyond", _EMPTY))) / num if num else 0.0


METRICS: Mapping[str, Metric] = {
    "psi": Metric(distances.psi, "quantiles", 0.2, power=1),
    "js": Metric(distances.js, "wide_bins", 0.1),
    "hellinger": Metric(distances.hellinger, "wide_bins", 0.1),
    "l_infinity": Metric(distances.l_infinity, "wide_bins", 0.1),
    "ks": Metric(distances.ks, "bins", 0.1, has_categories=False, by_chance=chance.ks),
    "wasserstein": Metric(
        distances.wasserstein,
        "bins",
        0.1,
        has_categories=False,
        in_stds=True,
        by_chance=chance.wasserstein,
    ),
    "chi_squared": Metric(distances.chi_squared, None, chance.ALARM_RATE, is_p_value=True),
}


def check_metrics(names: Any) -> tuple[str, ...]:
    """Return the names of metrics as a tuple.

    Raises:
        ConfigError: if one is unknown, or there is none.
    """
    metrics: tuple[str, ...] = (names,) if isinstance(names, str) else tuple(names)
    for name in metrics:
        if name not in METRICS:
            raise ConfigError(f"unknown metric {name!r}.{suggest(name, METRICS)}")
    if not metrics:
        raise ConfigError(f"metrics is empty; expected some of {', '.join(METRICS)}.")
    return metrics


def reference_counts(feature: Mapping[str, Any]) -> Counts:
    """Return the counts of a feature of a profile by part."""
    counts = {"n": [feature["n"]], "nulls": [feature["nulls"] + feature.get("nans", 0)]}
    for part in ("quantiles", "bins", "wide_bins"):
        if part in feature:
            counts[part] = feature[part]["counts"]
    if "bins" in feature:
        counts["beyond"] = [0, 0]
    if feature["kind"] == "category":
        counts["categories"] = [*feature["categories"].values(), feature["other"]]
    return {part: np.asarray(numbers, np.int64) for part, numbers in counts.items()}
