"""Four cameras on links that change, live: `slacktide demo clients`, ten minutes and pinned.

Server and worker share one core, clients and links the other. Each camera sends 10 frames a second
that are due after 150 ms, over a link of its own whose rate changes every 20 s. Beside it the same
cameras simulated, with our planner and with each variant alone. Accuracy is over all frames, missed
ones counting nothing.
"""

from __future__ import annotations

import asyncio

from bench.machine import CACHE, cores
from bench.measurement import Figure, Options, Result, Table, at_least, at_most
from bench.simulated_cameras import SimulatedCameras
from slacktide.executors import pinned
from slacktide.lab.cli.demo.clients import ClientsRun, play_clients
from slacktide.lab.cli.demo.shared import DemoContext


def run(options: Options) -> Result:
    server, client = (cores().server,), (cores().client,)
    context = DemoContext(CACHE / "live_clients", (server, client))
    context.folder.mkdir(exist_ok=True)
    settings = ClientsRun(seconds=60.0 if options.quick else 600.0, change_s=20.0)
    report = play_clients(settings, context)
    live = report["live"]
    cameras = SimulatedCameras(settings, context.models)
    with pinned(server):
        asyncio.run(cameras.prepare([camera.film for camera in settings.cameras], server))
    simulated = {variant.name: cameras.play(variant) for variant in cameras.variants}
    ours = cameras.play()
    on_time = {
        n: figures["accuracy"] for n, figures in simulated.items() if figures["missed"] <= 0.02
    }
    best = max(on_time, key=lambda name: on_time[name])
    result = Result("live_clients", seeds=(report["seed"],))
    result.figures += [
        Figure("missed", live["missed"], "×", at_most(0.02)),
        Figure("accuracy", live["accuracy"]),
        Figure(
            f"÷ that of {best} px alone (simulated)",
            live["accuracy"] / on_time[best],
            "×",
            at_least(1.0),
        ),
        Figure("missed, simulated", ours["missed"], "×"),
        Figure("accuracy, simulated", ours["accuracy"]),
        Figure("live misses − simulated", live["missed"] - ours["missed"], "", at_most(0.02)),
        Figure("estimates within 15 % two seconds after a change", live["near"], "×"),
        Figure("links late at p99", live["late_s"] * 1e3, "ms"),
        Figure("client besides encoding, of a core", live["client_cores"], "×", at_most(0.05)),
        Figure("resizing and encoding, of a core", live["encoding_cores"], "×"),
    ]
    rows = [
        (name, f"{figures['missed']:.4f}", f"{figures['accuracy']:.3f}")
        for name, figures in {"ours": ours, **simulated}.items()
    ]
    rows.append(("ours, live", f"{live['missed']:.4f}", f"{live['accuracy']:.3f}"))
    result.tables.append(Table("beside each variant", ("", "missed", "accuracy"), tuple(rows)))
    return result
