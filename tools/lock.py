"""
Pin what pyproject.toml and its dev group resolve to now: name==version, one a line, no addresses.

usage: python tools/lock.py > requirements.lock
"""

import json
import subprocess
import sys
from pathlib import Path

HEADER = """\
# What `make env` installs: the tuner's own environment (not the engine's). Versions only.
# Made by `make lock` on Python 3.11, Linux; change pyproject.toml, not this file.
"""


def main() -> None:
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    command += ["--group", str(root / "pyproject.toml:dev"), str(root)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    packages = [item["metadata"] for item in json.loads(done.stdout)["install"]]
    pins = {f"{each['name'].lower().replace('_', '-')}=={each['version']}" for each in packages}
    sys.stdout.write(HEADER + "".join(f"{pin}\n" for pin in sorted(pins) if not pin.startswith("slo-tuner==")))


if __name__ == "__main__":
    main()
