"""The page that shows runs and models in a browser, while they go on (runs on the driver).

`sparkdl ui [ROOT]` and `run.ui()` serve the page on the loopback interface. The page
reads the files below a root, as every other reader does.
"""

from sparkdl.ui.server import Page, serve, show

__all__ = ["Page", "serve", "show"]
