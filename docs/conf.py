"""How Sphinx makes a site of these pages: ``make docs``."""

from __future__ import annotations

import carme_hub

project, author, copyright = "Carme Hub", "the authors of Carme Hub", "the authors of Carme Hub"
release = version = carme_hub.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinxcontrib.mermaid",
]
# ``index.md`` is read as it is; this page has the same, and the tree of all pages.
root_doc = "site"
exclude_patterns = ["index.md"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
# Pages lead to files beside the docs (CONTRIBUTING, examples), as they are read without the site.
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure"]
nitpicky = False
autodoc_typehints = "description"
autodoc_mock_imports = ["torch", "horovod", "ipywidgets", "IPython"]
html_theme = "pydata_sphinx_theme"
html_title = "Carme Hub"
html_theme_options = {"show_nav_level": 2, "navigation_with_keys": True}
