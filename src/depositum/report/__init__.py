"""What a person looks at: curves, tables, progress, tracking."""

from depositum.report.curves import draw_curves
from depositum.report.progress import ProgressBar
from depositum.report.tables import comparison, summary
from depositum.report.track import TensorBoard

__all__ = ["ProgressBar", "TensorBoard", "comparison", "draw_curves", "summary"]
