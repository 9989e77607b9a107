"""Run a program in the namespaces of an isolated view. A program of its own, for Python with nothing of site-packages.

    python -I -S _enter.py PID MNT PIDNS CAPABILITIES DIRECTORY PROGRAM [ARGUMENT...]

PID is a process in the view, MNT and PIDNS are the numbers of its namespaces, so that no other process is taken for it.
The program gets no right over the view: nothing of the view's files runs before all capabilities but those of the mask
CAPABILITIES are gone for ever. It gets our environment, and DIRECTORY if that is there. Our exit code is its own, 128
and the signal's number if one ended it, 255 if the view is gone.
"""

import ctypes
import fcntl
import os
import sys
from signal import SIG_DFL, SIG_IGN, SIGINT, SIGPIPE, SIGQUIT, SIGTSTP, SIGXFSZ, signal

NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
NS_GET_USERNS = 0xB701
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4
CAPABILITY_VERSION_3 = 0x20080522
LOST = 255

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def enter(namespace: int, kind: int, what: str) -> None:
    checked(libc.setns(namespace, kind), f"setns({what})")


def drop(kept: int, last: int) -> None:
    """Give up all capabilities (of which `last` is the last) but those of the mask, and every way to get some back."""
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(no_new_privs)")
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(last + 1):
        if not kept >> capability & 1:
            checked(libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), "prctl(capbset_drop)")
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    # What we have: effective, permitted, inheritable, the low halves before the high ones.
    sets = (ctypes.c_uint32 * 6)()
    checked(libc.capget(header, sets), "capget")
    for half in (0, 1):
        mask = kept >> (32 * half) & 0xFFFFFFFF
        sets[3 * half], sets[3 * half + 1], sets[3 * half + 2] = mask & sets[3 * half + 1], mask & sets[3 * half + 1], 0
    checked(libc.capset(header, sets), "capset")


def run(argv: list[str], environment: dict[bytes, bytes]) -> int:
    """Become the program; the exit code that says why not."""
    for number in (SIGINT, SIGPIPE, SIGXFSZ):  # with these Python does what no program expects
        signal(number, SIG_DFL)
    try:
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        os.write(2, os.fsencode(f"{argv[0]}: command not found\n"))
        return 127
    except OSError as error:
        os.write(2, os.fsencode(f"{argv[0]}: {error.strerror}\n"))
        return 126


def main() -> int:
    pid, mount, process, kept, directory, *argv = sys.argv[1:]
    # Not os.environ: Python may have put a locale into it.
    with open("/proc/self/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0")[:-1]]
    environment = {name: value for name, equals, value in pairs if equals}
    with open("/proc/sys/kernel/cap_last_cap") as limit:
        last = int(limit.read())
    try:
        kinds = {"net": NEWNET, "ipc": NEWIPC, "uts": NEWUTS, "cgroup": NEWCGROUP}
        found = {name: os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in ("mnt", "pid", "user", *kinds)}
        if [os.fstat(found[name]).st_ino for name in ("mnt", "pid")] != [int(mount), int(process)]:
            raise OSError(3, "another process has its number")
        owner = fcntl.ioctl(found["mnt"], NS_GET_USERNS)
        user, mine = os.fstat(found["user"]), os.stat("/proc/self/ns/user")
        own = os.fstat(owner)
        # What the view shares with the machine it may not be allowed to enter.
        others = {it for it in kinds if os.fstat(found[it]).st_ino != os.stat(f"/proc/self/ns/{it}").st_ino}
        if own.st_ino != mine.st_ino:
            enter(owner, NEWUSER, "user")
        enter(found["pid"], NEWPID, "pid")
        child = os.fork()
    except OSError as error:
        os.write(2, os.fsencode(f"The isolated view cannot be entered: {error.strerror}\n"))
        return LOST
    if child:
        for number in (SIGINT, SIGQUIT, SIGTSTP):  # meant for what runs inside
            signal(number, SIG_IGN)
        null = os.open("/dev/null", os.O_RDWR)
        for stream in (0, 1, 2):  # or the program's end of a pipe would not be the end
            os.dup2(null, stream)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code if code >= 0 else 128 - code
    try:
        # From here until all rights are dropped nothing may be imported or opened: the files are the view's.
        for name, kind in kinds.items():
            if name in others:
                enter(found[name], kind, name)
        enter(found["mnt"], NEWNS, "mnt")
        if user.st_ino != own.st_ino:
            enter(found["user"], NEWUSER, "user")
        try:
            os.chdir(directory)
        except OSError:
            os.chdir("/")
        drop(int(kept, 16), last)
        os.closerange(3, 1 + max(*found.values(), owner))
    except OSError as error:
        os.write(2, os.fsencode(f"The isolated view cannot be entered: {error.strerror}\n"))
        os._exit(LOST)
    os._exit(run(argv, environment))


if __name__ == "__main__":
    sys.exit(main())
