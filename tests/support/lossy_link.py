"""Two hosts with a bad line between them, on one machine: two network namespaces, each with a TUN device, and this
program between the two, which delays every packet and drops some.

    python lossy_link.py NAMESPACE NAMESPACE DELAY_SECONDS LOSS SEED

The namespaces exist. The first host is 10.77.0.1, the second 10.77.0.2. Prints a line when packets pass, then reads
lines: "down" drops everything, "up" ends that. Ends with its standard input. (Linux, Documentation/networking/tuntap.)
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x0001 | 0x1000
CLONE_NEWNET = 0x40000000


def open_tun(namespace: str, address: str, peer: str) -> int:
    """A TUN device in a namespace, up, with an address. The descriptor works from anywhere."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as place:
        if libc.setns(place.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", b"swx0", IFF_TUN_NO_PI))
    for command in (f"addr add {address} peer {peer} dev swx0", "link set swx0 up mtu 1400", "link set lo up"):
        subprocess.run(["ip", *command.split()], check=True)
    return tun


def main() -> None:
    first, second, delay, loss, seed = sys.argv[1:]
    tuns = [open_tun(first, "10.77.0.1", "10.77.0.2"), open_tun(second, "10.77.0.2", "10.77.0.1")]
    other = {tuns[0]: tuns[1], tuns[1]: tuns[0]}
    luck = random.Random(int(seed))
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    down = False
    print("up", flush=True)
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([*tuns, 0], [], [], pause)
        now = time.monotonic()
        if 0 in ready:
            line = os.read(0, 100)
            if not line:
                return
            down = line.startswith(b"down")
        for tun in tuns:
            if tun in ready:
                packet = os.read(tun, 2000)
                if not down and luck.random() >= float(loss):
                    count += 1
                    heapq.heappush(waiting, (now + float(delay), count, other[tun], packet))
        while waiting and waiting[0][0] <= now:
            _, _, tun, packet = heapq.heappop(waiting)
            if not down:
                os.write(tun, packet)


if __name__ == "__main__":
    main()
