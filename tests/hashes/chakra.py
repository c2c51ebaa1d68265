"""Writes a prediction and the Chakra traces of its workers: `chakra.py FOLDER`."""

import subprocess
import sys


def main(folder: str) -> None:
    """Predict, and report as Chakra."""
    coarse = (sys.executable, "-m", "coarse")
    asked = ("--machine", "aws-p3", "--workers", "2", "--nodes", "1", "--out", folder)
    subprocess.run([*coarse, "predict", *asked], check=True)
    subprocess.run([*coarse, "report", folder, "--chakra"], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
