"""Listings of the messages of ranks that are some seconds old, as clients of NFS keep them."""

import time

from sparkdl.files import storage


def install(age_s: float) -> None:
    """Let this process see listings that are up to `age_s` seconds old, and its own files at once.

    Only the folders of ranks are listed so, as processes of several hosts write into them.
    The source of this module is also run by other processes, when they start.
    """
    list_names, write = storage.list_names, storage.write
    listings: dict[str, tuple[float, list[str]]] = {}

    def old_names(url: str) -> list[str]:
        if "/ranks/" not in url:
            return list_names(url)
        if url not in listings or time.monotonic() - listings[url][0] > age_s:
            listings[url] = (time.monotonic(), list_names(url))
        return list(listings[url][1])

    def noted_write(url: str, data: bytes | str) -> None:
        write(url, data)
        folder, _, name = url.rpartition("/")
        if folder in listings and name not in listings[folder][1]:
            listings[folder][1].append(name)

    storage.list_names, storage.write = old_names, noted_write
