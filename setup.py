"""The package's metadata; the settings of the tools stand in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="coarse",
    version="0.1.0",
    description="Data-parallel training over memory devices that synchronise gradients themselves",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["coarse", "coarse.*", "tf_strategy", "tf_strategy.*"]),
    package_data={"coarse.hardware": ["presets/*.toml"]},
    install_requires=["numpy>=1.26", "mpi4py>=4.1"],
    extras_require={
        "torch": ["torch>=2.9"],
        "cuda": ["cupy-cuda12x>=13"],
        "finetune": ["peft>=0.21", "tokenizers>=0.22", "transformers>=5"],
        "report": ["matplotlib>=3.8", "rich>=13.8", "typer>=0.29"],
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
