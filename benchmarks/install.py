"""What an auditor waits for: the size of the wheel, and how long it takes to install it, without torch, and to use it.

    python benchmarks/install.py

needs what builds the package (pip install build hatchling), and an index of packages that is near.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
VOTES = ROOT / "examples" / "digits-votes.npz"
GATE = ("gate", "certificate.json", "--certified-accuracy", "0.5", "--at", "5")


def run(*words: str | Path, cwd: Path) -> float:
    """Run a command, without the packages of this interpreter; the seconds that it took."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    start = time.perf_counter()
    subprocess.run([str(word) for word in words], cwd=cwd, env=clean, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
        (wheel,) = folder.glob("*.whl")
        print(f"wheel: {wheel.stat().st_size / 1e6:.2f} MB")
        made = run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
        programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        pip = (programs / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-cache-dir")
        print(f"environment: {made:.1f} s; pip install of the wheel: {run(*pip, wheel, cwd=folder):.1f} s")
        program = programs / "mithridate"
        run(program, "certify", VOTES, "--labels-key", "y", "--out", "certificate.json", cwd=folder)
        for words in (("verify", "certificate.json"), GATE):
            print(f"{words[0]}: {min(run(program, *words, cwd=folder) for _ in range(3)):.2f} s")
        is_there = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is not None)"
        run(programs / "python", "-c", is_there, cwd=folder)


if __name__ == "__main__":
    main()
