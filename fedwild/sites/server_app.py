"""Flower's ServerApp: a relay for `fedwild coordinate`, or the coordinator itself for a plain `flwr run`."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedwild.sites.grid import GridTransport
from fedwild.sites.transport import connect, relay

SOCKET, CONFIG, OUT = "socket", "config", "out"
"""Keys of the app's run config: the coordinator's socket, or else a config file and the run folder to create."""


def app_at(folder: Path) -> ServerApp:
    """Return the ServerApp of the app in `folder`, which holds its config file."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        transport = GridTransport(grid)
        path = str(context.run_config.get(SOCKET, ""))
        if path:
            with connect(path) as connection:
                relay(transport, connection)
            return
        from fedwild.sites.coordinator import run_in_server_app

        run_in_server_app(transport, folder / str(context.run_config[CONFIG]), str(context.run_config.get(OUT, "")))

    return app
