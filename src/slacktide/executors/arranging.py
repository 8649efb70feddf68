"""`Arranger`: cuts a worker's model into stages beside its batches, and puts them in its place.

A model that is cut into sessions as it lies in its file costs more than it does whole: every stage
begins and ends in the plain layout, and nothing is fused across a cut. So the ramps are hung on the
whole graph, ONNX Runtime optimises that as a whole and saves it, and what it saved is cut; its
stages are opened without optimising again, and hand on tensors in the layout that it chose
(decision 0054).

All of that happens on a thread, while batches run in what was there before. Stages must give what
the model gives, on rows that are made up; then the model and its stages are timed by turns. A batch
that comes meanwhile stops the run that is timed, within a node, and it is made again later.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import ExitPolicy, Leaving, is_judged
from slacktide.executors.onnx_runtime import client_detail, load_onnxruntime
from slacktide.executors.ports import NO_FAULTS, Arranged, ExitSource
from slacktide.executors.session import GatheredBatch, ModelSession
from slacktide.executors.staged import SAMPLED, SeenPositions, Stage, StageChain, StagedBatch

if TYPE_CHECKING:
    from slacktide.exits.positions import ExitGraph
    from slacktide.exits.splitting import StageModel

SIZES = (1, 4, 8)
"""Rows of the batches that are timed, as far as the model takes them."""
MOST_RUNS, LEAST_RUNS, PATIENCE_S = 16, 4, 1.5
"""For each size: runs of the model and of its stages, and seconds after which the least will do."""
DEAR, CLEAR, AGAIN_S = 0.02, 0.5, 2.0
"""Share of a pass for each ramp above which a chain is timed again, and in all above which it need
not be; seconds to wait for that."""
GIVE_WAY_S = 5.0
"""Seconds after which timing no longer makes room for batches: the lane is never free."""
TOLERANCE = 1e-3
"""Most by which stages may differ from the model, relative to its greatest output."""


_FEATURES = ("exits/features/", "exits/logits")


_Timed = tuple[list[tuple[float, ...]], list[tuple[float, ...]]]
"""Seconds of runs of the whole model, and of its stages up to each end."""


class Arranger:
    """Of one worker. The thread that runs batches holds it while it runs one (`with arranger:`) and
    calls `publish`. `report` is called by another thread, but not meanwhile."""

    def __init__(
        self,
        session: ModelSession,
        threads: Sequence[int],
        report: Callable[[Arranged], None],
    ) -> None:
        """`threads`: for how many the model was opened."""
        self.policy: ExitPolicy | None = None
        """In force from the next batch on."""
        self.thresholds: Mapping[int, float] = {}
        """Of that, by position."""
        self._session = session
        self._source = session.opener.source
        self._threads = tuple(threads)
        self._turn = threading.Lock()
        self._report = report
        self._state = threading.Lock()
        self._placed: tuple[tuple[int, ...], int, bool]
        self._placed = ((), 0, False)
        self._wanted: tuple[tuple[int, ...], int, bool] = self._placed
        self._busy = False
        self._superseded = threading.Event()
        """Whether another arrangement is wanted than the one that is being made."""
        self._timed: Any = None  # options of the run that is timed, while it gives way

    def publish(self, policy: ExitPolicy) -> None:
        """Go by this policy; another arrangement is made beside batches if it needs one."""
        wanted = (policy.ramps, policy.revision if policy.ramps else 0, policy.features)
        self.policy = policy
        self.thresholds = dict(zip(policy.ramps, policy.thresholds, strict=True))
        with self._state:
            changed, self._wanted = wanted != self._wanted, wanted
            if changed:
                self._superseded.set()
            if not changed or self._busy:
                return
            self._busy = True
        threading.Thread(target=self._work, name="exits", daemon=True).start()

    def samples(self, batch: int) -> bool:
        """Whether the features of this batch are handed out: by its number, never by content. They
        are among those that are judged, since rows that have left would be missing."""
        policy = self.policy
        return policy is not None and is_judged(batch, policy.feature_share)

    def __enter__(self) -> None:
        timed = self._timed
        if timed is not None:
            timed.terminate = True  # a run that is only timed: it stops within a node
        self._turn.acquire()

    def __exit__(self, *_: object) -> None:
        self._turn.release()

    def _work(self) -> None:
        while True:
            with self._state:
                wanted, policy = self._wanted, self.policy
                self._superseded.clear()
                if wanted == self._placed or policy is None:
                    self._busy = False
                    return
            try:
                arranged = self._arrange(policy)
            except Exception as error:  # whatever a graph, its files or ONNX Runtime may raise
                source = self._source
                private = (source.path, source.root, *_folders(source.exits))
                arranged = Arranged(policy.revision, policy.ramps, client_detail(error, *private))
            with self._state:
                self._placed = wanted  # or given up: another policy is another try
            with self._turn:
                self._report(arranged)

    def _arrange(self, policy: ExitPolicy) -> Arranged:
        """Open what the policy wants and put it in place. Raises whatever stands in the way."""
        session, opener = self._session, self._session.opener
        if not policy.ramps and not policy.features:
            whole = {threads: opener.open(threads) for threads in self._threads}
            for each in whole.values():
                self._run_whole(each, self._batch(1), None)
            with self._turn:
                session.place(None, whole)
            _give_back()
            return Arranged(policy.revision, ())
        model = self._stages(policy)
        whole = session.whole or opener.open(session.threads)
        self._prove(model, whole)
        times = self._measure(model, whole, session.threads)
        if policy.enlarge and model.ramps:
            model.enlarge(times[0], times[2])
        del whole
        with self._turn:
            session.place(model, {})
        _give_back()
        rows, whole_s, stage_s = times
        return Arranged(policy.revision, policy.ramps, "", rows, whole_s, stage_s)

    def _stages(self, policy: ExitPolicy) -> StageChain:
        import onnx

        from slacktide.exits.errors import ExitError
        from slacktide.exits.manifest import read_manifest
        from slacktide.exits.positions import find_positions
        from slacktide.exits.ramp_graph import with_features, with_own_exits, with_ramps
        from slacktide.exits.splitting import split, split_at_own_exits

        session, source, opener = self._session, self._source, self._session.opener
        exits = source.exits
        if exits is None or session.cold:
            why = session.cold or "its model states none"
            raise ExitError(f"early_exit: a worker cannot make stages: {why}")
        model = onnx.load(str(source.path))
        if source.own_exits:
            wanted = self._optimised(with_own_exits(model, source.own_exits))
            parts = split_at_own_exits(wanted, opener.elements)
            made = frozenset(source.own_exits[0].outputs)
            return StageChain(self._open(parts, whole=True), session.interface, made, shrinks=True)
        graph = find_positions(
            model,
            primary=exits.primary,
            mask=exits.mask or self._mask(),
            add=exits.add,
            forbid=exits.forbid,
            shapes={name: (1, *shape) for name, shape in session.row_shapes.items()},
        )
        wanted = model
        if policy.ramps:
            manifest = read_manifest(exits.folder)
            if manifest.revision != policy.revision:
                raise ExitError(
                    f"the ramps are of revision {manifest.revision}, not {policy.revision}"
                )
            if policy.ramps[-1] >= len(manifest.ramps):
                raise ExitError(f"there is no ramp at position {policy.ramps[-1]}")
            wanted = with_ramps(model, graph, [manifest.ramps[each] for each in policy.ramps])
        positions = None
        if policy.features:
            wanted = with_features(wanted, graph)
            positions = _seen(graph)
        del model
        parts = split(self._optimised(wanted), graph)
        chains = self._open(parts)
        shrinks = not parts[0].taken and all(len(part.taken) <= 1 for part in parts)
        made = frozenset(graph.outputs)
        return StageChain(chains, session.interface, made, shrinks=shrinks, positions=positions)

    def _optimised(self, model: Any) -> Any:
        import onnx

        opener = self._session.opener
        if not opener.optimises:
            return model
        return onnx.load_from_string(opener.optimise(model.SerializeToString()))

    def _open(self, parts: Sequence[StageModel], *, whole: bool = False) -> dict[int, list[Stage]]:
        """Sessions of the stages by number of threads. `whole`: all that they hand on has rows."""
        asked, opener = [_features_if_asked(part.model) for part in parts], self._session.opener
        return {
            threads: [
                Stage(
                    opener.open_stage(
                        part.model.SerializeToString(), threads, optimised=opener.optimises
                    ),
                    part.ramp,
                    (*part.inputs, *part.taken, *([SAMPLED] if asks else [])),
                    list(dict.fromkeys((*part.outputs, *part.given))),
                    (*part.inputs, *(part.taken if whole else part.taken[:1])),
                )
                for part, asks in zip(parts, asked, strict=True)
            ]
            for threads in self._threads
        }

    def _mask(self) -> str:
        padding = self._source.padding
        inputs = {} if padding is None else padding.inputs
        return next((name for name, padded in inputs.items() if padded.mask), "")

    # Proving and timing

    def _batch(self, rows: int) -> GatheredBatch:
        """Members of one row each, made up."""
        feeds = self._session.synthetic(rows)
        return GatheredBatch(feeds, [1] * rows, None, NO_FAULTS, time.perf_counter(), 0.0)

    def _run_whole(self, whole: Any, batch: GatheredBatch, options: Any) -> list[NDArray[Any]]:
        names = [spec.name for spec in self._session.interface.outputs]
        arrays: list[NDArray[Any]] = whole.run(names, batch.feeds, options)
        return arrays

    def _prove(self, model: StageChain, whole: Any) -> None:
        """Raises ExitError if stages give anything else than the model does, be it that a row has
        left in the middle."""
        from slacktide.exits.errors import ExitError

        most = self._session.interface.max_batch
        rows = max(1, min(3, most))
        batch = self._batch(rows)
        expected = self._run_whole(whole, batch, None)
        for threads in self._threads:
            run = StagedBatch(model, batch, {}, Leaving.NONE, ())
            list(run.run(model.stages(threads)))
            _compare(expected, run.rest()[0])
        if model.ramps and model.shrinks and rows > 1:
            sure = dict.fromkeys(model.ramps[:1], np.inf)
            run = StagedBatch(model, batch, sure, Leaving.SHRINK, range(1, rows))
            list(run.run(model.stages(self._threads[0])))
            _compare([array[1:] for array in expected], run.rest()[0])
        said = run.report()
        if not self._session.interface.batches and said is not None and len(said.left) != 1:
            raise ExitError("early_exit: a model without a batch axis has more than one row")

    def _measure(
        self, model: StageChain, whole: Any, threads: int
    ) -> tuple[tuple[int, ...], tuple[float, ...], tuple[tuple[float, ...], ...]]:
        """Sizes of batches; for each the time of the model, and of its stages up to each end."""
        if not model.ramps:
            return (), (), ()
        most = max(1, self._session.interface.max_batch)
        sizes = tuple([rows for rows in SIZES if rows <= most])
        # On one thread its own time counts: what runs beside it is no part of that.
        clock = time.thread_time if threads == 1 else time.perf_counter
        found: list[_Timed] = [([], []) for _ in sizes]
        for last in (False, True):
            give_way_until = time.perf_counter() + GIVE_WAY_S
            for rows, runs in zip(sizes, found, strict=True):
                batch = self._batch(rows)
                once = partial(self._time_whole, whole, batch, clock)
                staged = partial(self._time_stages, model.stages(threads), model, batch, clock)
                self._time_by_turns((once, staged), runs, give_way_until)
            # The least: whatever else runs on the machine can only add to it, and ramps are
            # judged by a few per cent.
            whole_s, stage_s = (
                tuple([tuple(map(min, zip(*each[kind], strict=True))) for each in found])
                for kind in (0, 1)
            )
            added = [ends[-1] / one - 1.0 for ends, (one,) in zip(stage_s, whole_s, strict=True)]
            dear = DEAR * len(model.ramps) < sum(added) / len(sizes) < CLEAR
            # What seems dear is timed again, when other work on the machine may have ended.
            if last or not dear or self._superseded.wait(AGAIN_S):
                break
        return sizes, tuple([one for (one,) in whole_s]), stage_s

    def _time_by_turns(
        self,
        kinds: tuple[Callable[[Any], tuple[float, ...]], ...],
        runs: _Timed,
        give_way_until: float,
    ) -> None:
        """Add times of each kind of run, until there are enough or it has taken too long."""
        # Twice each: the second has its weights in the caches, as where it runs alone.
        turn = [each for each in zip(kinds, runs, strict=True) for _ in range(2)]
        end, before = time.perf_counter() + PATIENCE_S, len(runs[0])
        while (timed := min(map(len, runs))) < before + MOST_RUNS:
            if timed >= before + LEAST_RUNS and time.perf_counter() > end:
                break
            for run, times in turn:
                kindly = time.perf_counter() < give_way_until
                if (taken := self._alone(run, kindly=kindly)) is not None:
                    times.append(taken)

    def _alone(
        self, run: Callable[[Any], tuple[float, ...]], *, kindly: bool
    ) -> tuple[float, ...] | None:
        """Time a run while no batch runs; None if one came."""
        options = load_onnxruntime().RunOptions()
        if kindly:
            with self._turn:
                self._timed = options
        try:
            return run(options)
        except Exception as error:
            if not options.terminate:
                raise
            del error
            return None
        finally:
            self._timed = None

    def _time_whole(
        self, whole: Any, batch: GatheredBatch, clock: Callable[[], float], options: Any
    ) -> tuple[float, ...]:
        begin = clock()
        self._run_whole(whole, batch, options)
        return (clock() - begin,)

    def _time_stages(
        self,
        stages: Sequence[Stage],
        model: StageChain,
        batch: GatheredBatch,
        clock: Callable[[], float],
        options: Any,
    ) -> tuple[float, ...]:
        begin = clock()
        run = StagedBatch(model, batch._replace(began=begin), {}, Leaving.NONE, (), clock=clock)
        list(run.run(stages, options))
        end = clock() - begin
        report = run.report()
        return (*(() if report is None else report.stage_s), end)


def _features_if_asked(model: Any) -> bool:
    """Have a stage pool features only where it is asked to: what makes nothing else goes into a
    branch. Whether there are any."""
    from onnx import TensorProto, helper

    from slacktide.exits.data_flow import reads

    graph = model.graph
    names = [each.name for each in graph.output]
    features = [name for name in names if name.startswith(_FEATURES)]
    if not features:
        return False
    nodes = list(graph.node)

    def needed(outputs: Sequence[str]) -> set[int]:
        wanted, found = set(outputs), set()
        for at in reversed(range(len(nodes))):
            if not wanted.isdisjoint(nodes[at].output):
                found.add(at)
                wanted.update(reads(nodes[at]))
        return found

    alone = needed(features) - needed([name for name in names if name not in features])
    inner = [nodes[at] for at in sorted(alone)]
    made = [name for name in features if any(name in node.output for node in inner)]
    if not made:
        return False  # ramps pool them anyway
    then = {name: f"{name}/then" for name in made}
    for node in inner:
        node.input[:] = [then.get(name, name) for name in node.input]
        node.output[:] = [then.get(name, name) for name in node.output]
    nothing = helper.make_tensor("nothing", TensorProto.FLOAT, [0], [])
    branches = []
    for label in ("then", "else"):
        outputs = [
            helper.make_tensor_value_info(f"{name}/{label}", TensorProto.FLOAT, None)
            for name in made
        ]
        body = (
            inner
            if label == "then"
            else [helper.make_node("Constant", [], [each.name], value=nothing) for each in outputs]
        )
        branches.append(helper.make_graph(body, f"features {label}", [], outputs))
    choice = helper.make_node(
        "If", [SAMPLED], made, then_branch=branches[0], else_branch=branches[1]
    )
    del graph.node[:]
    graph.node.extend([*(node for at, node in enumerate(nodes) if at not in alone), choice])
    graph.input.append(helper.make_tensor_value_info(SAMPLED, TensorProto.BOOL, []))
    return True


def _compare(expected: Sequence[NDArray[Any]], got: Sequence[NDArray[Any]]) -> None:
    from slacktide.exits.errors import ExitError

    for one, other in zip(expected, got, strict=True):
        if one.shape != other.shape:
            raise ExitError(f"stages give {other.shape} where the model gives {one.shape}")
        if one.dtype.kind == "f" and one.size:
            room = TOLERANCE * max(1.0, float(np.nan_to_num(np.abs(one)).max()))
            if not np.allclose(one, other, rtol=0.0, atol=room, equal_nan=True):
                raise ExitError("stages give other numbers than the model")


def _seen(graph: ExitGraph) -> SeenPositions:
    tensors = tuple([each.tensor for each in graph.positions])
    costs = tuple([each.cost for each in graph.positions])
    return SeenPositions(tensors, costs)


def _folders(exits: ExitSource | None) -> tuple[Any, ...]:
    return () if exits is None else (exits.folder,)


def _give_back() -> None:
    """Give memory of what was closed back to the system, where the C library can."""
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
