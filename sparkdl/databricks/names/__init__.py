"""The modules of Databricks' package by their paths: `names/image` is `sparkdl.image` (anywhere).

`sparkdl/__init__.py` adds this folder to the places where Python looks for modules of sparkdl.
"""
