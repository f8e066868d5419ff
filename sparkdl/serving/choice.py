"""Runs anywhere (pure). The versions of a model that take requests, and the share of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparkdl.errors import ConfigError
from sparkdl.serving.version_source import Listing


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The versions that the user wants to serve.

    Attributes:
        version: the number of the version; None for the newest one.
        alias: the alias whose version is served.
        weights: percent of the requests for further versions, by number or alias.
    """

    version: int | None = None
    alias: str | None = None
    weights: Mapping[int | str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.version is not None and self.alias is not None:
            raise ConfigError(
                f"version is {self.version} and alias is {self.alias!r}; expected one of them, or "
                "neither for the newest version."
            )
        if self.version is not None and (
            isinstance(self.version, bool) or not isinstance(self.version, int)
        ):
            raise ConfigError(f"version is {self.version!r}; expected a number, such as 3.")
        if not isinstance(self.weights, Mapping):
            raise ConfigError(f"weights is {self.weights!r}; expected a dict, such as {{4: 10}}.")
        for key, percent in self.weights.items():
            is_key = isinstance(key, int | str) and not isinstance(key, bool)
            if not is_key or isinstance(percent, bool) or not isinstance(percent, int | float):
                raise ConfigError(
                    f"weights has {key!r}: {percent!r}; expected percent by version or alias, such "
                    "as {4: 10} or {'canary': 10}."
                )
            if not 0 <= percent <= 100:
                raise ConfigError(f"weights gives {key!r} {percent} percent; expected 0 to 100.")
        if sum(self.weights.values()) > 100:
            raise ConfigError(f"weights is {dict(self.weights)}; expected at most 100 together.")

    def candidates(self, listing: Listing) -> list[int]:
        """Return the versions that may be the main one, the best first.

        Example:
            >>> listing = Listing({1: "m/1", 2: "m/2"}, {"stable": 1})
            >>> Choice().candidates(listing), Choice(alias="stable").candidates(listing)
            ([2, 1], [1])
        """
        if self.alias is not None:
            number = listing.labels.get(self.alias)
        elif self.version is not None:
            number = self.version
        else:
            return sorted(listing.urls, reverse=True)
        return [number] if number is not None and number in listing.urls else []

    def shares(self, listing: Listing) -> dict[int, float]:
        """Return the percent of each further version that there is."""
        shares: dict[int, float] = {}
        for key, percent in self.weights.items():
            number = listing.labels.get(key) if isinstance(key, str) else key
            if number in listing.urls:
                shares[number] = shares.get(number, 0.0) + percent
        return shares

    def missing(self, listing: Listing) -> list[int | str]:
        """Return the versions and aliases that the user has named and that do not exist."""
        names = [self.version, self.alias, *self.weights]
        present = {*listing.urls, *listing.labels, None}
        return [name for name in names if name not in present and name is not None]


def pick(main: int, shares: Mapping[int, float], available: Sequence[int], chance: float) -> int:
    """Return the version for a request.

    Args:
        main: the version that takes all requests that no other version takes.
        shares: percent of the requests for other versions.
        available: the versions that are loaded.
        chance: a random number from 0 to 100.

    Example:
        >>> [pick(3, {4: 10}, [3, 4], chance) for chance in (0.0, 9.9, 10.0, 99.0)]
        [4, 4, 3, 3]
    """
    for version, percent in shares.items():
        if version in available:
            if chance < percent:
                return version
            chance -= percent
    return main
