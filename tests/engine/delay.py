"""A line that takes its time: packets of a tun device come back into it so many milliseconds later.

    python delay.py DEVICE MILLISECONDS

The routes around the device see to it that what comes back goes on to where it was meant to go.
"""

import ctypes
import fcntl
import os
import select
import signal
import struct
import sys
import time
from collections import deque

PR_SET_PDEATHSIG = 1
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # <linux/if_tun.h>


def main(device: str, delay_s: float) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    print("ready", flush=True)
    waiting: deque[tuple[float, bytes]] = deque()  # (when it is due, packet)
    while True:
        pause_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        if select.select([tun], [], [], pause_s)[0]:
            waiting.append((time.monotonic() + delay_s, os.read(tun, 65536)))
        while waiting and waiting[0][0] <= time.monotonic():
            os.write(tun, waiting.popleft()[1])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) / 1000)
