"""
How fast the light commands start, beside the libraries they stand on: `python -c "import yaml, pydantic, click"`.

Rounds are interleaved, so that a busy machine slows both; the median of each is compared. Prints the ratios.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 15
LIMIT = 2.0
BASE = [sys.executable, "-c", "import yaml, pydantic, click"]
PROGRAM = [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()"]
COMMANDS = {
    "--help": ["--help"],
    "faults": ["faults"],
    "plan": ["plan", "experiments/plane_loss.yaml", "--inventory", "staging-example"],
}


def seconds(command: list[str]) -> float:
    """Run a command and return how long it took."""
    # Installed packages have their bytecode; a clone gets it with the first run, unless the environment forbids it.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    """Measure and print; 1 when a command is slower than it may be."""
    commands = {"libraries": BASE, **{name: [*PROGRAM, *argv] for name, argv in COMMANDS.items()}}
    for command in commands.values():
        seconds(command)
    rounds = [{name: seconds(command) for name, command in commands.items()} for _ in range(ROUNDS)]
    took = {name: median(each[name] for each in rounds) for name in commands}
    print(f"{'command':<10} {'ms':>6} {'ratio':>6}   (limit {LIMIT:g} x the libraries; {ROUNDS} interleaved rounds)")
    for name, value in took.items():
        print(f"{name:<10} {value * 1000:6.0f} {value / took['libraries']:6.2f}")
    return int(any(value > LIMIT * took["libraries"] for value in took.values()))


if __name__ == "__main__":
    sys.exit(main())
