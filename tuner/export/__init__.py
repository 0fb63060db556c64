"""
A measured deployment → files that start it elsewhere: a shell script, a Compose file, Kubernetes manifests.

`plan.read` finds the trial and what was started for it; each format turns that into one text, or refuses what it cannot
say. Everything here only reads the study.
"""

from tuner.export.formats import FORMATS, Exported, export

__all__ = ["FORMATS", "Exported", "export"]
