"""One model, many processes (runs in P; importing it loads no framework).

`distribute.strategy()` is all that most programs need.
"""

from sparkdl.distribute.collectives import mean
from sparkdl.distribute.rates import scale_learning_rate, warmed_up
from sparkdl.distribute.serving import serve
from sparkdl.distribute.strategies import strategy

__all__ = ["mean", "scale_learning_rate", "serve", "strategy", "warmed_up"]
