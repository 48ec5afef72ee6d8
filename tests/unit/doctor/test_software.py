"""Backends that are missing or broken, disks and servers."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sweeprof.doctor import software

TORCH = {"_target_": "sweeprof.backends.fake.FakeBackend", "framework": "torch"}


def test_a_backend_that_is_not_installed() -> None:
    found = software.missing("tvm", {**TORCH, "framework": "tvm"})
    assert found is not None
    assert (found.value, found.reason) == (None, "tvm is not installed")
    assert found.advice is not None
    assert found.advice.command == "pip install 'sweeprof[tvm]'"


@pytest.mark.parametrize("framework", ["fake", "torch", "onnx", "litert", "jax", "tensorflow"])
def test_a_backend_that_is_installed(framework: str) -> None:
    assert software.missing(framework, {**TORCH, "framework": framework}) is None


def test_a_compiled_backend_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.missing("torch", TORCH) is None
    monkeypatch.setenv("PATH", "")
    found = software.missing("torch_compile", {**TORCH, "compile": True})
    assert found is not None
    assert str(found.reason).endswith("is installed, a C++ compiler is not")


def test_a_backend_that_cannot_be_used_says_why() -> None:
    broken = {**TORCH, "_target_": "sweeprof.backends.absent.Backend"}
    found = software._row("torch", broken, software.probed(broken))
    assert found.value is None
    assert found.reason is not None
    assert "cannot be used: " in found.reason
    assert "absent" in found.reason


def test_a_backend_that_works_and_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.probed(TORCH)["devices"] == ["cpu"]
    monkeypatch.setattr(software, "PROBE_S", 0.01)
    assert software.probed(TORCH) == {"trouble": "did not answer within 0.01 s"}


def test_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = software.disk(tmp_path / "not" / "there" / "yet")
    assert found.name == f"writing a record in {tmp_path}"
    assert str(found.value).endswith(" ms")
    monkeypatch.setattr(software, "SLOW_DISK_S", 0.0)
    (slow,) = software.disk(tmp_path)
    assert slow.advice is not None
    (refused,) = software.disk(Path("/proc"))
    assert str(refused.reason).startswith("cannot be written: ")


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        (None, "none was named: --uri http://…"),
        ("sqlite:///runs.db", "only servers (http://, https://) are asked"),
        ("http://127.0.0.1:1", "does not answer: [Errno 111] Connection refused"),
        ("http://[bad", "does not answer: Invalid IPv6 URL"),
    ],
)
def test_trackers_that_do_not_answer(uri: str | None, reason: str) -> None:
    (found,) = software.tracking(uri)
    assert (found.value, found.reason) == (None, reason)


@pytest.mark.parametrize(
    ("said", "expected"),
    [(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK", "answers: 200"), (b"SSH-2.0-x\r\n", None)],
)
def test_a_server_is_asked_without_its_password_and_one_of_another_kind_does_not_answer(
    said: bytes, expected: str | None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(answer_once, server, said)
        (found,) = software.tracking(f"http://ann:secret@127.0.0.1:{server.getsockname()[1]}")
    assert found.value == expected
    if expected:
        assert found.reason is None
    else:
        assert str(found.reason).startswith("does not answer: ")
    assert "secret" not in str(found)


def answer_once(server: socket.socket, said: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        assert b"/health" in connection.recv(1 << 16)
        connection.sendall(said)
