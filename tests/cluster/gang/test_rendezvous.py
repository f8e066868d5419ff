"""The address at which a rank listens for the others."""

import socket

import pytest

from sparkdl.cluster.gang import rendezvous
from sparkdl.cluster.gang.rendezvous import own_address

ELSEWHERE = "192.0.2.1"  # TEST-NET-1 of RFC 5737: never an address of this host.


@pytest.fixture(autouse=True)
def route(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets to other hosts leave from this address."""
    monkeypatch.setattr(
        rendezvous, "_address_towards", lambda host: "10.0.0.7" if host == ELSEWHERE else host
    )


@pytest.mark.parametrize("local", ["127.0.0.1", "localhost", "::1"])
def test_a_loopback_address_is_refused_where_others_are_elsewhere(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", local)
    with pytest.raises(ValueError, match=f"SPARK_LOCAL_IP is {local} on host.*{ELSEWHERE}"):
        own_address(None, ["127.0.0.1:41", f"{ELSEWHERE}:41"])
    assert own_address("10.0.0.9", [ELSEWHERE]) == "10.0.0.9"


def test_a_loopback_address_serves_a_gang_on_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    hosts = ["127.0.0.1:41", "localhost", "a-name-that-is-unknown.invalid:7"]
    assert own_address(None, hosts) == "127.0.0.1"


@pytest.mark.parametrize("local", ["0.0.0.0", "::", "a-name-that-is-unknown.invalid"])
def test_an_address_of_no_interface_is_replaced(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", local)
    assert own_address(None, ["127.0.0.1:41", f"{ELSEWHERE}:41"]) == "10.0.0.7"


def test_a_name_becomes_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "this-host")
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.1.2.3", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    assert own_address(None, [ELSEWHERE]) == "10.1.2.3"


@pytest.mark.parametrize(
    ("host", "name"),
    [("[fe80::1:2]:41", "fe80::1:2"), ("fe80::1:2", "fe80::1:2"), ("a:41", "a"), ("a", "a")],
)
def test_an_address_of_ipv6_keeps_its_last_group(host: str, name: str) -> None:
    assert rendezvous._name_of(host) == name
