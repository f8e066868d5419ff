"""Dimensions of a search space: `search.Float`, `search.Int`, `search.Categorical` (runs anywhere).

Example:
    >>> from sparkdl import search
    >>> space = {"learning_rate": search.Float(1e-4, 1e-1, log=True), "layers": search.Int(1, 4)}
"""

from sparkdl.search.space.spaces import Categorical, Float, Int

__all__ = ["Categorical", "Float", "Int"]
