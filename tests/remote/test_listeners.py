"""Where a server listens, and what it says if it cannot."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import InvalidInputError, ResourceError
from swerex_c.remote.server.listeners import Listeners, ServeOptions


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"host": None}, InvalidInputError, "neither on a port nor on a unix socket"),
        ({"host": "192.0.2.1"}, ResourceError, "Cannot listen on port 0 of 192.0.2.1: Cannot assign requested address"),
        ({"host": "no.such.host.invalid"}, ResourceError, "Cannot listen on no.such.host.invalid: "),
        ({"tls_key": "key.pem"}, InvalidInputError, "A TLS key was given without a certificate"),
        ({"tls_cert": "none"}, ResourceError, "is in none: No such file or directory"),
        ({"tls_cert": "cert.pem", "tls_key": "none"}, ResourceError, "is in cert.pem and none: No such file"),
        ({"tls_cert": "cert.pem"}, ResourceError, "No TLS certificate with its key (without a passphrase) is in cert"),
        ({"tls_cert": "key.pem", "tls_key": "key.pem"}, ResourceError, "No TLS certificate with its key"),
        ({"host": None, "unix": "cert.pem"}, ResourceError, "something else is there already"),
        ({"host": None, "unix": "none/socket"}, ResourceError, "No such file"),
        ({"host": None, "unix": "x" * 200}, ResourceError, "the path is too long"),
    ],
)
def test_what_cannot_be_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    certificate: tuple[Path, Path],
    options: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in certificate:
        shutil.copy(path, tmp_path)
    with pytest.raises(error) as caught:
        Listeners(ServeOptions(port=0, **options))
    assert says in str(caught.value)
    assert sorted(os.listdir()) == ["cert.pem", "key.pem"]
    assert (tmp_path / "cert.pem").read_text() == certificate[0].read_text()


def test_all_addresses_of_a_host_have_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [("127.0.0.1", 0), ("127.0.0.2", 0), ("192.0.2.1", 0)]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with contextlib.closing(Listeners(ServeOptions(host="all.of.them", port=0))) as listeners:
        port = listeners.addresses.port
        assert [one.getsockname() for one in listeners.all] == [("127.0.0.1", port), ("127.0.0.2", port)]
        assert str(listeners.addresses) == f"http://all.of.them:{port}"


def test_a_client_that_vanishes_is_noticed() -> None:
    listeners = Listeners(ServeOptions(port=0))
    with contextlib.closing(listeners), socket.create_connection(("127.0.0.1", listeners.addresses.port or 0)):
        accepted, _ = listeners.all[0].accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000


def test_a_unix_socket_belongs_to_one_user_and_one_server(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    options = ServeOptions(port=0, unix=str(path))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with contextlib.closing(Listeners(options)) as listeners:  # a dead server's is replaced
        assert str(listeners.addresses) == f"http://127.0.0.1:{listeners.addresses.port} and unix://{path}"
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
        with pytest.raises(ResourceError, match="another server does"):
            Listeners(options)
        path.unlink()
        new = Listeners(options)
    assert path.exists(), "another server's is not removed"
    new.close()
    assert not path.exists()
