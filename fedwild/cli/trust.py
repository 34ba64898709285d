"""`fedwild sign` and `fedwild trust`: who vouches for a model, and whom you believe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedwild.cli.options import Folder, PathOption, Words, option, say
from fedwild.core.errors import UserError


def sign(folder: Folder) -> None:
    """Sign a finished run with your key, so that its model can be used here.

    Every run that you finish is signed already. Sign a folder yourself only if you have reason to trust it: one that
    is not signed, or that you have changed. All files are checked against their digests first.

    Examples:

      fedwild sign runs/fedavg-digits-001
    """
    from fedwild.runs.folder import RunFolder
    from fedwild.runs.manifest import FILE
    from fedwild.runs.signing import fingerprint, own_key
    from fedwild.runs.verify import verify_run

    run = RunFolder.open(folder)
    if run.result() is None:
        raise UserError(f"run {str(folder)!r} is unfinished: run `fedwild resume {folder}` first, which signs it.")
    damaged = [row for row in verify_run(folder) if not row.good and row.file != FILE]
    if damaged:
        raise UserError(*(f"{str(folder / row.file)!r}: {row.text}" for row in damaged))
    try:
        run.sign()
    except OSError as error:
        raise UserError(f"{str(folder)!r} cannot be signed: {error.strerror or error}.") from error
    say(f"{folder} is signed with your key ({fingerprint(own_key() or '')})")


def trust(
    file: Annotated[
        PathOption, typer.Argument(metavar="FILE|RUN", help="Somebody's signing.pub, or a run that they signed.")
    ] = None,
    name: Annotated[Words, option("NAME", "A name for the key (default: that of the file or run).")] = None,
    remove: Annotated[Words, option("NAME", "Trust this key no longer.")] = None,
) -> None:
    """Trust the models that somebody else signs; without an argument, show your own key and those you trust.

    Compare the fingerprint with the signer over another channel first. To trust a key is to use its models. Code that
    their settings name (module:Class) still needs --trust-code.

    Examples:

      fedwild trust

      fedwild trust hospital-a.pub

      fedwild trust ~/received/gains-mnist-001 --name hospital-a

      fedwild trust --remove hospital-a
    """
    from fedwild.runs import signing

    if remove is not None:
        if file is not None or name is not None:
            raise UserError("--remove is not allowed with a file or --name: run the command once for each.")
        signing.distrust(remove)
        say(f"{remove} is not trusted any more")
    elif file is None:
        if name is not None:
            raise UserError(f"--name {name} needs a file: give the key to trust.")
        say(f"your key: {signing.public_file()} ({signing.fingerprint(signing.own_key() or '')})")
        for other, key in signing.trusted_keys().items():
            say(f"trusted: {other} ({signing.fingerprint(key)})")
    else:
        key = signer(file)
        path = signing.trust(name or file.resolve().stem, key)
        say(f"trusted: {path.stem} ({signing.fingerprint(key)})")


def signer(file: Path) -> str:
    """Return the public key in a file, or the key that signed a run."""
    from fedwild.runs.manifest import FILE, read_manifest
    from fedwild.runs.signing import read_public

    if not file.is_dir():
        return read_public(file)
    manifest = read_manifest(file)
    if manifest is None:
        raise UserError(f"{str(file)!r} has no {FILE}, so nobody signed it: give a public key or a signed run.")
    return manifest.signer
