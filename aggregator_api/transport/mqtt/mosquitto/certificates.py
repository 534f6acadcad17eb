"""A certificate authority for one installation, and the certificates of broker and server under it (X.509, P-256)."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aggregator_api.core.errors import ConfigError

CA_DAYS = 3650
EARLY = datetime.timedelta(hours=1)
"""Certificates are valid from a little before now: a device's clock may be behind."""


class CertifiedKey(NamedTuple):
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes


def make_authority(name: str, *, days: int = CA_DAYS) -> CertifiedKey:
    """Make a certificate authority that signs server certificates and nothing below them."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(name)
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def issue(authority: CertifiedKey, hosts: Sequence[str], *, days: int) -> CertifiedKey:
    """Issue a server certificate for host names and addresses, with a key of its own.

    Raises:
        ConfigError: for no host, a host that no certificate can name, or an authority that cannot be read.
    """
    if not hosts:
        raise ConfigError("a server certificate needs at least one host name or address; give --host")
    parent, parent_key = _read(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    # a common name holds 64 characters; clients look at the alternative names
    builder = (
        _builder(_named(hosts[0][:64]), parent.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(parent_key.public_key()),
            critical=False,
        )
    )
    return _pair(builder.sign(parent_key, hashes.SHA256()), key)


def hosts_of(certificate: bytes) -> tuple[str, ...]:
    """Return the names and addresses that a certificate is for.

    Raises:
        ConfigError: if it cannot be read as PEM.
    """
    try:
        found = x509.load_pem_x509_certificate(certificate)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise ConfigError(f"the certificate that is there cannot be read: {error}; give its names by --host") from error
    return tuple(str(name.value) for name in names)


def _read(authority: CertifiedKey) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(authority.certificate)
        key = serialization.load_pem_private_key(authority.key, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the certificate authority cannot be read as PEM: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"the authority's key is a {type(key).__name__}; expected an elliptic curve's")
    return certificate, key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"--host {host!r} is neither an address nor a host name in ASCII") from error


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> CertifiedKey:
    return CertifiedKey(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
