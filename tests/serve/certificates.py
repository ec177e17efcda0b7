"""Certificates for tests of TLS, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(folder: Path) -> dict[str, str]:
    """For 127.0.0.1, trusted by nobody else; as options of `serve`."""
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "1", *subject]
    subprocess.run(make, cwd=folder, check=True, capture_output=True)
    return {"certificate": str(folder / "cert.pem"), "private_key": str(folder / "key.pem")}
