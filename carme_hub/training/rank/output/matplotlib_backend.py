"""A backend of matplotlib (3.6 or later) whose figures go to the notebook, and are closed then, as in a notebook.

See https://matplotlib.org/stable/users/explain/figure/writing_a_backend_pyplot_interface.html.
"""

from __future__ import annotations

from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

from . import rich_output


class FigureManager(FigureManagerBase):
    """Displays a figure."""

    def show(self) -> None:
        """Display this figure, which stays open."""
        rich_output.display(self.canvas.figure)

    @classmethod
    def pyplot_show(cls, *, block: bool | None = None) -> None:  # noqa: ARG003  there is no window to wait for
        """Display all open figures and close them."""
        try:
            for manager in Gcf.get_all_fig_managers():
                manager.show()
        finally:
            Gcf.destroy_all()


class FigureCanvas(FigureCanvasAgg):  # type: ignore[misc]
    """Draws as matplotlib's Agg, which needs no screen."""

    manager_class = FigureManager
