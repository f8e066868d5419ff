"""The GPUs of tasks on executors that see only some GPUs, against CUDA's own enumeration."""

import itertools
from collections.abc import Sequence

import pytest

from sparkdl.host.cuda_visibility import as_seen_by_executor

# The GPUs of a host, and the parts of them, by the names that CUDA accepts.
INDICES = ["0", "1", "2", "3"]
UUIDS = [f"GPU-{letter}" for letter in "abcd"]
MIG = [f"MIG-GPU-{letter}/{part}/0" for letter in "ab" for part in (1, 2)]
KINDS = {"indices": INDICES, "UUIDs": UUIDS, "MIG": MIG}

LISTS = [
    pytest.param(",".join(entries), id="-".join(entries) or "none")
    for host in KINDS.values()
    for size in range(4)
    for entries in itertools.permutations(host, size)
    if size < 3 or host is INDICES
]


def enumerated(variable: str) -> list[str]:
    """The devices that a process with this CUDA_VISIBLE_DEVICES sees, in the order of CUDA.

    Source: CUDA Environment Variables, section CUDA_VISIBLE_DEVICES, of NVIDIA's programming guide.
    """
    seen: list[str] = []
    for entry in variable.split(","):
        if entry not in INDICES + UUIDS + MIG:
            break
        seen.append(entry)
    return seen


def device_of(address: str, own: str) -> str | None:
    """The device of an address on an executor: the CUDA device of this number, or of this name."""
    for number, device in enumerate(enumerated(own)):
        if address == (str(number) if address.isdigit() else device):
            return device
    return None


def assigned(addresses: Sequence[str], own: str) -> list[str] | None:
    try:
        return as_seen_by_executor(addresses, own)
    except ValueError:
        return None


@pytest.mark.parametrize("own", LISTS)
def test_different_addresses_never_give_the_same_device(own: str) -> None:
    for kind, host in KINDS.items():
        got = {address: assigned([address], own) for address in host}
        expected = {address: device_of(address, own) for address in host}
        assert got == {a: None if d is None else [d] for a, d in expected.items()}, kind
        devices = [device[0] for device in got.values() if device]
        assert len(set(devices)) == len(devices), kind
        # The tasks of an executor read their addresses alike, however many each of them has.
        for size in (0, 2, 3):
            for addresses in itertools.permutations(host, size):
                each = [expected[address] for address in addresses]
                assert assigned(addresses, own) == (None if None in each else each)


def test_any_addresses_are_devices_where_the_executor_sees_all() -> None:
    for host in KINDS.values():
        assert as_seen_by_executor(host, None) == host


def test_entries_that_cuda_ignores_have_no_position() -> None:
    assert assigned(["1"], "2, 3") == ["3"]
    for own in ("2,-1,3", "2,,3", "-1", ""):
        assert assigned(["1"], own) is None


@pytest.mark.parametrize("address", ["01", "+1", "\u0661", "1.0", " 1", ""])
def test_only_plain_numbers_are_positions(address: str) -> None:
    assert assigned([address], "4,5") is None


def test_a_device_that_is_named_twice_is_refused() -> None:
    assert assigned(["0", "GPU-a"], "GPU-a,GPU-b") is None
    assert assigned(["0", "0"], "4,5") is None
    with pytest.raises(ValueError, match=r"CUDA_VISIBLE_DEVICES='4,4'.*each device once"):
        as_seen_by_executor(["0"], "4,4")


def test_the_error_names_both_lists_and_what_to_set() -> None:
    with pytest.raises(
        ValueError,
        match=r"the GPUs 1, 2, .*CUDA_VISIBLE_DEVICES='1,2'.*some of 0, 1: .*discoveryScript",
    ):
        as_seen_by_executor(["1", "2"], "1,2")
