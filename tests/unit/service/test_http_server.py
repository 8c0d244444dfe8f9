"""Certificates and keys that a server cannot use."""

import os
import re

import pytest

from models.errors import InputError
from service.http_server import tls_context
from service.settings import Settings
from tests.support.certificates import write_certificate

CERTIFICATE, KEY = "GRAMOPHONE_TLS_CERTIFICATE", "GRAMOPHONE_TLS_KEY"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write two pairs, an encrypted key, both of a pair in one file, and files that are neither."""
    folder = tmp_path_factory.mktemp("tls")
    (folder / "locked").mkdir()
    (folder / "other").mkdir()
    certificate, key = write_certificate(folder)
    write_certificate(folder / "other")
    write_certificate(folder / "locked", password=b"secret")
    (folder / "both.pem").write_bytes(certificate.read_bytes() + key.read_bytes())
    (folder / "cut.pem").write_bytes(certificate.read_bytes()[:300])
    (folder / "cut-key.pem").write_bytes(key.read_bytes()[:100])
    (folder / "text").write_text("certificate")
    (folder / "large").write_bytes(bytes(1 << 21))
    (folder / "device").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")
    return folder


def context(folder, certificate, key):
    """Read files of a folder; None leaves a setting unset."""
    files = {"tls_certificate": certificate, "tls_key": key}
    return tls_context(Settings(**{name: folder / file for name, file in files.items() if file is not None}))


def test_a_pair_makes_a_context_and_no_pair_makes_none(folder):
    assert context(folder, "certificate.pem", "key.pem").minimum_version.name == "TLSv1_2"
    assert context(folder, "both.pem", "both.pem")
    assert context(folder, None, None) is None


@pytest.mark.parametrize(
    ("certificate", "key", "told"),
    [
        ("certificate.pem", None, f"{KEY} is unset: set both"),
        (None, "key.pem", f"{CERTIFICATE} is unset: set both"),
        ("none", "key.pem", rf"{CERTIFICATE} is \S+/none: No such file"),
        ("certificate.pem", "none", rf"{KEY} is \S+/none: No such file"),
        ("other", "key.pem", rf"{CERTIFICATE} is \S+/other: Is a directory"),
        ("pipe", "key.pem", rf"{CERTIFICATE} is \S+/pipe: it is not a regular file"),
        ("certificate.pem", "device", rf"{KEY} is \S+/device: it is not a regular file"),
        ("certificate.pem", "large", rf"{KEY} is \S+/large: it has more than 1048576 bytes"),
        ("text", "key.pem", rf"{CERTIFICATE} is \S+/text: it is not a certificate"),
        ("cut.pem", "key.pem", rf"{CERTIFICATE} is \S+/cut.pem: it is not a certificate"),
        ("key.pem", "key.pem", rf"{CERTIFICATE} is \S+/key.pem: it is not a certificate"),
        ("certificate.pem", "text", rf"{KEY} is \S+/text: it is not a private key"),
        ("certificate.pem", "cut-key.pem", rf"{KEY} is \S+/cut-key.pem: it is not a private key"),
        ("certificate.pem", "certificate.pem", rf"{KEY} is \S+/certificate.pem: it is not a private key"),
        ("certificate.pem", "other/key.pem", rf"{KEY} is \S+/key.pem: it does not fit \S+/certificate.pem"),
        ("locked/certificate.pem", "locked/key.pem", rf"{KEY} is \S+/key.pem: it is encrypted"),
    ],
)
def test_unusable_certificate_or_key_is_named(folder, certificate, key, told):
    with pytest.raises(InputError, match=f"^{told}") as refused:
        context(folder, certificate, key)
    assert "\n" not in str(refused.value)
    assert refused.value.param == re.match(r"\w+", told)[0]
