"""A certificate as a page worth showing: one self-contained HTML file, or Markdown, JSON, SVG, PNG."""

from mithridate.reporting.report import FORMATS, Report

__all__ = ["FORMATS", "Report"]
