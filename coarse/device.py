"""The program of a memory-device rank: serves until the workers leave (`python -m coarse.device`)."""

import coarse

if __name__ == "__main__":
    coarse.init()
