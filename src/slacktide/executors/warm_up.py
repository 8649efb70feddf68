"""`WarmUp`: runs synthetic rows before the first request, and finds out what a model can do.

It proves the batch axis, finds the largest batch that fits in memory and a row that runs, and, for
padded inputs, which outputs grow with them. The results are in the runner.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import replace

from slacktide.domain.padding import Padding
from slacktide.executors.hand_over.tensor_io import TensorError
from slacktide.executors.jpeg_decoder import decodes_jpeg, load_decoder
from slacktide.executors.model_runner import ModelRunner
from slacktide.executors.onnx_runtime import Fault, ModelError
from slacktide.executors.padded_outputs import (
    Shapes,
    find_padded_outputs,
    largest_change,
    padded_feeds,
)
from slacktide.executors.pictures import load_opencv
from slacktide.executors.row_candidates import candidate_rows


class WarmUp:
    """Warms up one session of a model."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._end = math.inf  # time after which only necessary runs are made

    def run(self, first: ExitStack) -> None:
        """Run batches of 1, 2, 4, … rows up to the largest, as far as the source's `warm_up_s`
        allows. `first` is closed once a row has run. See `ModelSession.warm_up`."""
        runner = self._runner
        if not runner.row_shapes:
            self._find_row()
        limit = runner.interface.max_batch
        sizes = [1 << power for power in range(limit.bit_length()) if 1 << power < limit]
        seconds, most_rows = 0.0, 0
        for rows in [*sizes, limit]:
            if rows > 2 and not self._has_time(2.0 * seconds):
                break
            try:
                begin = time.perf_counter()
                arrays = runner.infer(runner.synthetic(max(1, rows)))
                seconds, most_rows = time.perf_counter() - begin, rows
                first.close()
                limit_s = runner.source.warm_up_s
                if rows == 1 and limit_s is not None and not runner.opener.on_accelerator:
                    self._end = time.perf_counter() + limit_s
                runner.check_rows(arrays, rows)
                runner.warm = True
            except ModelError:
                raise
            except Exception as error:  # whatever a model may raise
                if self._lower_limit(rows, error):
                    break
                false_axis = isinstance(error, TensorError)
                if not runner.interface.batches or (rows == 1 and not false_axis):
                    self._leave_cold(error)
                elif self._drop_batch_axis(rows, runner.detail(error)):
                    self._end = math.inf
                    self.run(first)
                return
        if runner.padding is not None:
            self._run_lengths(runner.padding, most_rows)
        if runner.image_index is not None:
            self._run_image_sizes(runner.interface.inputs[runner.image_index].name)

    def _drop_batch_axis(self, rows: int, detail: str) -> bool:
        """Serve without a batch axis, since a batch of this many rows fails. Returns True if no row
        has run as it should. Raises ModelError if the axis is configured or needed."""
        runner = self._runner
        if runner.source.max_batch is not None:
            limit = runner.interface.max_batch
            raise ModelError(f"max_batch is {limit}, but a batch of {rows} fails: {detail}")
        if runner.converter is not None:
            name = runner.converter.preprocessing.input
            raise ModelError(
                f"inputs.{name}.image: expected rows that can share a batch, but {rows} "
                f"fail: {detail}; state max_batch: 1"
            )
        again = rows == 1 or runner.declared_outputs != runner.interface.outputs
        runner.without_batches()
        if again:
            runner.row_shapes = {}
        return again

    def _has_time(self, seconds: float) -> bool:
        """Whether a run of this many seconds fits into the time for warming up."""
        return time.perf_counter() + seconds <= self._end

    def _find_row(self) -> None:
        """Set the shapes of a row to the first candidate that runs."""
        runner = self._runner
        rows, interface = runner.synthetic_rows(), runner.interface
        names: dict[str, list[str | None]] = {}
        arguments = {argument.name: argument.shape for argument in runner.session.get_inputs()}
        for spec in interface.inputs:
            shape = spec.shape if runner.before is not None else arguments[spec.name]
            axes = [axis if isinstance(axis, str) else None for axis in shape or ()]
            names[spec.name] = axes[1:] if interface.batches else axes or [None]
        sizes = runner.opener.image_sizes
        runner.row_shapes = rows.shapes()
        for shapes in candidate_rows(interface, rows.open_axes(), names, sizes):
            runner.row_shapes = rows.shapes(shapes)
            try:
                runner.infer(runner.synthetic(1))
                return
            except Exception as error:  # whatever a model may raise
                if runner.fault(error) is Fault.DEVICE:
                    raise

    def _leave_cold(self, error: Exception) -> None:
        runner = self._runner
        runner.cold = runner.detail(error)
        if runner.source.samples is not None or runner.source.sample_rows:
            raise ModelError(f"samples: a row fails: {runner.cold}")
        if (tokens := runner.source.tokens) is not None:
            row = f"a row with ids up to its largest, {tokens.ranges[tokens.ids][1]}, fails"
            raise ModelError(f"{tokens.key}: {row}: {runner.cold}")

    def _lower_limit(self, rows: int, error: Exception) -> bool:
        """Lower max_batch to the next smaller size if `error` means that this many rows do not fit
        in memory, and return whether it does. Raises the error if one row does not fit, or if the
        device failed."""
        runner = self._runner
        fault = runner.fault(error)
        if fault is Fault.DEVICE or (fault is Fault.MEMORY and rows <= 1):
            raise error
        if fault is Fault.MEMORY:
            most = 1 << ((rows - 1).bit_length() - 1)
            runner.interface = replace(runner.interface, max_batch=most)
        return fault is Fault.MEMORY

    # ---------------------------------------------------------------- other sizes of a row

    def _run_image_sizes(self, name: str) -> None:
        """Load the image libraries, and run a row at each size that images are resized to. Raises
        ModelError."""
        runner = self._runner
        load_opencv()
        if decodes_jpeg():
            load_decoder()
        for size in runner.source.image_sizes:
            try:
                row = {**runner.row_shapes, name: (size, size, 3)}
                runner.check_rows(runner.infer(runner.synthetic(1, row)), 1)
            except Exception as error:  # whatever a model may raise
                if runner.fault(error) is not Fault.MODEL:
                    raise
                detail = runner.detail(error)
                raise ModelError(f"a row of {size} × {size} pixels fails: {detail}") from None

    def _run_lengths(self, padding: Padding, most_rows: int) -> None:
        """Run one row and, if there is time, `most_rows` of each declared length. Finds out which
        outputs grow with the inputs. Raises ModelError."""
        runner = self._runner
        runs: dict[int, Shapes] = {}
        for length in padding.lengths:
            begin = time.perf_counter()
            for rows in dict.fromkeys((1, most_rows)):
                if rows > 1 and not self._has_time(rows * (time.perf_counter() - begin)):
                    break
                try:
                    shapes = self._run_length(length, rows)
                except Exception as error:  # whatever a model may raise
                    if self._lower_limit(rows, error):
                        self._run_lengths(padding, min(most_rows, runner.interface.max_batch))
                        return
                    failing = "one row fails" if rows == 1 else f"{rows} rows fail"
                    detail = runner.detail(error)
                    message = f"lengths names {length}, but {failing} at that length: {detail}"
                    raise ModelError(message) from None
                runs.setdefault(length, shapes)
        name, padded = next(iter(padding.inputs.items()))
        length = runner.row_shapes[name][padded.axis - 1]
        for extra in (length, length // 2, 2 * length):
            if len(runs) < 2 and extra and (single := self._try_length(extra)) is not None:
                runs[extra] = single
        stated = {} if runner.source.padding is None else runner.source.padding.outputs
        outputs = find_padded_outputs(padding, stated, runs, self._try_length)
        detected_outputs = {name: output for name, output in outputs.items() if output.stride}
        padding = runner.padding = replace(
            padding, outputs=outputs, detected_outputs=detected_outputs
        )
        if len(runs) > 1 and not runner.by_value and runner.before is None:
            self._compare_padded(padding, min(runs), max(runs))

    def _compare_padded(self, padding: Padding, shorter: int, longer: int) -> None:
        """Note whether a row gets another answer when it is padded."""
        runner = self._runner
        row = runner.synthetic_rows().shapes(runner.row_shapes, shorter)
        feeds = runner.synthetic(1, row)
        names = [spec.name for spec in runner.interface.outputs]
        alone, padded = (
            dict(zip(names, runner.infer(inputs), strict=True))
            for inputs in (feeds, padded_feeds(padding, runner.interface.inputs, feeds, longer))
        )
        change, name = largest_change(alone, padded, padding.outputs)
        if change > runner.tolerance:
            runner.note = (
                f"padding changes answers: output {name!r} of a row of length {shorter} changes by "
                f"{change:.1%} of its largest magnitude when padded to {longer}"
            )

    def _run_length(self, length: int, rows: int = 1) -> Shapes:
        """Run rows of this length. Returns the shapes of the outputs."""
        runner = self._runner
        row = runner.synthetic_rows().shapes(runner.row_shapes, length)
        arrays = runner.infer(runner.synthetic(rows, row))
        outputs = runner.interface.outputs
        return {spec.name: array.shape for spec, array in zip(outputs, arrays, strict=True)}

    def _try_length(self, length: int) -> Shapes | None:
        """Shapes of the outputs for one row of this length; None if the model refuses it."""
        try:
            return self._run_length(length)
        except Exception as error:  # whatever a model may raise
            if self._runner.fault(error) is Fault.DEVICE:
                raise
            return None
