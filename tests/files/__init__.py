"""Files and trees on this machine, and what happens when files block or the disk is full."""
