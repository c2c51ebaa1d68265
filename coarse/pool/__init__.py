"""Messages between memory devices over a pool that their hosts share."""
