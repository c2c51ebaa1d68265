"""Models whose states live on memory devices and disks, and that workers pull and push over the network (LuWu)."""
