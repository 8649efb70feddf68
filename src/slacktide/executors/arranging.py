"""`Arranger`: cuts a worker's model into stages beside its batches, and puts them in its place.

A model that is cut into sessions as it lies in its file costs more than it does whole: every stage
begins and ends in the plain layout, and nothing is fused across a cut. So the ramps are hung on the
whole graph, ONNX Runtime optimises that as a whole and saves it, and what it saved is cut; its
stages are opened without optimising again, and hand on tensors in the layout that it chose
(decision 0054).

All of that happens on a thread, while batches run in what was there before. Stages must give what
the model gives, on rows that are made up; then they are put in place. What they take is measured
after that, between batches (stage_timing.py).
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import ExitPolicy, Leaving, is_judged
from slacktide.executors.onnx_file import OnnxFile
from slacktide.executors.onnx_runtime import client_detail
from slacktide.executors.ports import NO_FAULTS, Arranged, ExitSource
from slacktide.executors.session import GatheredBatch, ModelSession
from slacktide.executors.stage_timing import UNKNOWN, ChainTimes, LaneTurn, StageTimer
from slacktide.executors.staged import SAMPLED, SeenPositions, Stage, StageChain, StagedBatch

if TYPE_CHECKING:
    from slacktide.exits.positions import ExitGraph
    from slacktide.exits.splitting import StageModel

TOLERANCE = 1e-3
"""Most by which stages may differ from the model, relative to its greatest output."""
SWITCH_S = 0.0005
"""Seconds for which a batch may wait for the interpreter while a graph is cut beside it."""


_FEATURES = ("exits/features/", "exits/logits")


class Arranger:
    """Of one worker. The thread that runs batches takes its `turn` for each of them and calls
    `publish`. `report` is called by another thread, but not while a batch runs."""

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
        """By position: of that, and until its ramps are open of those that still are."""
        self.turn = LaneTurn()
        self._session = session
        self._source = session.opener.source
        self._threads = tuple(threads)
        self._report = report
        self._state = threading.Lock()
        self._placed: tuple[tuple[int, ...], int, bool]
        self._placed = ((), 0, False)
        self._wanted: tuple[tuple[int, ...], int, bool] = self._placed
        self._busy = False
        self._superseded = threading.Event()
        """Whether another arrangement is wanted than the one that is being made, or timed."""
        self._graph: ExitGraph | None = None
        self._whole_gives: list[NDArray[Any]] = []
        """What the whole model has given for the rows that chains are proved with."""

    def publish(self, policy: ExitPolicy) -> None:
        """Go by this policy; another arrangement is made beside batches if it needs one."""
        arrangement = (policy.ramps, policy.revision if policy.ramps else 0, policy.features)
        self.policy = policy
        self.thresholds = policy.thresholds_after(self.thresholds)
        with self._state:
            changed, self._wanted = arrangement != self._wanted, arrangement
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

    def _work(self) -> None:
        sys.setswitchinterval(SWITCH_S)
        gc.freeze()  # what there is so far need not be looked through for what is closed
        while True:
            with self._state:
                arrangement, policy = self._wanted, self.policy
                self._superseded.clear()
                if arrangement == self._placed or policy is None:
                    self._busy = False
                    return
            chain, detail = None, ""
            try:
                chain = self._arrange(policy)
            except Exception as error:  # whatever a graph, its files or ONNX Runtime may raise
                detail = self._detail(error)
            with self._state:
                self._placed = arrangement  # or given up: another policy is another try
            self._tell(policy, detail)
            if chain is not None and chain.ramps:
                try:
                    self._measure(policy, chain)
                except Exception as error:  # it runs all the same: nothing is known of its times
                    self._tell(policy, untimed=self._detail(error))
                _give_back()

    def _detail(self, error: Exception) -> str:
        source = self._source
        return client_detail(error, source.path, source.root, *_folders(source.exits))

    def _tell(
        self,
        policy: ExitPolicy,
        detail: str = "",
        times: ChainTimes = UNKNOWN,
        untimed: str = "",
    ) -> None:
        with self.turn.lock:
            self._report(Arranged(policy.revision, policy.ramps, detail, *times, untimed))

    def _arrange(self, policy: ExitPolicy) -> StageChain | None:
        """Open what the policy wants and put it in place. Raises whatever stands in the way."""
        session, opener = self._session, self._session.opener
        if not policy.ramps and not policy.features:
            chain, whole = None, {threads: opener.open(threads) for threads in self._threads}
            for whole_session in whole.values():
                self._run_whole(whole_session, self._batch(1), None)
        else:
            chain, whole = self._stages(policy), {}
            self._prove(chain)
        with self.turn.lock:
            session.place(chain, whole)
        _give_back()
        return chain

    def _measure(self, policy: ExitPolicy, chain: StageChain) -> None:
        session = self._session

        def report(times: ChainTimes) -> None:
            if policy.enlarge:
                with self.turn.lock:
                    chain.enlarge(times.rows, times.stage_s)
            self._tell(policy, "", times)

        timer = StageTimer(
            self.turn,
            self._superseded,
            self._batch,
            self._run_whole,
            lambda: session.opener.open(session.threads),
        )
        timer.measure(chain, session.threads, session.interface.max_batch, report)

    def _stages(self, policy: ExitPolicy) -> StageChain:

        from slacktide.exits.errors import ExitError
        from slacktide.exits.manifest import read_manifest
        from slacktide.exits.positions import find_positions
        from slacktide.exits.ramp_graph import with_features, with_own_exits, with_ramps
        from slacktide.exits.splitting import split

        session, source = self._session, self._source
        exits = source.exits
        if exits is None or session.cold:
            why = session.cold or "its model states none"
            raise ExitError(f"early_exit: a worker cannot make stages: {why}")
        model = OnnxFile(source.path, source.root).with_weights()
        if source.own_exits:
            cut_model = self._optimised(with_own_exits(model, source.own_exits))
            ramp_outputs = frozenset(source.own_exits[0].outputs)
            return StageChain(self._open(split(cut_model)), session.interface, ramp_outputs)
        if self._graph is None:
            self._graph = find_positions(
                model,
                primary=exits.primary,
                mask=exits.mask or self._mask(),
                add=exits.add,
                forbid=exits.forbid,
                shapes={name: (1, *shape) for name, shape in session.row_shapes.items()},
                output=exits.output,
                labels=exits.labels,
            )
        graph = self._graph
        cut_model = model
        if policy.ramps:
            manifest = read_manifest(exits.folder)
            if manifest.revision != policy.revision:
                raise ExitError(
                    f"the ramps are of revision {manifest.revision}, not {policy.revision}"
                )
            if policy.ramps[-1] >= len(manifest.ramps):
                raise ExitError(f"there is no ramp at position {policy.ramps[-1]}")
            cut_model = with_ramps(model, graph, [manifest.ramps[ramp] for ramp in policy.ramps])
        positions = None
        if policy.features:
            cut_model = with_features(cut_model, graph)
            positions = _seen(graph)
        del model
        chains = self._open(split(self._optimised(cut_model)))
        return StageChain(chains, session.interface, frozenset(graph.outputs), positions)

    def _optimised(self, model: Any) -> Any:
        import onnx

        opener = self._session.opener
        if not opener.optimises:
            return model
        return onnx.load_from_string(opener.optimise(model.SerializeToString()))

    def _open(self, parts: Sequence[StageModel]) -> dict[int, list[Stage]]:
        """Sessions of the stages by number of threads."""
        flags, opener = ([_features_if_asked(part.model) for part in parts], self._session.opener)
        chains: dict[int, list[Stage]] = {}
        types: dict[str, str] = {}
        for threads in self._threads:
            chains[threads] = []
            for part, asks in zip(parts, flags, strict=True):
                part.declare(types)
                opened = opener.open_stage(
                    part.model.SerializeToString(), threads, optimised=opener.optimises
                )
                types.update((output.name, output.type) for output in opened.get_outputs())
                rows = (*part.inputs, *part.received)
                gives = list(dict.fromkeys((*part.outputs, *part.passed_on)))
                takes = (*rows, SAMPLED) if asks else rows
                chains[threads].append(Stage(opened, part.ramp, takes, gives, rows))
        return chains

    def _mask(self) -> str:
        padding = self._source.padding
        inputs = {} if padding is None else padding.inputs
        return next((name for name, padded in inputs.items() if padded.mask), "")

    # Proving

    def _batch(self, rows: int) -> GatheredBatch:
        """Members of one row each, made up."""
        feeds = self._session.synthetic(rows)
        return GatheredBatch(feeds, [1] * rows, None, NO_FAULTS, time.perf_counter(), 0.0)

    def _run_whole(self, whole: Any, batch: GatheredBatch, options: Any) -> list[NDArray[Any]]:
        names = [spec.name for spec in self._session.interface.outputs]
        arrays: list[NDArray[Any]] = whole.run(names, batch.feeds, options)
        return arrays

    def _prove(self, model: StageChain) -> None:
        """Raises ExitError if stages give anything else than the model does, be it that a row has
        left in the middle."""
        from slacktide.exits.errors import ExitError

        session = self._session
        rows = max(1, min(3, session.interface.max_batch))
        batch = self._batch(rows)
        if not self._whole_gives:
            whole = session.whole or session.opener.open(session.threads)
            self._whole_gives = self._run_whole(whole, batch, None)
        expected = self._whole_gives
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


def _features_if_asked(model: Any) -> bool:
    """Have a stage pool features only where it is asked to: what makes nothing else goes into a
    branch. Whether there are any."""
    from onnx import TensorProto, helper

    from slacktide.exits.data_flow import reads

    graph = model.graph
    names = [out.name for out in graph.output]
    features = [name for name in names if name.startswith(_FEATURES)]
    if not features:
        return False
    nodes = list(graph.node)

    def needed(outputs: Sequence[str]) -> set[int]:
        tensors, indices = set(outputs), set()
        for at in reversed(range(len(nodes))):
            if not tensors.isdisjoint(nodes[at].output):
                indices.add(at)
                tensors.update(reads(nodes[at]))
        return indices

    alone = needed(features) - needed([name for name in names if name not in features])
    inner = [nodes[at] for at in sorted(alone)]
    pooled = [name for name in features if any(name in node.output for node in inner)]
    if not pooled:
        return False  # ramps pool them anyway
    then = {name: f"{name}/then" for name in pooled}
    for node in inner:
        node.input[:] = [then.get(name, name) for name in node.input]
        node.output[:] = [then.get(name, name) for name in node.output]
    nothing = helper.make_tensor("nothing", TensorProto.FLOAT, [0], [])
    branches = []
    for label in ("then", "else"):
        outputs = [
            helper.make_tensor_value_info(f"{name}/{label}", TensorProto.FLOAT, None)
            for name in pooled
        ]
        body = (
            inner
            if label == "then"
            else [helper.make_node("Constant", [], [out.name], value=nothing) for out in outputs]
        )
        branches.append(helper.make_graph(body, f"features {label}", [], outputs))
    choice = helper.make_node(
        "If", [SAMPLED], pooled, then_branch=branches[0], else_branch=branches[1]
    )
    del graph.node[:]
    graph.node.extend([*(node for at, node in enumerate(nodes) if at not in alone), choice])
    graph.input.append(helper.make_tensor_value_info(SAMPLED, TensorProto.BOOL, []))
    return True


def _compare(expected: Sequence[NDArray[Any]], got: Sequence[NDArray[Any]]) -> None:
    from slacktide.exits.errors import ExitError

    for ours, theirs in zip(expected, got, strict=True):
        if ours.shape != theirs.shape:
            raise ExitError(f"stages give {theirs.shape} where the model gives {ours.shape}")
        if ours.dtype.kind == "f" and ours.size:
            room = TOLERANCE * max(1.0, float(np.nan_to_num(np.abs(ours)).max()))
            if not np.allclose(ours, theirs, rtol=0.0, atol=room, equal_nan=True):
                raise ExitError("stages give other numbers than the model")


def _seen(graph: ExitGraph) -> SeenPositions:
    tensors = tuple([position.tensor for position in graph.positions])
    costs = tuple([position.cost for position in graph.positions])
    return SeenPositions(tensors, costs)


def _folders(exits: ExitSource | None) -> tuple[Any, ...]:
    return () if exits is None else (exits.folder,)


def _give_back() -> None:
    """Give memory of what was closed back to the system, where the C library can."""
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
