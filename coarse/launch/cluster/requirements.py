# Pure: no MPI, threads, clock or environment.
"""What a machine must have for a cluster in a box: capabilities of this process, and programs."""

from collections.abc import Callable

from coarse.errors import ClusterError

CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""Name -> bit (capabilities(7)): to make links and limit them; to unshare, enter and mount."""
PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount or util-linux",
    "hostname": "hostname",
    "env": "coreutils",
}
"""Name -> the package that usually has it."""


def require_capabilities(status_text: str) -> None:
    """Raise ClusterError unless /proc/self/status, as given, shows all that are needed."""
    fields = dict(line.split(":", 1) for line in status_text.splitlines() if ":" in line)
    effective = int(fields.get("CapEff", "0").strip(), 16)
    lacking = [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]
    if lacking:
        raise ClusterError(
            f"--cluster makes network namespaces, which needs root ({' and '.join(CAPABILITIES)}), and this process "
            f"lacks {' and '.join(lacking)}; run it as root (in a container: with both capabilities added), or below "
            "`unshare --user --map-root-user` where the kernel lets users have namespaces, or use a real cluster"
        )


def require_programs(find: Callable[[str], str | None]) -> None:
    """Raise ClusterError unless `find` (as shutil.which) finds all programs."""
    lacking = {name: package for name, package in PROGRAMS.items() if not find(name)}
    if lacking:
        packages = " and ".join(sorted(set(lacking.values())))
        raise ClusterError(
            f"--cluster needs the programs {', '.join(PROGRAMS)}, and {', '.join(lacking)} cannot be found on PATH; "
            f"install {packages}, or extend PATH (/usr/sbin may be missing from it)"
        )
