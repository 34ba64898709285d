"""Certificates and keys: what they certify, and what is never overwritten."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs fedwild[flower]")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedwild.core.errors import UserError
from fedwild.sites.keys import check_certificates, make_keys
from fedwild.sites.site_keys import check_site_key, registered_files
from tests.conftest import Cli, Refused


def test_authority_certifies_the_coordinators_names_and_addresses(tmp_path: Path) -> None:
    make_keys(tmp_path, ["coordinator.example", "10.1.2.3"], ["a"])
    authority, server = (x509.load_pem_x509_certificate((tmp_path / n).read_bytes()) for n in ("ca.pem", "server.pem"))
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["coordinator.example", "localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3", "127.0.0.1"]
    ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))


def test_sites_public_key_matches_its_private_key(tmp_path: Path) -> None:
    make_keys(tmp_path, [], ["hospital-a"])
    private = load_ssh_private_key((tmp_path / "sites" / "hospital-a.key").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "sites" / "hospital-a.pub").read_bytes())
    assert private.public_key() == public
    assert registered_files(tmp_path) == {"hospital-a": tmp_path / "sites" / "hospital-a.pub"}


def test_only_the_owner_can_read_private_keys(tmp_path: Path) -> None:
    make_keys(tmp_path, [], ["a"])
    for name in ("ca.key", "server.key", "sites/a.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_adding_a_site_changes_no_other_file(tmp_path: Path) -> None:
    make_keys(tmp_path, [], ["a"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    written = make_keys(tmp_path, [], ["b"])
    assert written == [tmp_path / "sites" / "b.key", tmp_path / "sites" / "b.pub"]
    assert {path: path.read_bytes() for path in before} == before


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    make_keys(tmp_path, [], ["a"])
    with pytest.raises(UserError, match="--site 'a' already has a key in"):
        make_keys(tmp_path, [], ["a"])
    with pytest.raises(UserError, match=r"already has a certificate: delete server.pem"):
        make_keys(tmp_path, ["other.example"], [])


def test_folder_without_certificates_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no ca.pem, server.pem, server.key: create them with `fedwild"):
        check_certificates(tmp_path)


def test_command_lists_the_files_it_wrote(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("flower", "keys", "keys", "--host", "127.0.0.1", "--site", "a")
    assert outcome.code == 0
    assert outcome.out.split() == [f"keys/{n}" for n in ("ca.key", "ca.pem", "server.key", "server.pem")] + [
        "keys/sites/a.key",
        "keys/sites/a.pub",
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--site", "a/b"], "--site 'a/b' is not allowed"),
        (["--site", ".."], "--site '..' is not allowed"),
        (["--days", "0"], "--days 0 is not allowed: it must be a whole number from 1 to 36500"),
    ],
)
def test_invalid_names_and_days_are_rejected(options: list[str], sentence: str, refused: Refused) -> None:
    assert sentence in refused("flower", "keys", "keys", *options)


@pytest.mark.parametrize("hosts", [("no host",), ("good.example", "a b")])
def test_invalid_host_is_rejected_before_anything_is_written(hosts: tuple[str, ...], refused: Refused) -> None:
    options = [text for host in hosts for text in ("--host", host)]
    assert refused("flower", "keys", "keys", *options, "--site", "a") == (
        f"error: --host {hosts[-1]!r} is not allowed: give a host name or an IP address.\n"
    )


def test_sites_whose_names_differ_only_by_case_are_rejected(tmp_path: Path, refused: Refused) -> None:
    assert "client 'A' differs from 'a'" in refused("flower", "keys", "keys", "--site", "a", "--site", "A")
    make_keys(tmp_path / "keys", [], ["a"])
    assert "client 'A' differs from 'a' only by case or spaces ('a' is from 'keys')" in refused(
        "flower", "keys", "keys", "--site", "A"
    )


def test_nothing_is_left_when_a_file_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_keys(tmp_path, [], ["a"])
    before = sorted(path.name for path in tmp_path.rglob("*"))
    change_mode = os.fchmod

    def full(descriptor: int, mode: int) -> None:
        if mode == 0o644:
            raise OSError(28, "No space left on device")
        change_mode(descriptor, mode)

    monkeypatch.setattr("os.fchmod", full)
    with pytest.raises(UserError, match="No space left on device"):
        make_keys(tmp_path, [], ["b", "c"])
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_private_key_that_others_can_access_is_rejected(mode: int, tmp_path: Path) -> None:
    make_keys(tmp_path, [], ["a"])
    for name in ("sites/a.key", "server.key", "ca.key"):
        (tmp_path / name).chmod(mode)
    (tmp_path / "server.pem").rename(tmp_path / "kept.pem")
    with pytest.raises(UserError, match=rf"ca\.key.* \(mode {mode:04o}\): run `chmod 600 .*/ca\.key`"):
        make_keys(tmp_path, [], [])
    (tmp_path / "kept.pem").rename(tmp_path / "server.pem")
    with pytest.raises(UserError, match=r"engine\.certificates: .*server\.key.* run `chmod 600"):
        check_certificates(tmp_path)
    with pytest.raises(UserError, match=r"--key .*a\.key.* run `chmod 600"):
        check_site_key(tmp_path / "sites" / "a.key")
    (tmp_path / "sites" / "a.key").chmod(0o400)
    check_site_key(tmp_path / "sites" / "a.key")


def test_missing_key_of_the_authority_is_reported_with_advice(tmp_path: Path, refused: Refused) -> None:
    make_keys(tmp_path / "keys", [], ["a"])
    for name in ("ca.key", "server.pem"):
        (tmp_path / "keys" / name).unlink()
    said = refused("flower", "keys", "keys", "--host", "coordinator.example")
    assert "'keys/ca.key' is missing, so no certificate can be signed: restore it, or delete 'keys/ca.pem'" in said
    assert "to create a new authority" in said


def test_invalid_authority_is_rejected(tmp_path: Path, refused: Refused) -> None:
    make_keys(tmp_path / "keys", [], [])
    (tmp_path / "keys" / "server.pem").unlink()
    (tmp_path / "keys" / "ca.key").write_text("no key\n")
    assert "ca.pem and ca.key must be a certificate and its private key" in refused("flower", "keys", "keys")


def test_only_a_sites_private_key_is_accepted(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    make_keys(tmp_path, [], ["a"])
    check_site_key(tmp_path / "sites" / "a.key")
    for name in ("sites/a.pub", "ca.pem", "server.key"):
        with pytest.raises(
            UserError,
            match="is not a private key without a passphrase: create one with `fedwild flower keys DIR",
        ):
            check_site_key(tmp_path / name)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH)
    other = ed25519.Ed25519PrivateKey.generate().private_bytes(*form, serialization.NoEncryption())
    (tmp_path / "other.key").write_bytes(other)
    with pytest.raises(UserError, match="is not on an elliptic curve that Flower supports"):
        check_site_key(tmp_path / "other.key")


def test_private_key_that_replaces_a_readable_file_is_private(tmp_path: Path) -> None:
    make_keys(tmp_path, [], ["a"])
    (tmp_path / "server.key").chmod(0o644)
    (tmp_path / "server.pem").unlink()
    make_keys(tmp_path, [], ["b"])
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600
