"""Flower's ClientApp: hands each letter to the site's desk and brings its answer back.

Flower starts a process for every message. With `fedwild site` the desk is open beside it, with torch imported and data
in memory, and this process imports neither. With a plain `flower-supernode` a desk is opened here, for one letter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedwild.flower.courier import connect
from fedwild.flower.letters import Letter, read, write
from fedwild.flower.records import letter_in, record_of

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """One letter in, one out."""
    letter = letter_in(message.content)
    node = context.node_config
    reply = over_socket(str(node["desk"]), letter) if "desk" in node else at_own_desk(node, letter)
    return Message(record_of(reply), reply_to=message)


def over_socket(path: str, letter: Letter) -> Letter:
    """The answer of the desk that is open at this site."""
    with connect(path) as connection:
        write(connection, letter)
        return read(connection)


def at_own_desk(node: Any, letter: Letter) -> Letter:
    """The answer of a desk made for this letter, from what `--node-config` says of the site."""
    from fedwild.flower.desk import Desk
    from fedwild.flower.site import default_folder
    from fedwild.protocol import single_thread

    missing = [key for key in ("name", "data") if key not in node]
    if missing:
        raise ValueError(f'--node-config lacks {missing[0]}: write \'name="hospital-a" data="/path/to/data"\'')
    single_thread()
    name = str(node["name"])
    folder = Path(str(node["folder"])) if "folder" in node else default_folder(name)
    return Desk(name, str(node["data"]), folder, device=str(node.get("device", "cpu"))).answer(letter)
