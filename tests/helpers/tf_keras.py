"""Run tests with tf_keras, in place of Keras 3."""

import importlib.metadata
import sys

import pytest

from sparkdl.host.supported_versions import parts_of

__all__ = ["TF_KERAS", "needs_tf_keras"]

TF_KERAS = {"TF_USE_LEGACY_KERAS": "1"}


def _fails() -> bool:
    return sys.version_info >= (3, 12) and parts_of(importlib.metadata.version("tf_keras")) < (
        2,
        19,
    )


needs_tf_keras = pytest.mark.skipif(
    _fails(), reason="before 2.19, tf_keras passes a float to randint, which Python 3.12 refuses"
)
