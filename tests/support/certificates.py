"""Certificates for 127.0.0.1 and localhost, and clients that trust them."""

import datetime as dt
import ipaddress
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = dt.timedelta(days=1)


def write_certificate(folder, password=None):
    """Write a new certificate that signs itself, and its key; return both paths.

    Args:
        folder: place of the files.
        password: of the key; None for a key without.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - _DAY).not_valid_after(now + _DAY)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    cipher = serialization.NoEncryption()
    if password is not None:
        cipher = serialization.BestAvailableEncryption(password)
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(pem))
    paths[1].write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, cipher))
    return paths


def trusting(certificate, **options):
    """Return the TLS options of a client that trusts a certificate; True, the default of httpx, for None."""
    if certificate is None:
        return True
    context = ssl.create_default_context(cafile=certificate)
    for name, value in options.items():
        setattr(context, name, value)
    return context
