"""Runs on the driver. The section of a report with the images that trials have left.

An image may come from anywhere. It is shown as `<img>` with a data URL, never as markup: a browser
runs no script of an SVG there, and loads nothing that the SVG names.
https://www.w3.org/TR/SVG2/conform.html#secure-static-mode
"""

import base64
import hashlib
from collections.abc import Iterator
from itertools import islice

from sparkdl.files import storage
from sparkdl.files.layout import ARTIFACTS, CHIEF_WORK
from sparkdl.runs.trial import Trial
from sparkdl.runs.views.figures import RunView
from sparkdl.runs.views.figures.base import shown_trials
from sparkdl.runs.views.html_parts import escaped, section, short

# Limits of the page: images, trials that are looked at, images of a trial, and bytes of an image
# and of all of them.
MAX_IMAGES, MAX_TRIALS, MAX_OF_TRIAL = 24, 8, 12
MAX_BYTES, MAX_ALL_BYTES = 1 << 20, 4 << 20
# Images that are named, and folders that are looked into, for each trial.
MAX_NAMES, MAX_FOLDERS = 200, 10
# A small file may be an image of many pixels, which a browser would have to unpack.
MAX_PIXELS = 50_000_000

_SUFFIXES = (".png", ".jpg", ".jpeg", ".svg")
# The markers of a JPEG that are followed by its size.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def images(run: RunView) -> str:
    """Return the section with the images that trials have left; empty if there are none.

    Those of the best trial come first. An image is a PNG, JPEG or SVG file that was returned, or is
    in the working directory of the function or in a folder there.

    Args:
        run: the run.
    """
    figures: list[str] = []
    left_out: list[str] = []
    seen: set[str] = set()
    room = MAX_ALL_BYTES
    for trial in shown_trials(run, MAX_TRIALS):
        taken = 0
        for name, url in islice(_images_of(trial), MAX_NAMES):
            label = f"trial {trial.number}: {name}"
            if len(figures) >= MAX_IMAGES or taken >= MAX_OF_TRIAL:
                left_out.append(label)
                continue
            content = _content(url, min(MAX_BYTES, room))
            kind = _kind(content) if content else None
            if content is None or kind is None:
                left_out.append(label)
                continue
            if (digest := hashlib.sha256(content).hexdigest()) in seen:
                continue  # A returned file is also where the function has written it.
            seen.add(digest)
            taken += 1
            room -= len(content)
            figures.append(_figure(label, kind, content))
    shown = ", ".join(short(label) for label in left_out[:MAX_OF_TRIAL])
    more = f" and {len(left_out) - MAX_OF_TRIAL} more" if len(left_out) > MAX_OF_TRIAL else ""
    note = f"not shown, as they are many, large or no images: {shown}{more}" if left_out else ""
    body = f'<div class="images">{"".join(figures)}</div>' if figures else ""
    return section("Images", escaped(note), body) if figures or left_out else ""


def _images_of(trial: Trial) -> Iterator[tuple[str, str]]:
    """Yield the name and the URL of each file whose name is that of an image."""
    for folder in (ARTIFACTS, *CHIEF_WORK):
        url = storage.join(trial.path, folder)
        names = storage.list_names(url)
        for name in names:
            if name.lower().endswith(_SUFFIXES):
                yield name, storage.join(url, name)
        below = [name for name in names if "." not in name][:MAX_FOLDERS]
        for inner in below:
            for name in storage.list_names(storage.join(url, inner)):
                if name.lower().endswith(_SUFFIXES):
                    yield f"{inner}/{name}", storage.join(url, inner, name)


def _content(url: str, most: int) -> bytes | None:
    """Return the content of a file; None if it is larger than `most` bytes, or cannot be read."""
    # Another special file, such as a pipe, could be waited for without an end.
    if storage.is_local(url) and not storage.local_path(url).is_file():
        return None
    try:
        content = storage.read(url, size=most + 1)
    except OSError:
        return None
    return content if len(content) <= most else None


def _kind(content: bytes) -> str | None:
    """Return the type of an image by its content; None if it is none, or has too many pixels."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return (
            "png" if 0 < _number(content, 16, 4) * _number(content, 20, 4) <= MAX_PIXELS else None
        )
    if content.startswith(b"\xff\xd8\xff"):
        return "jpeg" if 0 < _pixels_of_jpeg(content) <= MAX_PIXELS else None
    return "svg+xml" if b"<svg" in content[:4096] else None


def _number(content: bytes, at: int, size: int) -> int:
    return int.from_bytes(content[at : at + size], "big")


def _pixels_of_jpeg(content: bytes) -> int:
    """Return the number of pixels, from the header of the frame; 0 if there is none."""
    at = 2
    while at + 9 <= len(content) and content[at] == 0xFF:
        if content[at + 1] in _FRAMES:
            return _number(content, at + 5, 2) * _number(content, at + 7, 2)
        at += 2 + _number(content, at + 2, 2)
    return 0


def _figure(label: str, kind: str, content: bytes) -> str:
    data = base64.b64encode(content).decode()
    name = escaped(short(label))
    return (
        f'<figure><img alt="{name}" loading="lazy" src="data:image/{kind};base64,{data}">'
        f"<figcaption>{name}</figcaption></figure>"
    )
