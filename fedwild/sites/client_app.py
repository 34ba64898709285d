"""Flower's ClientApp: passes each message to the site server and returns its answer.

Flower starts a process for every message. With `fedwild site`, a site server with torch imported and the data in memory
is already running, and this process imports neither. With a plain `flower-supernode`, this process creates a site
server for the one message.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedwild.sites.envelope import Envelope, read, write
from fedwild.sites.records import from_record, to_record
from fedwild.sites.transport import connect

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """Return the site's answer to a message."""
    envelope = from_record(message.content)
    node = context.node_config
    if "socket" in node:
        with connect(str(node["socket"])) as connection:
            write(connection, envelope)
            reply = read(connection)
    else:
        reply = in_this_process(node, envelope)
    return Message(to_record(reply), reply_to=message)


def in_this_process(node: Any, envelope: Envelope) -> Envelope:
    """Return the answer of a site server created for this message from the site's `--node-config`."""
    from fedwild.engines.threads import single_thread
    from fedwild.sites.policy import read_policy
    from fedwild.sites.site import default_folder
    from fedwild.sites.site_server import SiteServer

    missing = [key for key in ("name", "data") if key not in node]
    if missing:
        raise ValueError(f'--node-config lacks {missing[0]}: write \'name="hospital-a" data="/path/to/data"\'')
    single_thread()
    name = str(node["name"])
    folder = Path(str(node["folder"])) if "folder" in node else default_folder(name)
    policy = read_policy(Path(str(node["policy"])) if "policy" in node else None)
    device = str(node.get("device", "cpu"))
    return SiteServer(name, str(node["data"]), folder, device=device, policy=policy).answer(envelope)
