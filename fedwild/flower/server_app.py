"""Flower's ServerApp: a courier for `fedwild coordinate`, or with `flwr run` alone, the coordinator itself."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedwild.flower.courier import carry, connect
from fedwild.flower.grid import GridCourier

DESK, CONFIG, OUT = "desk", "config", "out"
"""Keys of the app's run config: the coordinator's socket, or else a config file and the run folder to make."""


def app_at(folder: Path) -> ServerApp:
    """The ServerApp of an app in `folder`, which holds its config file."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        courier = GridCourier(grid)
        desk = str(context.run_config.get(DESK, ""))
        if desk:
            with connect(desk) as connection:
                carry(courier, connection)
            return
        from fedwild.flower.coordinator import run_in_server_app

        run_in_server_app(courier, folder / str(context.run_config[CONFIG]), str(context.run_config.get(OUT, "")))

    return app
