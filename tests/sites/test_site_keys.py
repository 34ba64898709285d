"""Keys of sites: revoked, renewed and expired ones, in the folder, at the proxy and at Flower's SuperLink."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs fedwild[flower]")

from fedwild.core.errors import UserError
from fedwild.sites import expiry
from fedwild.sites.coordinator import settings_for_sites
from fedwild.sites.identify import NotRegistered, RegisteredSites
from fedwild.sites.keys import check_certificates, make_keys
from fedwild.sites.registration import Registrar
from fedwild.sites.roster import Roster
from fedwild.sites.site import SiteOptions, rejection, warn_of_expiry
from fedwild.sites.site_keys import KeyFolder, SiteKey, read_site_key, registered_files, renew, revoke
from tests.conftest import Cli, Refused
from tests.sites.inprocess import InProcessSites, site_files, site_server, tables
from tests.sites.test_proxy import signed


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A folder with the keys of two sites, which are valid for 365 days."""
    make_keys(tmp_path / "keys", [], ["a", "b"])
    return tmp_path / "keys"


def later(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    """Set the clock forward."""
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    for module in ("expiry", "site_keys", "keys"):
        monkeypatch.setattr(f"fedwild.sites.{module}.now", lambda: then)


# --- revoked and renewed keys ------------------------------------------------------------------------------------


def test_proxy_rejects_a_revoked_key_at_once(keys: Path) -> None:
    sites, headers = RegisteredSites(keys), signed(keys, "a")
    assert sites.site_of(headers) == "a"
    revoke(keys, ["a"])
    with pytest.raises(NotRegistered, match="its key is not registered"):
        sites.site_of(headers)
    assert sites.site_of(signed(keys, "b")) == "b"


def test_proxy_accepts_a_renewed_key_and_rejects_the_old_one(keys: Path) -> None:
    sites, old = RegisteredSites(keys), signed(keys, "a")
    assert sites.site_of(old) == "a"
    renew(keys, ["a"], days=10)
    assert sites.site_of(signed(keys, "a")) == "a"
    with pytest.raises(NotRegistered, match="its key is not registered"):
        sites.site_of(old)


def test_public_key_that_is_overwritten_in_place_counts_at_once(keys: Path, tmp_path: Path) -> None:
    """The time of change of the folder stays the same then."""
    sites, old = RegisteredSites(keys), signed(keys, "a")
    assert sites.site_of(old) == "a"
    make_keys(tmp_path / "own", [], ["a"])
    (keys / "sites" / "a.pub").write_bytes((tmp_path / "own" / "sites" / "a.pub").read_bytes())
    assert sites.site_of(signed(tmp_path / "own", "a")) == "a"
    with pytest.raises(NotRegistered):
        sites.site_of(old)


def test_revoked_key_is_never_accepted_again(keys: Path, tmp_path: Path) -> None:
    shutil.copytree(keys / "sites", tmp_path / "copy")
    headers = signed(keys, "a")
    revoke(keys, ["a"])
    shutil.copy(tmp_path / "copy" / "a.pub", keys / "sites" / "other.pub")
    with pytest.raises(NotRegistered, match="its key is not registered"):
        RegisteredSites(keys).site_of(headers)


def test_no_key_is_valid_while_a_revoked_one_cannot_be_read(keys: Path) -> None:
    revoke(keys, ["a"])
    (file,) = (keys / "revoked").iterdir()
    file.write_text("damaged")
    folder = KeyFolder(keys)
    assert not folder.valid()
    assert "cannot be registered: it is not a public key" in folder.problems[0]


def test_private_key_of_a_revoked_site_is_deleted(keys: Path) -> None:
    revoke(keys, ["a"])
    assert sorted(path.name for path in (keys / "sites").iterdir()) == ["b.key", "b.pub"]
    make_keys(keys, [], ["a"])
    assert KeyFolder(keys).valid().keys() == {"a", "b"}


def test_renewed_private_key_is_private_and_matches(keys: Path) -> None:
    before = read_site_key(keys / "sites" / "a.pub", "a")
    written = renew(keys, ["a"], days=10)
    assert written == [keys / "sites" / "a.key", keys / "sites" / "a.pub"]
    assert (keys / "sites" / "a.key").stat().st_mode & 0o077 == 0
    after = KeyFolder(keys).valid()["a"]
    assert after.pem != before.pem and RegisteredSites(keys).site_of(signed(keys, "a")) == "a"
    assert after.expires is not None and (after.expires - expiry.now()).days in (9, 10)


@pytest.mark.parametrize("option", ["--revoke", "--renew"])
def test_unknown_site_is_refused(option: str, keys: Path, refused: Refused) -> None:
    assert f"{option} 'c' has no key in 'keys/sites'. Sites: a, b." in refused("flower", "keys", "keys", option, "c")
    assert f"{option} '../ca' has no key" in refused("flower", "keys", "keys", option, "../ca")
    assert registered_files(keys).keys() == {"a", "b"}


# --- Flower's SuperLink ------------------------------------------------------------------------------------------


class FakeControl:
    """Stands for Flower's Control API: accepts each key once, and fails as Flower does."""

    def __init__(self) -> None:
        self.nodes: dict[int, str] = {}
        self.seen: set[bytes] = set()

    def register(self, key: SiteKey) -> int:
        if key.pem in self.seen:
            raise ValueError("Public key already in use.")
        self.seen.add(key.pem)
        self.nodes[len(self.seen)] = key.name
        return len(self.seen)

    def unregister(self, node: int) -> None:
        del self.nodes[node]


def test_superlink_follows_the_folder(keys: Path) -> None:
    control = FakeControl()
    registrar = Registrar(KeyFolder(keys), control)
    assert registrar.update() == ["the key of a is registered", "the key of b is registered"]
    assert registrar.update() == []
    revoke(keys, ["a"])
    assert registrar.update() == ["the key of a is not valid any more"]
    assert control.nodes == {2: "b"}
    renew(keys, ["b"], days=10)
    assert registrar.update() == ["the key of b is not valid any more", "the key of b is registered"]
    assert control.nodes == {3: "b"}


def test_superlink_loses_a_key_when_it_expires(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = FakeControl()
    registrar = Registrar(KeyFolder(keys), control)
    renew(keys, ["a"], days=10)
    registrar.update()
    later(monkeypatch, 11)
    assert registrar.update() == ["the key of a is not valid any more"]
    assert control.nodes == {2: "b"}


def test_key_that_cannot_be_registered_is_reported_once_and_costs_no_other_key(keys: Path) -> None:
    control = FakeControl()
    registrar = Registrar(KeyFolder(keys), control)
    registrar.update()
    (keys / "sites" / "c.pub").write_text("no key")
    assert registrar.update() == [f"key '{keys / 'sites' / 'c.pub'}' cannot be registered: it is not a public key."]
    assert registrar.update() == []
    assert set(control.nodes.values()) == {"a", "b"}
    moved = (keys / "sites" / "a.pub").rename(keys / "a.pub")
    registrar.update()
    moved.rename(keys / "sites" / "a.pub")
    assert registrar.update() == [f"key '{keys / 'sites' / 'a.pub'}' cannot be registered: Public key already in use."]


# --- expiry ------------------------------------------------------------------------------------------------------


def test_nothing_is_said_about_keys_that_are_valid_for_long(keys: Path) -> None:
    assert check_certificates(keys) == []


def test_certificates_and_keys_that_expire_soon_give_a_warning(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch, 365 - 29)
    warnings = check_certificates(keys)
    assert [warning.split(" expires on ")[0] for warning in warnings] == [
        f"engine.certificates: '{keys / 'ca.pem'}'",
        f"engine.certificates: '{keys / 'server.pem'}'",
        "the key of site 'a'",
        "the key of site 'b'",
    ]
    assert f"`fedwild flower keys {keys} --renew a`" in warnings[2]


def test_expired_certificates_are_refused(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch, 366)
    with pytest.raises(UserError, match=r"ca\.pem' expired on .*: delete ca\.\* and server\.\*, run `fedwild"):
        check_certificates(keys)


def test_expired_key_of_one_site_is_not_accepted_and_stops_no_other(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew(keys, ["a"], days=10)
    later(monkeypatch, 11)
    (warning,) = check_certificates(keys)
    assert warning.startswith("the key of site 'a' expired on ")
    sites = RegisteredSites(keys)
    with pytest.raises(NotRegistered, match="its key is not registered"):
        sites.site_of(signed(keys, "a"))
    assert sites.site_of(signed(keys, "b")) == "b"


def test_public_key_without_dates_does_not_expire(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = keys / "sites" / "a.pub"
    file.write_text(" ".join(file.read_text().split()[:2]) + " me@hospital-a\n")
    later(monkeypatch, 10_000)
    assert KeyFolder(keys).valid().keys() == {"a"}


def test_dates_that_are_no_dates_are_reported(keys: Path) -> None:
    file = keys / "sites" / "a.pub"
    file.write_text(" ".join(file.read_text().split()[:2]) + " expires=soon\n")
    with pytest.raises(UserError, match="'soon' is not a date: write it as 2027-12-31"):
        read_site_key(file, "a")


def test_site_warns_of_its_authority_and_refuses_an_expired_one(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, said = SiteOptions("127.0.0.1:1", "digits", "a", authority=keys / "ca.pem"), list[str]()
    warn_of_expiry(options, said.append)
    assert said == []
    later(monkeypatch, 350)
    warn_of_expiry(options, said.append)
    assert said[0].startswith(f"warning: --ca '{keys / 'ca.pem'}' expires on ")
    later(monkeypatch, 366)
    with pytest.raises(UserError, match=r"--ca .* expired on .*: ask the coordinator for a new one"):
        warn_of_expiry(options, said.append)
    (keys / "ca.pem").write_text("no certificate")
    with pytest.raises(UserError, match="is not a certificate"):
        warn_of_expiry(options, said.append)


def test_coordinator_tells_a_site_that_its_key_expires_soon(keys: Path, tmp_path: Path) -> None:
    renew(keys, ["a"], days=10)
    said: dict[str, list[str]] = {"a": [], "b": []}
    files = site_files(tmp_path, ["a", "b"])
    servers = [site_server(name, files[name], tmp_path) for name in "ab"]
    for server in servers:
        server.notify = said[server.name].append
    config = settings_for_sites(tables()).with_engine(certificates=str(keys))
    Roster(InProcessSites(*servers), config, lambda event: None).refresh()
    assert [text for text in said["a"] if "warning: your key expires on" in text]
    assert not [text for text in said["b"] if "expires" in text]


# --- the commands ------------------------------------------------------------------------------------------------


def test_list_shows_dates_and_revoked_keys(cli: Cli, keys: Path) -> None:
    renew(keys, ["a"], days=10)
    revoke(keys, ["b"])
    outcome = cli("flower", "keys", "keys", "--list")
    rows = [line.split() for line in outcome.out.splitlines()]
    today = f"{expiry.now():%Y-%m-%d}"
    soon = f"{expiry.now() + datetime.timedelta(days=10):%Y-%m-%d}"
    assert outcome.code == 0 and rows[0] == ["name", "created", "expires", "state"]
    assert [row[0] for row in rows[1:]] == ["ca.pem", "server.pem", "a", "a", "b"]
    assert rows[3] == ["a", today, soon, "valid"]
    assert [row[3:] for row in rows[4:]] == [["revoked", today]] * 2


def test_commands_revoke_and_renew(cli: Cli, keys: Path) -> None:
    assert cli("flower", "keys", "keys", "--renew", "a", "--days", "5").out.split() == [
        "keys/sites/a.key",
        "keys/sites/a.pub",
    ]
    assert cli("flower", "keys", "keys", "--revoke", "a", "--revoke", "b").code == 0
    assert not KeyFolder(keys).valid()


def test_actions_are_not_mixed(refused: Refused, keys: Path) -> None:
    message = refused("flower", "keys", "keys", "--revoke", "a", "--site", "c")
    assert "--revoke and --host or --site are not allowed together" in message
    assert "is not a folder with keys" in refused("flower", "keys", "nowhere", "--list")


def test_reason_of_a_rejection_is_the_line_of_the_supernode() -> None:
    assert rejection("connected\n  [code:22] its key is not registered\nend") == "[code:22] its key is not registered"
    assert rejection("connection refused") is None
