"""Runs in the training process. Join the directories of all ranks of a gang into one checkpoint.

The ranks talk through files of the run. First each rank posts the names of its files, and the chief
posts the place of the checkpoint and the rank that copies each file. Then each rank copies its
files and says so, and the chief seals the checkpoint and says so. A rank that is lost at any moment
ends the gang, and the checkpoint before stays the last one.
"""

import functools
import hashlib
import itertools
import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl.checkpoints.reader import Checkpoint
from sparkdl.checkpoints.writer import Draft, files_of
from sparkdl.files import storage
from sparkdl.files.polling import retry
from sparkdl.files.rank_files import RankFiles
from sparkdl.host.os_processes import this_node

# Two files of one name that are not larger are compared by their content.
COMPARED_BYTES = 1 << 20
POLL_S = 0.02

# The files of a rank other than 0 in a checkpoint of torch.distributed.checkpoint, and of Orbax.
_PART = re.compile(r"(__[1-9]\d*_\d+\.distcp|ocdbt\.process_[1-9]\d*)")
_FIRST_PART = re.compile(r"(__0_\d+\.distcp|ocdbt\.process_0)")


def check_whole(source: str | os.PathLike[str], rank: int) -> None:
    """Validate that a directory that is committed without those of the other ranks is no part.

    Raises:
        ValueError: if it has files of a sharded checkpoint, and none of rank 0.
    """
    walk = os.walk(source, followlinks=True)
    names = [name for _, folders, files in walk for name in (*folders, *files)]
    parts = [name for name in names if _PART.fullmatch(name)]
    if parts and not any(map(_FIRST_PART.fullmatch, names)):
        raise ValueError(
            f"checkpoint={os.fspath(source)!r} of rank {rank} has {parts[0]}, a part of a sharded "
            "checkpoint, and the checkpoint would have the files of the chief only. Pass "
            "sharded=True to context.report on all ranks."
        )


