"""Lay a writable layer over this machine's files, and run a program that sees both. A program of its own, as _enter is.

    python -I -S _overlay.py PLACE SKIPPED PROGRAM [ARGUMENT...]

In a mount namespace of our own a tmpfs is mounted at the directory PLACE; PLACE/root then is the machine's tree, and
what is written there goes into the tmpfs, which ends with the namespace. SKIPPED: absolute paths, joined by ":", that
are left empty. One who is not root is root of a user namespace afterwards.
"""

import ctypes
import os
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
    """A path of mountinfo, in which some characters are octal."""
    parts = path.split("\\")
    return parts[0] + "".join(chr(int(part[:3], 8)) + part[3:] for part in parts[1:])


def escaped(path: str) -> str:
    for character in "\\:,":
        path = path.replace(character, "\\" + character)
    return path


class Tree:
    def __init__(self, place: str, skipped: list[str], user: bool) -> None:
        self.place, self.skipped, self.user = place, {*skipped, place}, user
        self.layers = 0
        self.mounts: dict[str, str] = {}
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            for line in file:
                before, _, after = line.partition(" - ")
                self.mounts[plain(before.split()[4])] = after.split()[0]

    def target(self, path: str) -> str:
        return f"{self.place}/root{path.rstrip('/')}"

    def below(self, path: str) -> list[str]:
        """The mount points below a directory, those below others of them left out."""
        inside = sorted(it for it in self.mounts if it.startswith(path.rstrip("/") + "/") and it != path)
        return [it for i, it in enumerate(inside) if not any(it.startswith(other + "/") for other in inside[:i])]

    def lay(self, path: str) -> None:
        """Have a directory of the machine, with all below it, at its target, which is an empty directory."""
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
            except OSError:  # hidden by another mount, or not for us to see
                continue

    def overlay(self, path: str) -> None:
        self.layers += 1
        layer = f"{self.place}/layers/{self.layers}"
        status = os.stat(path)
        os.makedirs(f"{layer}/work")
        os.mkdir(f"{layer}/upper")
        if not self.user:
            os.chown(f"{layer}/upper", status.st_uid, status.st_gid)
        os.chmod(f"{layer}/upper", status.st_mode & 0o7777)
        data = f"lowerdir={escaped(path)},upperdir={layer}/upper,workdir={layer}/work"
        mount("overlay", self.target(path), "overlay", NOSUID | NODEV, data + (",userxattr" if self.user else ""))

    def piecewise(self, path: str) -> None:
        """As `lay`, where what is mounted below the directory may not be taken away from it, or it takes no layer."""
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

    def bind(self, path: str) -> None:
        """Have something of the machine at its target as it is, to be read only; or not at all."""
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
    """What a mount may not do already, and has to go on not doing."""
    now = os.statvfs(target).f_flag
    pairs = ((os.ST_NOEXEC, 8), (os.ST_NOATIME, 1024), (os.ST_NODIRATIME, 2048), (os.ST_RELATIME, 1 << 21))
    return sum(flag for bit, flag in pairs if now & bit)


def main() -> int:
    place, skipped, *argv = sys.argv[1:]
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
        mount("tmpfs", place, "tmpfs", NOSUID | NODEV, "mode=0755")
        os.mkdir(f"{place}/layers")
        os.mkdir(f"{place}/root")
        if user:
            try:
                os.setxattr(f"{place}/layers", "user.overlay.test", b"1")
            except OSError:
                raise OSError(95, "one who is not root needs Linux 6.6 for it") from None
        for name in ("lower", "upper", "work", "probe"):
            os.makedirs(f"{place}/probe/{name}")
        layer = f"lowerdir={place}/probe/lower,upperdir={place}/probe/upper,workdir={place}/probe/work"
        mount("overlay", f"{place}/probe/probe", "overlay", 0, layer + (",userxattr" if user else ""))
    except OSError as error:
        os.write(2, os.fsencode(f"No layer can be laid over the machine's files: {error.strerror}\n"))
        return 125
    Tree(place, skipped.split(":"), user).lay("/")
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    sys.exit(main())
