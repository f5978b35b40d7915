"""How Sphinx makes a site of the Markdown in this repository: ``make docs``.

Sphinx reads the repository and not this folder, so that every link which works there works in the site, and one that
leads nowhere is a warning. The pages read well without a site: what only a site can do is added here.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from traitlets import TraitType

import carme_hub

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from traits import CLASSES  # noqa: E402

project, author, copyright = "Carme Hub", "the authors of Carme Hub", "the authors of Carme Hub"
release = version = carme_hub.__version__
extensions = ["myst_parser", "autodoc_traits", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "examples/**.md"]
exclude_patterns = [".*", "build", "tests", "carme_hub/sandbox", "carme_hub/services", "carme_hub/spawners"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # of the diagrams: Pygments does not know "mermaid"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_mock_imports = ["torch", "horovod", "IPython"]
html_theme = "pydata_sphinx_theme"
html_title = "Carme Hub"
html_sidebars = {"*": [], "examples/README": [], "examples/*/README": []}  # pages without others below them
html_theme_options = {"show_nav_level": 2, "show_toc_level": 2, "navigation_with_keys": True}
# ``make docs`` downloads the program that draws the diagrams; without it a diagram is shown as its text.
_MERMAID = HERE.parent / "build" / "mermaid" / "mermaid.tiny.js"
html_css_files = ["site.css"]
html_static_path = ["static", *([str(_MERMAID)] if _MERMAID.is_file() else [])]
html_js_files = [_MERMAID.name, "diagrams.js"] if _MERMAID.is_file() else []
# Addresses elsewhere are tried by ``make docs-linkcheck``, which needs a network.
linkcheck_timeout = 20

#: What the start page's links do not say: the order of the pages in the site's menu.
TREE = """
```{toctree}
:hidden:
:glob:

roles/index
tutorial/index
howto/index
reference/index
explanation/index
../examples/README
../examples/*/README
../CONTRIBUTING
../CHANGELOG
../SECURITY
../CODE_OF_CONDUCT
../README
```
"""


def complete_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add the menu to the start page, and have autodoc-traits write the pages of settings."""
    if docname == root_doc:
        source[0] += TREE
    if docname == "docs/reference/settings":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\nsettings/*\n```\n"
    folder, _, name = docname.rpartition("/")
    if folder == "docs/reference/settings":
        [path] = [each for each in CLASSES if each.endswith(f".{name}")]
        _, *sections = re.split(r"^(?=## )", source[0], flags=re.MULTILINE)
        others = [section for section in sections if not section.startswith(f"## {name}.")]
        source[0] = "\n".join([f"# {name}\n", "```{eval-rst}", f".. autoconfigurable:: {path}()", "```\n", *others])


def leave_out_others(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out JupyterHub's own settings, and names of batchspawner's that are refused, which have a list."""
    if isinstance(obj, TraitType):
        ours = obj.this_class is not None and obj.this_class.__module__.startswith("carme_hub")
        return not ours or bool(obj.metadata.get("replaced"))
    return None


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    app.connect("source-read", complete_page)
    app.connect("autodoc-skip-member", leave_out_others)
