"""`Arranger`: cuts a worker's model into stages while batches run, then runs the stages.

Stages that are cut directly from a model's file cost more than the whole model: every stage begins
and ends in the plain layout, and nothing is fused across a cut. So the ramps are attached to the
whole graph, ONNX Runtime optimises and saves it, and the result is cut. The stages are opened
without further optimisation and pass on tensors in ONNX Runtime's layout (decision 0054).

A thread does this while batches run as before. It works step by step in the gaps between them,
because both share the lane's cores. The stages replace the model once they give the same outputs as
the model for synthetic rows. Their times are measured later, also in gaps (stage_timing.py).
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import ExitPolicy, Leaving, is_judged
from slacktide.executors.gathering import GatheredBatch
from slacktide.executors.onnx_file import OnnxFile
from slacktide.executors.onnx_runtime import client_detail
from slacktide.executors.ports import NO_FAULTS, Arranged, ExitSource
from slacktide.executors.session import ModelSession
from slacktide.executors.stage_timing import UNKNOWN, ChainTimes, LaneTurn, StageTimer
from slacktide.executors.staged import MEANS, MEANS_BESIDE, SAMPLED, Stage, StageChain, StagedBatch

if TYPE_CHECKING:
    from slacktide.exits.positions import ExitGraph
    from slacktide.exits.splitting import StageModel

TOLERANCE = 1e-3
"""Largest difference between stages and model, relative to the largest output."""
SWITCH_S = 0.0005
"""Longest wait of a batch, in seconds, for the interpreter while a thread cuts a graph."""

BACKGROUND_NICENESS = 10
"""Niceness added to threads that open sessions. They then get a tenth of a core that batches want
too."""
STEP_S, PATIENCE_S = 0.015, 2.0
"""Seconds of a gap in which a step of cutting the graph may begin, and seconds after which the
rest is done beside batches."""

_FEATURES = ("exits/features/", "exits/logits")

Answer = TypeVar("Answer")

Arrangement = tuple[tuple[int, ...], int, bool]
"""Ramps, their revision, and whether features are reported."""


class Arranger:
    """The early exits of one worker. The thread that runs batches holds `turn` during each batch,
    and calls `publish`. `report` is called on another thread, but not while a batch runs."""

    def __init__(
        self, session: ModelSession, threads: Sequence[int], report: Callable[[Arranged], None]
    ) -> None:
        """`threads`: thread counts of the model's sessions."""
        self.policy: ExitPolicy | None = None
        """The policy from the next batch on."""
        self.thresholds: Mapping[int, float] = {}
        """Thresholds by position, of the policy's ramps and of old ramps that are not replaced
        yet."""
        self.turn = LaneTurn(session.opener.run_options)
        self._session = session
        self._source = session.opener.source
        self._threads = tuple(threads)
        self._report = report
        self._state = threading.Lock()
        self._arrangement: Arrangement = ((), 0, False)
        """The last arrangement that was tried, whether it succeeded or not."""
        self._target: Arrangement = self._arrangement
        """The arrangement that the policy needs."""
        self._is_working = False
        self._change = threading.Event()
        """Set when the target is not the arrangement that is being made or timed."""
        self._graph: ExitGraph | None = None
        self._patient_until = 0.0
        """Time from which steps no longer wait for gaps."""
        self._run_s = 0.0
        """Time that the last checked stage took."""
        self._reference: list[NDArray[Any]] = []
        """The whole model's outputs for the rows on which chains are checked."""

    def publish(self, policy: ExitPolicy) -> None:
        """Apply this policy. If it needs other stages, a thread makes them while batches run."""
        arrangement = (policy.ramps, policy.revision if policy.ramps else 0, policy.features)
        self.policy = policy
        self.thresholds = policy.thresholds_after(self.thresholds)
        with self._state:
            changed, self._target = arrangement != self._target, arrangement
            if changed:
                self._change.set()
            if not changed or self._is_working:
                return
            self._is_working = True
        threading.Thread(target=self._work, name="exits", daemon=True).start()

    def samples(self, batch: int) -> bool:
        """Whether to report the features of this batch. The batch's id decides, never its content.
        Only judged batches are reported, because rows that left early would be missing."""
        policy = self.policy
        return policy is not None and is_judged(batch, policy.feature_share)

    def _work(self) -> None:
        sys.setswitchinterval(SWITCH_S)
        gc.freeze()  # later collections, for closed sessions, need not scan older objects
        while True:
            with self._state:
                arrangement, policy = self._target, self.policy
                self._change.clear()
                if arrangement == self._arrangement or policy is None:
                    self._is_working = False
                    return
            chain, detail = None, ""
            try:
                chain = self._arrange(policy)
            except Exception as error:  # whatever a graph, its files or ONNX Runtime may raise
                detail = self._detail(error)
            with self._state:
                self._arrangement = arrangement
            self._tell(policy, detail)
            if chain is not None and chain.ramps:
                try:
                    self._measure(policy, chain)
                except Exception as error:  # the stages still run
                    self._tell(policy, untimed=self._detail(error))
                _trim_memory()

    def _detail(self, error: Exception) -> str:
        source = self._source
        folders = [] if source.exits is None else [source.exits.folder]
        return client_detail(error, source.path, source.root, *folders)

    def _tell(
        self, policy: ExitPolicy, detail: str = "", times: ChainTimes = UNKNOWN, untimed: str = ""
    ) -> None:
        with self.turn.lock:
            self._report(Arranged(policy.revision, policy.ramps, detail, *times, untimed))

    def _arrange(self, policy: ExitPolicy) -> StageChain | None:
        """Open the sessions for the policy and switch to them. Raises any error."""
        session, opener = self._session, self._session.opener
        self._patient_until = time.perf_counter() + PATIENCE_S
        if not policy.ramps and not policy.features:
            chain, whole = None, {threads: opener.open(threads) for threads in self._threads}
            for whole_session in whole.values():
                self._run_whole(whole_session, self._batch(1), None)
        else:
            chain, whole = self._stages(policy), {}
            self._check(chain)
        with self.turn.lock:
            session.place(chain, whole)
        _trim_memory()
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
            self._change,
            self._batch,
            self._run_whole,
            lambda: session.opener.open(session.threads),
        )
        timer.measure(chain, session.threads, session.interface.max_batch, report)

    def _stages(self, policy: ExitPolicy) -> StageChain:
        from slacktide.exits.errors import ExitError
        from slacktide.exits.positions import find_positions
        from slacktide.exits.ramp_graph import with_own_exits
        from slacktide.exits.splitting import split

        session, source = self._session, self._source
        exits = source.exits
        if exits is None or session.cold:
            why = session.cold or "the model states no early exits"
            raise ExitError(f"early_exit: a worker cannot make stages: {why}")
        model = OnnxFile(source.path, source.root).with_weights()
        if source.own_exits:
            cut_model = self._optimised(with_own_exits(model, source.own_exits))
            ramp_outputs = frozenset(source.own_exits[0].outputs)
            self._check_decoder(ramp_outputs)
            interface = session.runner.file_interface
            return StageChain(self._open(split(cut_model)), interface, ramp_outputs)
        if self._graph is None:
            padded_inputs = source.padding.inputs if source.padding else {}
            masks = (name for name, padded in padded_inputs.items() if padded.mask)
            self._graph = find_positions(
                model,
                primary=exits.primary,
                mask=exits.mask or next(masks, ""),
                add=exits.add,
                forbid=exits.forbid,
                shapes={name: row.shape for name, row in session.synthetic(1).items()},
                output=exits.output,
                labels=exits.labels,
            )
        graph = self._graph
        self._check_decoder(graph.outputs)
        cut_model = self._with_exits(model, graph, exits, policy)
        positions = graph.positions if policy.features else None
        del model
        chains = self._open(split(self._optimised(cut_model)))
        interface = session.runner.file_interface
        whole = policy.whole_model_only
        remembers = policy.remember_frames > 0 and bool(policy.ramps)
        ramp_outputs = frozenset(graph.outputs)
        return StageChain(chains, interface, ramp_outputs, positions, whole, remembers=remembers)

    def _with_exits(
        self, model: Any, graph: ExitGraph, exits: ExitSource, policy: ExitPolicy
    ) -> Any:
        """Add the outputs that the policy needs to a model. Raises ExitError."""
        from slacktide.exits.errors import ExitError
        from slacktide.exits.manifest import read_manifest
        from slacktide.exits.ramp_graph import with_features, with_memory, with_ramps

        cut_model = model
        front = int(policy.remember_frames > 0)
        if policy.ramps:
            self.turn.wait_for_room(STEP_S, until=self._patient_until)
            manifest = read_manifest(exits.folder)
            if manifest.revision != policy.revision:
                revisions = f"{manifest.revision}, not {policy.revision}"
                raise ExitError(f"the ramps have revision {revisions}")
            numbers = [ramp - front for ramp in policy.ramps if ramp >= front]
            if max(numbers, default=0) >= len(manifest.ramps):
                raise ExitError(f"no ramp at position {policy.ramps[-1]}")
            ramps = [manifest.ramps[number] for number in numbers]
            cut_model = with_ramps(model, graph, ramps, front=front)
            if front:
                means = MEANS if policy.ramps[0] == 0 else MEANS_BESIDE
                cut_model = with_memory(cut_model, graph, means)
        if policy.features:
            self.turn.wait_for_room(STEP_S, until=self._patient_until)
            cut_model = with_features(cut_model, graph)
        return cut_model

    def _check_decoder(self, exits: Container[str]) -> None:
        """Raise ExitError if the decoder reads an output that exits do not make."""
        from slacktide.exits.errors import ExitError

        for name in self._session.runner.undecodable(exits):
            raise ExitError(f"early_exit: 'decode' reads output {name!r}, which exits do not make")

    def _optimised(self, model: Any) -> Any:
        import onnx

        opener = self._session.opener
        if not opener.optimises:
            return model
        serialized = model.SerializeToString()
        return onnx.load_from_string(_in_background(lambda: opener.optimise(serialized)))

    def _open(self, parts: Sequence[StageModel]) -> dict[int, list[Stage]]:
        """Open the stages, for each number of threads."""
        flags, opener = ([_features_if_asked(part.model) for part in parts], self._session.opener)
        chains: dict[int, list[Stage]] = {}
        types: dict[str, str] = {}
        shapes: dict[str, Sequence[int | None]] = {}
        for threads in self._threads:
            chains[threads] = []
            for part, asks in zip(parts, flags, strict=True):
                part.declare(types, shapes)
                serialized = part.model.SerializeToString()
                opened = _in_background(
                    partial(opener.open_stage, serialized, threads, optimised=opener.optimises)
                )
                types.update((output.name, output.type) for output in opened.get_outputs())
                if opener.uses_openvino:  # it needs the number of axes
                    shapes.update((output.name, output.shape) for output in opened.get_outputs())
                rows = (*part.inputs, *part.received)
                outputs = list(dict.fromkeys((*part.outputs, *part.passed_on)))
                inputs = (*rows, SAMPLED) if asks else rows
                chains[threads].append(Stage(opened, part.ramp, inputs, outputs, rows))
        return chains

    # Checking

    def _batch(self, rows: int) -> GatheredBatch:
        """A batch of synthetic members of one row each."""
        feeds = self._session.synthetic(rows)
        return GatheredBatch(feeds, [1] * rows, None, NO_FAULTS, time.perf_counter(), 0.0)

    def _run_whole(self, whole: Any, batch: GatheredBatch, options: Any) -> list[NDArray[Any]]:
        names = [spec.name for spec in self._session.runner.file_interface.outputs]
        arrays: list[NDArray[Any]] = whole.run(names, batch.feeds, options)
        return arrays

    def _check(self, model: StageChain) -> None:
        """Raise ExitError unless the stages give the model's outputs, even if a row leaves."""
        from slacktide.exits.errors import ExitError

        session = self._session
        rows = max(1, min(3, session.interface.max_batch))
        batch = self._batch(rows)
        if not self._reference:
            whole = session.whole or session.opener.open(session.threads)
            self._reference = self._run_whole(whole, batch, None)
        expected = self._reference
        for threads in self._threads:
            run = StagedBatch(model, batch, {}, Leaving.NONE, ())
            list(run.run(self._in_gaps(model.stages(threads))))
            _compare(expected, run.end_outputs()[0])
        if model.ramps and model.shrinks and rows > 1:
            learnt = [ramp for ramp in model.ramps if ramp or not model.remembers]
            sure = dict.fromkeys(learnt[:1], np.inf)
            run = StagedBatch(model, batch, sure, Leaving.SHRINK, range(1, rows))
            list(run.run(self._in_gaps(model.stages(self._threads[0]))))
            remaining = [array[len(sure) :] for array in expected]
            _compare(remaining, run.end_outputs()[0])
        report = run.report()
        if not session.interface.batches and report is not None and len(report.left) != 1:
            raise ExitError("early_exit: a model without a batch axis gave more than one row")

    def _in_gaps(self, stages: Sequence[Stage]) -> list[Stage]:
        """The stages, each of which waits for a gap as long as the run of the stage before it."""
        return [
            stage._replace(session=SimpleNamespace(run=partial(self._run_in_gap, stage.session)))
            for stage in stages
        ]

    def _run_in_gap(self, session: Any, *arguments: Any) -> Any:
        self.turn.wait_for_room(self._run_s, until=self._patient_until)
        begin = time.perf_counter()
        arrays = session.run(*arguments)
        self._run_s = time.perf_counter() - begin
        return arrays


def _in_background(call: Callable[[], Answer]) -> Answer:
    """Return the result of a call into ONNX Runtime, made at a lower priority than that of batches.
    Only for calls that release the interpreter: batches would wait for a slow thread that holds
    it."""
    with ThreadPoolExecutor(1, "exits", initializer=_lower_priority) as executor:
        return executor.submit(call).result()


def _lower_priority() -> None:
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), priority + BACKGROUND_NICENESS)


def _features_if_asked(model: Any) -> bool:
    """Move nodes that serve only to pool features into a branch that runs on request. Returns
    whether there are such nodes."""
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
        return False  # the ramps need them anyway
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

    for reference, output in zip(expected, got, strict=True):
        if reference.shape != output.shape:
            raise ExitError(f"stages give shape {output.shape}, the model {reference.shape}")
        if reference.dtype.kind == "f" and reference.size:
            tolerance = TOLERANCE * max(1.0, float(np.nan_to_num(np.abs(reference)).max()))
            if not np.allclose(reference, output, rtol=0.0, atol=tolerance, equal_nan=True):
                raise ExitError("stages and model give different numbers")


def _trim_memory() -> None:
    """Return memory of closed sessions to the system, if the C library can."""
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
