"""Script that runs a program in the namespaces of an isolated view.

It needs Python, but no site-packages:

    python -I -S enter.py PID MNT PIDNS CAPABILITIES DIRECTORY PROGRAM [ARGUMENT...]

PID is a process in the view. MNT and PIDNS are the inode numbers of its namespaces, which detect a reused PID. The
program gets no rights over the view: no file of the view runs before all capabilities outside the mask CAPABILITIES
are dropped for good. Keyrings belong to users and not to namespaces, so the system calls for keys are refused. The
program gets this script's environment, and DIRECTORY as its working directory if it exists. The exit code is the
program's, 128 plus the number of the signal that ended it, or 255 if the view is gone.
"""

import ctypes
import fcntl
import os
import struct
import sys
import warnings  # noqa: F401 - os.execvpe imports it, when this Python may be out of reach
from errno import EPERM
from signal import SIG_DFL, SIG_IGN, SIGCHLD, SIGINT, SIGPIPE, SIGQUIT, SIGTSTP, SIGXFSZ, signal

NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
NS_GET_USERNS = 0xB701
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 22, 24, 38, 47, 4
SECCOMP_MODE_FILTER, SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW = 2, 0x50000, 0x7FFF0000
BPF_LOAD, BPF_AND, BPF_JEQ, BPF_JGE, BPF_RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
NUMBER, ARCHITECTURE = 0, 4  # offsets in what a filter can load
X32 = 0x40000000  # bit in the numbers of x86_64's calls with 32-bit pointers
# The first of three consecutive system calls, add_key, request_key and keyctl: x86_64, i386, aarch64, arm.
KEY_CALLS = {0xC000003E: 248, 0x40000003: 286, 0xC00000B7: 217, 0x40000028: 309}
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
    """Permanently drop all capabilities up to `last` that are not in the mask `kept`."""
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(no_new_privs)")
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(last + 1):
        if not kept >> capability & 1:
            checked(libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), "prctl(capbset_drop)")
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    # Effective, permitted and inheritable capabilities, the low halves before the high halves.
    sets = (ctypes.c_uint32 * 6)()
    checked(libc.capget(header, sets), "capget")
    for half in (0, 1):
        mask = kept >> (32 * half) & 0xFFFFFFFF
        sets[3 * half], sets[3 * half + 1], sets[3 * half + 2] = mask & sets[3 * half + 1], mask & sets[3 * half + 1], 0
    checked(libc.capset(header, sets), "capset")


def refuse_keys() -> None:
    """Refuse the system calls for keys for good, with the error that they have in a container."""
    code = [(BPF_LOAD, 0, 0, ARCHITECTURE)]
    for architecture, first in KEY_CALLS.items():
        code += [
            (BPF_JEQ, 0, 6, architecture),  # else go on with the next architecture
            (BPF_LOAD, 0, 0, NUMBER),
            (BPF_AND, 0, 0, 0xFFFFFFFF - X32),
            (BPF_JGE, 2, 0, first + 3),
            (BPF_JGE, 0, 1, first),
            (BPF_RETURN, 0, 0, SECCOMP_RET_ERRNO + EPERM),
            (BPF_RETURN, 0, 0, SECCOMP_RET_ALLOW),
        ]
    code.append((BPF_RETURN, 0, 0, SECCOMP_RET_ALLOW))
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = struct.pack("HP", len(code), ctypes.addressof(text))
    checked(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0), "prctl(seccomp)")


def run(argv: list[str], environment: dict[bytes, bytes]) -> int:
    """Replace this process with the program; return the exit code of a failed exec."""
    for number in (SIGINT, SIGPIPE, SIGXFSZ):  # Python changes these signals, which programs do not expect
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
    signal(SIGCHLD, SIG_DFL)  # ignored, as a parent can hand it down, it would discard the program's exit code
    pid, mount, process, kept, directory, *argv = sys.argv[1:]
    # Not os.environ, because Python may have added a locale to it.
    with open("/proc/self/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0")[:-1]]
    environment = {name: value for name, equals, value in pairs if equals}
    with open("/proc/sys/kernel/cap_last_cap") as limit:
        last = int(limit.read())
    try:
        kinds = {"net": NEWNET, "ipc": NEWIPC, "uts": NEWUTS, "cgroup": NEWCGROUP}
        found = {name: os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in ("mnt", "pid", "user", *kinds)}
        if [os.fstat(found[name]).st_ino for name in ("mnt", "pid")] != [int(mount), int(process)]:
            raise OSError(3, "another process has its process id")
        owner = fcntl.ioctl(found["mnt"], NS_GET_USERNS)
        user, mine = os.fstat(found["user"]), os.stat("/proc/self/ns/user")
        own = os.fstat(owner)
        # Namespaces shared with the machine need not be entered, and may not be enterable.
        others = {it for it in kinds if os.fstat(found[it]).st_ino != os.stat(f"/proc/self/ns/{it}").st_ino}
        if own.st_ino != mine.st_ino:
            enter(owner, NEWUSER, "user")
        enter(found["pid"], NEWPID, "pid")
        child = os.fork()
    except OSError as error:
        os.write(2, os.fsencode(f"Cannot enter the isolated view: {error.strerror}\n"))
        return LOST
    if child:
        for number in (SIGINT, SIGQUIT, SIGTSTP):  # signals meant for the program inside
            signal(number, SIG_IGN)
        null = os.open("/dev/null", os.O_RDWR)
        for stream in (0, 1, 2):  # otherwise closing a pipe in the program would not close it
            os.dup2(null, stream)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code if code >= 0 else 128 - code
    try:
        # Until all rights are dropped nothing may be imported or opened, because the files are the view's.
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
        refuse_keys()
        os.closerange(3, 1 + max(*found.values(), owner))
    except OSError as error:
        os.write(2, os.fsencode(f"Cannot enter the isolated view: {error.strerror}\n"))
        os._exit(LOST)
    os._exit(run(argv, environment))


if __name__ == "__main__":
    sys.exit(main())
