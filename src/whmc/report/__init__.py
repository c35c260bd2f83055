"""The report: one HTML file about a result, that opens anywhere and asks for nothing."""

from whmc.report.page import write_report

__all__ = ["write_report"]
