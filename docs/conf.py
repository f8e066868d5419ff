"""The site of the documentation: `make docs` reads this file with Sphinx.

The source folder is the repository, so that links between pages are those of GitHub. Nothing is
loaded from the network, when the site is built or read.
"""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_site"))

# ---- the pages, as they stand in the menu; a test compares this list with the files

navigation = {
    "Start": ["README", "docs/installation", "notebooks/*"],
    "On a cluster": [
        "docs/clusters/index",
        "docs/clusters/local",
        "docs/clusters/standalone",
        "docs/clusters/yarn",
        "docs/clusters/kubernetes",
        "docs/clusters/spark-connect",
        "docs/clusters/platforms",
        "docs/batch-jobs",
        "conf/README",
    ],
    "Guides": [
        "docs/search",
        "docs/distributed",
        "docs/estimators",
        "docs/data",
        "docs/tabular",
        "docs/spark-ml",
        "docs/language-models",
        "docs/run-directory",
        "docs/control",
        "docs/finding-runs",
        "docs/reproducing",
        "docs/models",
        "docs/serving",
        "docs/serving-clients",
        "docs/monitoring",
        "docs/workflow",
    ],
    "Coming from": [
        "docs/tensorflowonspark",
        "docs/hopsml",
        "docs/maggy",
        "docs/horovod",
        "docs/databricks",
        "docs/sparktrials",
        "docs/ray-tune",
    ],
    "Reference": ["docs/troubleshooting", "docs/settings", "docs/api/index"],
    "Project": [
        "docs/architecture",
        "docs/acceptance",
        "docs/compatibility",
        "docs/promises",
        "docs/scale",
        "docs/benchmarks",
        "benchmarks/results/README",
        "SECURITY",
        "CONTRIBUTING",
        "CHANGELOG",
    ],
}

# A new page is in the menu before somebody finds a better place for it.
_listed = {page for pages in navigation.values() for page in pages}
_written = {f"docs/{path.stem}" for path in Path(__file__).parent.glob("*.md")}
navigation["Guides"] += sorted(_written - _listed - {"docs/index"})

# ---- Sphinx

project = "sparkdl"
# Each page shows the version that it describes; a host of several versions keeps a site of each.
_package = runpy.run_path(str(Path(__file__).parents[1] / "sparkdl/_version.py"))
version = release = _package["__version__"]
root_doc = "docs/index"
include_patterns = [
    *(f"{page}.*" for pages in navigation.values() for page in pages),
    "docs/index.md",
    "docs/**.md",
    "docs/api/*.rst",
]
exclude_patterns = [".?*", "build", "runs", "**/runs", "**/.ipynb_checkpoints"]
source_suffix = {".md": "markdown", ".ipynb": "markdown", ".rst": "restructuredtext"}
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sparkdl_site"]
# The anchors of headings are those of GitHub.
myst_heading_anchors = 4
# The first line of a file is its title, also where a level is left out below.
suppress_warnings = ["myst.header"]

# ---- the reference

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 90
napoleon_numpy_docstring = False
napoleon_use_param = False
# In the docstrings, text before a colon is not a type, and an entry may have several names.
napoleon_custom_sections = ["Returns", "Yields", ("Attributes", "params_style")]

# ---- HTML: fonts of the system, and scripts of the package

html_theme = "furo"
html_title = f"sparkdl {release}"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_extra_path = ["_site/start"]
html_search_scorer = str(Path(__file__).parent / "_site/scorer.js")
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
