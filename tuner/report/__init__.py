"""
Ledger → what people read: `terminal.render`, `html.write`, and `summary` for where there is no terminal.

Everything here only reads the study.
"""

from tuner.report.words import summary

__all__ = ["summary"]
