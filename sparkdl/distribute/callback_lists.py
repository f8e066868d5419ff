"""Runs in the training process. Call a callback of Keras after all other callbacks of a `fit`.

Keras calls callbacks in the order of their list, and tells none of them of the others.
"""

import functools
from collections.abc import Callable
from typing import Any

# The attribute of the class of lists with the functions that choose callbacks.
_LAST = "_sparkdl_last"
# The attribute of a list with the callbacks that were added to it.
_ADDED = "_sparkdl_added"


def add_last_callbacks(lists: Any, last: Callable[[Any, list[Any]], Any]) -> None:
    """Add callbacks to the end of Keras's lists.

    Args:
        lists: the class `CallbackList` of keras or tf_keras.
        last: is called with each callback of a list and with the list, which has the callbacks of
            Keras itself, too; returns the callback to add, or None.
    """
    if hasattr(lists, _LAST):
        getattr(lists, _LAST).append(last)
        return
    setattr(lists, _LAST, [last])
    set_model = lists.set_model

    @functools.wraps(set_model)
    def set_model_of_all(self: Any, model: Any) -> None:
        # Keras calls the method once all callbacks are in the list, and again if the list is used
        # again.
        earlier = [id(callback) for callback in getattr(self, _ADDED, ())]
        self.callbacks[:] = [c for c in self.callbacks if id(c) not in earlier]
        results = [
            each(c, self.callbacks) for each in getattr(lists, _LAST) for c in self.callbacks
        ]
        added = [callback for callback in results if callback is not None]
        self.callbacks.extend(added)
        setattr(self, _ADDED, added)
        set_model(self, model)

    lists.set_model = set_model_of_all