@dataclass(frozen=True)
class Part:
    """The directory of one rank, as a part of a checkpoint.

    Attributes:
        source: the directory.
        trial: the folder of the trial.
        attempt: the number of the attempt at the trial.
        files: the files by which the ranks talk.
        rank, size: the rank of this process, and the number of ranks.
        number: number of the checkpoint in this process, from 0; the same on all ranks.
        timeout_s: seconds to wait until another rank reports.
        answer_timeout_s: seconds to wait until it has copied its files. A lost rank ends the gang.
    """

    source: Path
    trial: str
    attempt: int
    files: RankFiles
    rank: int
    size: int
    number: int
    timeout_s: float
    answer_timeout_s: float = math.inf

    def commit(
        self, step: int, metrics: Mapping[str, float], given_step: int | None = None
    ) -> Checkpoint | None:
        """Commit the parts of all ranks; all ranks call it, and return when it is committed.

        Args:
            step, metrics: see `writer.commit`; those of rank 0 count.
            given_step: the step that the program has named, which must be the same on all ranks.

        Returns:
            The checkpoint on rank 0; None on the others.

        Raises:
            NotADirectoryError, ValueError: see `writer.commit`; also if two ranks have different
                files of one name, or name different steps, or if another rank has a problem.
            TimeoutError: if a rank does not take part.
            SupersededError: if a later attempt at the trial has started.
        """
        try:
            names = files_of(self.source, self.trial)
            described = {name: _describe(self.source / name) for name in names}
        except Exception as exc:
            self.refuse(exc)
            raise
        self._post("part", {"step": given_step, "files": described})
        if self.rank == 0:
            return self._lead(step, metrics)
        self._follow()
        return None

    def refuse(self, problem: BaseException) -> None:
        """Tell the other ranks, in place of a part, why this rank has none."""
        self._post("part", {"problem": f"rank {self.rank}: {problem}"})

    def _lead(self, step: int, metrics: Mapping[str, float]) -> Checkpoint:
        try:
            parts = self._wait_for("part", range(self.size), self.timeout_s)
            # Each rank has seen the end of the commit before.
            if self.number > 0:
                self._forget(self.number - 1)
            _check_steps([part["step"] for part in parts])
            owners = owners_of([part["files"] for part in parts])
        except Exception as exc:
            self._post("place", {"problem": str(exc)})
            raise
        begin = functools.partial(Draft.begin, self.trial, self.attempt, sorted(owners))
        draft = retry(begin, "begin a checkpoint")
        try:
            place = {"url": draft.url, "owners": owners, "number": draft.number}
            self._post("place", place)
            self._copy(draft, owners)
            self._wait_for("copied", range(1, self.size), self.answer_timeout_s)
            checkpoint = draft.seal(step, metrics)
        except Exception as exc:
            self._post("sealed", {"problem": str(exc)})
            raise
        finally:
            draft.discard()
        self._post("sealed", {})
        return checkpoint

    def _follow(self) -> None:
        self._wait_for("part", [0], self.timeout_s)
        (place,) = self._wait_for("place", [0], self.answer_timeout_s)
        owners = place["owners"]
        draft = Draft(self.trial, self.attempt, place["number"], place["url"], sorted(owners))
        try:
            self._copy(draft, owners)
        except Exception as exc:
            self._post("copied", {"problem": f"rank {self.rank}: {exc}"})
            raise
        self._post("copied", {})
        self._wait_for("sealed", [0], self.answer_timeout_s)

    def _copy(self, draft: Draft, owners: Mapping[str, int]) -> None:
        mine = [name for name in draft.files if owners[name] == self.rank]
        retry(lambda: draft.copy(self.source, mine), "copy the files of a checkpoint")
        if storage.is_local(draft.url):
            # They may be in the memory of this host, and the chief cannot write them to a disk.
            storage.fsync([storage.local_path(draft.url) / name for name in mine])

    def _forget(self, number: int) -> None:
        """Remove the messages of an earlier commit."""
        own = itertools.product(("part", "copied"), range(self.size))
        for topic, rank in (*own, ("place", 0), ("sealed", 0)):
            storage.remove(self.files.of_numbers(topic, number, rank))

    def _post(self, topic: str, message: Mapping[str, Any]) -> None:
        post = functools.partial(self.files.post_numbered, data=json.dumps(message))
        retry(lambda: post(topic, self.number, self.rank), "post a message about a checkpoint")

    def _wait_for(self, topic: str, ranks: Sequence[int], timeout_s: float) -> list[dict[str, Any]]:
        """Return the messages of some ranks.

        Raises:
            ValueError: if a message tells a problem.
            TimeoutError: if there are not all messages in time.
        """
        messages: list[dict[str, Any]] = []
        deadline = time.monotonic() + timeout_s
        while len(messages) < len(ranks):
            rank = ranks[len(messages)]
            read = functools.partial(self.files.read_numbered, topic, self.number, rank)
            try:
                messages.append(json.loads(retry(read, "read a message about a checkpoint")))
            except (FileNotFoundError, ValueError):  # A store may show a file before its end.
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"rank {rank} has not passed its part of a checkpoint for "
                        f"{timeout_s:g} s. With sharded=True all ranks call context.report at the "
                        "same steps. SPARKDL_COLLECTIVE_TIMEOUT_S sets the time."
                    ) from None
                time.sleep(self.files.poll_s(self.size, POLL_S))
                continue
            if problem := messages[-1].get("problem"):
                raise ValueError(problem)
        return messages


def _check_steps(steps: Sequence[int | None]) -> None:
    named = {step for step in steps if step is not None}
    if len(named) > 1:
        raise ValueError(
            f"the ranks report a sharded checkpoint at the steps {sorted(named)}. All ranks call "
            "context.report at the same steps."
        )


def owners_of(parts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the rank that copies each file: the lowest one that has it (pure).

    Args:
        parts: the files of each rank, by name, as `_describe` describes them.

    Raises:
        ValueError: if two ranks have different files of one name.

    Example:
        >>> first = {"config": ["disk 1", "abc"], "0": ["disk 2", ""]}
        >>> owners_of([first, {"config": ["disk 3", "abc"], "1": ["disk 4", ""]}])
        {'config': 0, '0': 0, '1': 1}
    """
    owners: dict[str, int] = {}
    for rank, names in enumerate(parts):
        for name, description in names.items():
            first = owners.setdefault(name, rank)
            (place, content), (other, copied) = parts[first][name], description
            if place != other and (content != copied or not content):
                raise ValueError(
                    f"the ranks {first} and {rank} have different files of the name {name!r}, and "
                    "a checkpoint has one of each name. Put the rank into the name, or let rank "
                    f"{first} save it alone. Ranks on several hosts save into a folder each."
                )
    return owners


def _describe(path: Path) -> list[Any]:
    """Return what tells if two ranks have the same file: its place, and a digest if it is small.

    Ranks that share a folder may see a file while another one of them writes it.
    """
    status = path.stat()
    is_small = status.st_size <= COMPARED_BYTES
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if is_small else ""
    return [f"{this_node()}-{status.st_dev}-{status.st_ino}", digest]
