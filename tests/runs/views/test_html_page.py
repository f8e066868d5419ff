"""The page of a report: what a browser gets."""

import base64
import gzip
import hashlib
import re

from sparkdl.runs.views.html_page import page


def test_library_arrives_whole_in_a_script_that_the_policy_allows() -> None:
    library = "globalThis.Plotly = '</script>ö';\n"
    text = page("t", ["<p>figure</p>"], library)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    (packed,) = re.findall(r'^const LIBRARY = "(.*)";$', script, re.M)
    assert gzip.decompress(base64.b64decode(packed)).decode() == library
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'unsafe-eval' 'sha256-{digest}';" in text


def test_page_without_figures_has_no_script() -> None:
    assert "<script>" not in page("t", ["<p>none</p>"], "")
