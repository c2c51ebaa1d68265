"""Models with states on memory devices and disks, which workers pull and push by the network (LuWu)."""
