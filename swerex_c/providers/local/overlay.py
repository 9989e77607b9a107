"""Script that runs a program on this machine's files with a writable layer.

Like enter.py, it needs Python, but no site-packages:

    python -I -S overlay.py BASE PATHS PROGRAM [ARGUMENT...]

The script mounts a tmpfs at the directory BASE in a new mount namespace. BASE/root is then the machine's tree; writes
to it go to the tmpfs, which ends with the namespace. PATHS is a JSON array of two lists of absolute paths: directories
to leave empty, and files to hide. A user other than root becomes root of a new user namespace.
"""

import ctypes
import json
import os
import signal
import sys

NEWNS, NEWUSER = 0x20000, 0x10000000
RDONLY, REMOUNT, BIND, REC, PRIVATE, NOSUID, NODEV = 1, 32, 4096, 16384, 1 << 18, 2, 4
DETACH = 2
MOST_ENTRIES = 1000
NO_FILES = {
    "proc", "sysfs", "cgroup", "cgroup2", "devpts", "devtmpfs", "mqueue", "debugfs", "tracefs", "securityfs", "bpf",
    "pstore", "configfs", "fusectl", "binfmt_misc", "autofs", "hugetlbfs", "efivarfs", "rpc_pipefs", "nsfs",
}  # fmt: skip

libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [os.fsencode(word) for word in (source, target, kind, data)]
    if libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]):
        error = ctypes.get_errno()
        raise OSError(error, f"{kind or 'bind'} of {source} at {target}: {os.strerror(error)}")


def plain(path: str) -> str:
    """Decode a path of mountinfo, which contains octal escapes."""
    parts = path.split("\\")
    return parts[0] + "".join(chr(int(part[:3], 8)) + part[3:] for part in parts[1:])


def escaped(path: str) -> str:
    for character in "\\:,":
        path = path.replace(character, "\\" + character)
    return path


class Tree:
    def __init__(self, base: str, skipped: list[str], user: bool) -> None:
        self.base, self.skipped, self.user = base, {*skipped, base}, user
        self.layers = 0
        self.mounts: dict[str, str] = {}
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            for line in file:
                before, _, after = line.partition(" - ")
                self.mounts[plain(before.split()[4])] = after.split()[0]

    def target(self, path: str) -> str:
        return f"{self.base}/root{path.rstrip('/')}"

    def below(self, path: str) -> list[str]:
        """Return the outermost mount points below a directory."""
        inside = sorted(it for it in self.mounts if it.startswith(path.rstrip("/") + "/") and it != path)
        return [it for i, it in enumerate(inside) if not any(it.startswith(other + "/") for other in inside[:i])]

    def lay(self, path: str) -> None:
        """Overlay a directory and its submounts at its target, an empty directory."""
        if path in self.skipped or self.mounts.get(path) in NO_FILES:
            return
        try:
            self.overlay(path)
        except OSError:
            self.piecewise(path)
            return
        for point in self.below(path):
            target = self.target(point)
            try:
                if os.path.isdir(target):
                    self.lay(point)
                elif os.path.exists(target):
                    self.bind(point)
            except OSError:  # hidden by another mount, or not accessible to this user
                continue

    def overlay(self, path: str) -> None:
        self.layers += 1
        layer = f"{self.base}/layers/{self.layers}"
        status = os.stat(path)
        os.makedirs(f"{layer}/work")
        os.mkdir(f"{layer}/upper")
        if not self.user:
            os.chown(f"{layer}/upper", status.st_uid, status.st_gid)
        os.chmod(f"{layer}/upper", status.st_mode & 0o7777)
        data = f"lowerdir={escaped(path)},upperdir={layer}/upper,workdir={layer}/work"
        mount("overlay", self.target(path), "overlay", NOSUID | NODEV, data + (",userxattr" if self.user else ""))

    def piecewise(self, path: str) -> None:
        """Overlay a directory entry by entry, where `lay` cannot overlay it whole.

        This is for a directory with locked submounts, or with no support for overlays. A directory without submounts,
        or with too many entries, is mounted read-only as a whole.
        """
        entries: list[os.DirEntry[str]] = []
        if path == "/" or self.below(path):
            try:
                entries = list(os.scandir(path))
            except OSError:
                return
        if not entries or len(entries) > MOST_ENTRIES:
            self.bind(path)
            return
        os.chmod(self.target(path), os.stat(path).st_mode & 0o7777)
        for entry in entries:
            target = self.target(entry.path)
            try:
                if entry.is_symlink():
                    os.symlink(os.readlink(entry.path), target)
                elif entry.is_dir():
                    os.mkdir(target)
                    self.lay(entry.path)
                else:
                    with open(target, "x"):
                        pass
                    self.bind(entry.path)
            except OSError:
                continue

    def hide(self, path: str) -> None:
        """Remove a file from the layer; if it is in no layer, mount /dev/null on it.

        A removed file stays hidden when the machine's file is replaced; a file under a mount does not.
        """
        target = self.target(path)
        try:
            os.unlink(target)
        except OSError:
            if os.path.lexists(target):
                mount("/dev/null", target, "", BIND)

    def bind(self, path: str) -> None:
        """Mount a path of the machine read-only at its target, or not at all."""
        mount(path, self.target(path), "", BIND | REC)
        inside = [it for it in self.mounts if it.startswith(path.rstrip("/") + "/")]
        try:
            for each in (path, *inside):
                target = self.target(each)
                if os.path.lexists(target):
                    mount("", target, "", BIND | REMOUNT | RDONLY | NOSUID | NODEV | held(target))
        except OSError:
            libc.umount2(os.fsencode(self.target(path)), DETACH)
            raise


def held(target: str) -> int:
    """Return the flags that a mount already has and must keep when remounted."""
    now = os.statvfs(target).f_flag
    pairs = ((os.ST_NOEXEC, 8), (os.ST_NOATIME, 1024), (os.ST_NODIRATIME, 2048), (os.ST_RELATIME, 1 << 21))
    return sum(flag for bit, flag in pairs if now & bit)


def main() -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the program waits for its own children
    base, paths, *argv = sys.argv[1:]
    skipped, hidden = json.loads(paths)
    uid, gid = os.geteuid(), os.getegid()
    user = uid != 0
    try:
        if libc.unshare(NEWNS | (NEWUSER if user else 0)):
            error = ctypes.get_errno()
            raise OSError(error, f"unshare: {os.strerror(error)}")
        if user:
            for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        mount("", "/", "", REC | PRIVATE)
        mount("tmpfs", base, "tmpfs", NOSUID | NODEV, "mode=0755")
        os.mkdir(f"{base}/layers")
        os.mkdir(f"{base}/root")
        if user:
            try:
                os.setxattr(f"{base}/layers", "user.overlay.test", b"1")
            except OSError:
                raise OSError(95, "users other than root need Linux 6.6 for it") from None
        for name in ("lower", "upper", "work", "probe"):
            os.makedirs(f"{base}/probe/{name}")
        layer = f"lowerdir={base}/probe/lower,upperdir={base}/probe/upper,workdir={base}/probe/work"
        mount("overlay", f"{base}/probe/probe", "overlay", 0, layer + (",userxattr" if user else ""))
    except OSError as error:
        os.write(2, os.fsencode(f"Cannot mount an overlay over the machine's files: {error.strerror}\n"))
        return 125
    tree = Tree(base, skipped, user)
    tree.lay("/")
    for path in hidden:
        tree.hide(path)
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    sys.exit(main())
