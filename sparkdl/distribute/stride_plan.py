"""Runs anywhere (pure). Which arrays are reduced in rounds, and between which ranks, see `strides`.

All of it follows from the hosts of the ranks.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

# Shorter arrays are gathered as a whole, which takes half as many steps.
SHORT_BYTES = 1 << 15
# Between hosts, longer arrays go around a ring, whose ranks add some blocks while others travel.
MEDIUM_BYTES = 1 << 18


def longest_in_rounds(nodes: Sequence[str]) -> int:
    """Return the bytes of the longest array that is reduced in rounds; 0 if all take the ring.

    Between hosts, each step takes time, and hosts with several ranks each send fewer bytes; within
    a host, only many ranks save enough steps. Of longer arrays, the ring passes some blocks on
    while others are added. The rule has no measurement in it: a training that is repeated or
    continued has the same bits.

    Args:
        nodes: host names, by rank.

    Example:
        >>> longest_in_rounds("abcd"), longest_in_rounds("aaaa")
        (32768, 0)
    """
    counts = Counter(nodes)
    has_hosts = len(counts) > 1
    if has_hosts and len(nodes) > len(counts) and len(set(counts.values())) == 1:
        return sys.maxsize
    few, many, longest = (4, 8, MEDIUM_BYTES) if has_hosts else (8, 16, 2 * SHORT_BYTES)
    if len(nodes) >= many:
        return longest
    return SHORT_BYTES if len(nodes) >= few else 0


class Plan(NamedTuple):
    """The places of ranks on a circle, and the strides.

    Attributes:
        order: positions in the ring, by place.
        strides: the strides, longest first.
        num_local: number of strides that stay within a host, the first ones; 0 if ranks share
            no hosts, or all share one.
    """

    order: list[int]
    strides: list[int]
    num_local: int


def plan_strides(nodes: Sequence[str]) -> Plan:
    """Return the places and the strides of some ranks.

    If all hosts have as many ranks, neighbours on the circle are on different hosts.

    Args:
        nodes: host names, in ring order.

    Example:
        >>> plan_strides("aaaaa")
        Plan(order=[0, 1, 2, 3, 4], strides=[3, 2, 1], num_local=0)
        >>> plan_strides("aaaabbbb")
        Plan(order=[0, 4, 1, 5, 2, 6, 3, 7], strides=[4, 2, 1], num_local=2)
    """
    counts = Counter(nodes)
    num_hosts, num_local = len(counts), counts[nodes[0]]
    if len(set(counts.values())) > 1:
        num_hosts, num_local = len(nodes), 1
    order = [host * num_local + local for local in range(num_local) for host in range(num_hosts)]
    local = [num_hosts * stride for stride in _halves(num_local)]
    return Plan(order, local + _halves(num_hosts), len(local) if num_hosts > 1 else 0)


def _halves(number: int) -> list[int]:
    """Return half of a number, half of the half and so on to 1, each rounded up."""
    found = []
    while number > 1:
        number = (number + 1) // 2
        found.append(number)
    return found
