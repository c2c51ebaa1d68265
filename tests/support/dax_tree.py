"""A tree that stands for /sys with one devdax device, dax0.0, as 252:0."""

from pathlib import Path


def make_dax_tree(root: Path, size_bytes: int, align_bytes: int) -> None:
    """Make the folders and files that `coarse.storage.dax` reads of a device."""
    device = root / "devices" / "dax0.0"
    device.mkdir(parents=True)
    for driver in ("device_dax", "kmem"):
        (root / "bus" / "dax" / "drivers" / driver).mkdir(parents=True)
    for name, value in {"size": size_bytes, "align": align_bytes, "target_node": 2}.items():
        (device / name).write_text(f"{value}\n")
    (device / "subsystem").symlink_to(root / "bus" / "dax")
    (device / "driver").symlink_to(root / "bus" / "dax" / "drivers" / "device_dax")
    for link in (root / "bus" / "dax" / "devices" / "dax0.0", root / "dev" / "char" / "252:0"):
        link.parent.mkdir(parents=True)
        link.symlink_to(device)
