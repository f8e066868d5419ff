"""Runs in the training process. Call a callback of Keras after all other callbacks of a `fit`.

Keras calls callbacks in the order of their list, and tells none of them of the others.
"""

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["add_last_callbacks"]

_EXTENDED = "_sparkdl_extended"
# The attribute of a list with the callbacks that were added to it.
_ADDED = "_sparkdl_added"


def add_last_callbacks(lists: Any, last: Callable[[Any, list[Any]], Any]) -> None:
    """Add callbacks to the end of Keras's lists; further calls have no effect.

    Args:
        lists: the class `CallbackList` of keras or tf_keras.
        last: is called with each callback of a list and with the list, which has the callbacks of
            Keras itself, too; returns the callback to add, or None.
    """
    if hasattr(lists.set_model, _EXTENDED):
        return
    set_model = lists.set_model

    @functools.wraps(set_model)
    def set_model_of_all(self: Any, model: Any) -> None:
        # Keras calls the method once all callbacks are in the list, and again if the list is used
        # again.
        earlier = [id(callback) for callback in getattr(self, _ADDED, ())]
        self.callbacks[:] = [c for c in self.callbacks if id(c) not in earlier]
        found = [last(callback, self.callbacks) for callback in self.callbacks]
        added = [callback for callback in found if callback is not None]
        self.callbacks.extend(added)
        setattr(self, _ADDED, added)
        set_model(self, model)

    setattr(set_model_of_all, _EXTENDED, True)
    lists.set_model = set_model_of_all
