"""One encoder for several processes: the same features over a socket, and a clear error while it is gone."""

import os
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.serving.processes.encoder_process import EncoderServer, RemoteEncoder
from ragbandit.shared.errors import NotReady, RagBanditError

QUESTIONS = ["Who wrote Dracula?", "", "Was weiß man? \U0001f9db", "x" * 100_000]


@contextmanager
def serving(path, *, dimension=8, encoder=None):
    server = EncoderServer(encoder or HashingEncoder(dimension=dimension), path=path)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(10)
        assert not thread.is_alive()


def test_same_features(tmp_path):
    """An encoder that is asked over the socket has the features, the dimension and the hash of the one behind it."""
    path, encoder = tmp_path / "encoder.sock", HashingEncoder(dimension=8)
    with serving(path):
        remote = RemoteEncoder(path)
        assert (remote.dimension, remote.hash, remote.source) == (8, encoder.hash, encoder.source)
        np.testing.assert_array_equal(remote.encode(QUESTIONS), encoder.encode(QUESTIONS))
        assert remote.encode([]).shape == (0, 8)
        assert path.stat().st_mode & 0o777 == 0o600
        remote.close()


def test_requests_of_several_processes_share_a_batch(tmp_path):
    """Requests that wait while one is encoded are encoded together, and each gets its own rows."""
    sizes, entered, released = [], threading.Event(), threading.Event()

    class Held(HashingEncoder):
        def encode(self, texts):
            sizes.append(len(texts))
            entered.set()
            assert released.wait(20)
            return super().encode(texts)

    path, plain = tmp_path / "encoder.sock", HashingEncoder(dimension=8)
    with serving(path, encoder=Held(dimension=8)) as server, ThreadPoolExecutor(5) as pool:
        remotes = [RemoteEncoder(path) for _ in range(5)]
        asked = [[f"question {at}"] * (at + 1) for at in range(5)]
        first = pool.submit(remotes[0].encode, asked[0])
        assert entered.wait(10)
        others = [pool.submit(remote.encode, texts) for remote, texts in zip(remotes[1:], asked[1:], strict=True)]
        while server.batcher.depth() < 4:
            threading.Event().wait(0.005)
        released.set()
        for future, texts in zip([first, *others], asked, strict=True):
            np.testing.assert_array_equal(future.result(20), plain.encode(texts))
        for remote in remotes:
            remote.close()
    assert sizes == [1, 2 + 3 + 4 + 5]


def test_an_encoder_that_is_gone_comes_back(tmp_path):
    """While the encoder process does not run the error is NotReady; the same encoder works again when it is back."""
    path = tmp_path / "encoder.sock"
    with pytest.raises(NotReady, match="does not run"):
        RemoteEncoder(path)
    with serving(path):
        remote = RemoteEncoder(path)
        assert remote.encode(QUESTIONS).shape == (4, 8)
        remote._connection.shutdown(socket.SHUT_RDWR)  # as when the process is killed
        with pytest.raises(NotReady):
            remote.encode(QUESTIONS)
    with pytest.raises(NotReady):
        remote.encode(QUESTIONS)
    with serving(path):
        assert remote.encode(QUESTIONS).shape == (4, 8)
        remote.close()


def test_another_encoder_is_refused(tmp_path):
    """An encoder process that comes back with other weights is refused: its features are others."""
    path = tmp_path / "encoder.sock"
    with serving(path):
        remote = RemoteEncoder(path)
        remote.close()
    with serving(path, dimension=16), pytest.raises(RagBanditError, match="another encoder"):
        remote.encode(QUESTIONS)


def test_a_broken_request_harms_nobody_else(tmp_path):
    """A request that cannot be encoded, and a frame that is too long, end where they came from."""
    path = tmp_path / "encoder.sock"
    with serving(path):
        remote, other = RemoteEncoder(path), RemoteEncoder(path)
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(path))
            raw.sendall(b"\xff\xff\xff\xff")
            assert raw.recv(1 << 16)  # it says what it is
            assert raw.recv(1 << 16) == b""
        with pytest.raises(RagBanditError, match="the encoder process said"):
            other.encode([None])  # type: ignore[list-item] # what no caller of ours sends
        assert remote.encode(QUESTIONS).shape == (4, 8)
        remote.close()
        other.close()


def test_no_files_left_for_a_moment(tmp_path):
    """An encoder process that may open no more files for a moment accepts the connections that came meanwhile."""
    path = tmp_path / "encoder.sock"
    with serving(path), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            connection.connect(str(path))
            time.sleep(0.15)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert b'"dimension": 8' in connection.recv(1000)
