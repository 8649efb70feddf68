"""How ramps are best trained: on the first tenth of a stream of an example, judged on the rest.

What is pooled at a position: the mean over space (or words), a mean and a greatest value, means of
2 × 2 or 3 × 3 cells, and cells with greatest values, all by ridge regression; and for the mean
multinomial logistic regression onto the model's probabilities (L-BFGS), which has the same rows at
once that ridge regression has as sums. Each ramp alone: how often its answer is the model's, and
the share of rows that may leave there if 1 % of the answers may change, the threshold chosen in
hindsight. Seconds are CPU time for all positions. Needs scipy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from bench.measurement import Figure, Options, Result, Table, at_most
from slacktide.exits.positions import find_positions
from slacktide.exits.training import JudgedRows, RampTrainer, fit_temperature, judged_rows
from slacktide.lab.examples import example
from slacktide.lab.examples.catalog import make_stream

STREAMS = (("residual", "day"), ("chained", "day"), ("text", "drifting"))
MASKS = {"text": "attention_mask"}
LOSS = 0.01
ROWS, LATER = 1440, 700
"""Evenly over the first tenth of the stream; evenly over the rest."""
CLASSES, FEATURES, RAMPS = 1000, 320, 10

Rows = NDArray[np.float32]
Ramps = list[Callable[[Rows], Rows]]
"""For each position, what gives calibrated logits of its features."""


class Seen(NamedTuple):
    """What is pooled at each position, and the model's logits, in the order of the stream."""

    features: Sequence[Rows]
    logits: Rows


def look(model: str, stream: str, places: Sequence[int]) -> tuple[list[float], dict[str, Seen]]:
    """The cost in front of each position, and what these inputs leave there by style."""
    plain = onnx.load_from_string(example(model).onnx())
    output = plain.graph.output[0].name
    graph = find_positions(plain, mask=MASKS.get(model, ""), output=output)
    names = [position.tensor for position in graph.positions]
    for name in names:
        plain.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        plain.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    pooled: dict[str, list[list[Rows]]] = {}
    logits: list[Rows] = []
    for at in places:
        ((request, _),) = make_stream(model, stream, at, at + 1)
        *tensors, last = session.run([*names, graph.logits], dict(request))
        logits.append(last.reshape(1, -1))
        pooled_rows = [pools(tensor[0]) for tensor in tensors]
        for style in set.intersection(*map(set, pooled_rows)):
            pooled.setdefault(style, []).append([pools_of[style] for pools_of in pooled_rows])
    seen_by_style = {
        style: Seen(
            [np.stack(column) for column in zip(*rows, strict=True)], np.concatenate(logits)
        )
        for style, rows in pooled.items()
    }
    return [position.cost for position in graph.positions], seen_by_style


def pools(tensor: Rows) -> dict[str, Rows]:
    """Of one row: [channels, height, width], [words, channels] or [channels]."""
    if tensor.ndim == 2:
        return {"mean": tensor.mean(axis=0), "mean, max": _both(tensor.mean(0), tensor.max(0))}
    if tensor.ndim == 1:
        return dict.fromkeys(("mean", "mean, max", "2 × 2", "3 × 3", "2 × 2, max"), tensor)
    mean, most = tensor.mean(axis=(1, 2)), tensor.max(axis=(1, 2))
    four, nine = _cells(tensor, 2), _cells(tensor, 3)
    return {
        "mean": mean,
        "mean, max": _both(mean, most),
        "2 × 2": four,
        "3 × 3": nine,
        "2 × 2, max": _both(four, most),
    }


def _both(first: Rows, other: Rows) -> Rows:
    return np.concatenate([first, other])


def _cells(tensor: Rows, count: int) -> Rows:
    """Means over so many cells in height and in width."""
    bands = [part for part in np.array_split(tensor, count, axis=1) if part.size]
    cells = [cell for band in bands for cell in np.array_split(band, count, axis=2) if cell.size]
    return np.concatenate([cell.mean(axis=(1, 2)) for cell in cells])


def by_ridge(rows: Seen) -> Ramps:
    """As the product learns them."""
    trainer = RampTrainer([str(at) for at in range(len(rows.features))], [0.0] * len(rows.features))
    trainer.add(rows.features, rows.logits)
    return [
        lambda rows, ramp=ramp: ramp.logits(rows) / ramp.temperature for ramp in trainer.train()
    ]  # type: ignore[misc]


def by_logistic(rows: Seen) -> Ramps:
    """The same by logistic regression onto the model's probabilities; penalty and temperature by
    the last quarter of the rows."""
    answers, soft = rows.logits.argmax(axis=1), _softmax(rows.logits)
    cut = len(answers) * 3 // 4
    ramps: Ramps = []
    for features in rows.features:
        mean, scale = features[:cut].mean(axis=0), features[:cut].std(axis=0) + 1e-9
        units = (features - mean) / scale
        tried = []
        for penalty in (1e-4, 1e-3, 1e-2, 1e-1):
            weights, bias = _logistic(units[:cut], soft[:cut], penalty)
            temperature, loss = fit_temperature(units[cut:] @ weights + bias, answers[cut:])
            tried.append((loss, penalty, weights / temperature, bias / temperature))
        _, _, weights, bias = min(tried, key=lambda fit: fit[:2])
        ramps.append(
            lambda rows, m=mean, s=scale, w=weights, b=bias: (rows - m) / s @ w + b  # type: ignore[misc]
        )
    return ramps


def _logistic(rows: Rows, soft: Rows, penalty: float) -> tuple[Rows, Rows]:
    """Weights and bias of the least cross entropy, by L-BFGS."""
    from scipy.optimize import minimize

    size, classes = rows.shape[1], soft.shape[1]

    def cost(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights, bias = flat[:-classes].reshape(size, classes), flat[-classes:]
        given = rows @ weights + bias
        given -= given.max(axis=1, keepdims=True)
        logs = given - np.log(np.exp(given).sum(axis=1, keepdims=True))
        off = (np.exp(logs) - soft) / len(rows)
        slope = np.concatenate([(rows.T @ off + penalty * weights).ravel(), off.sum(axis=0)])
        return float(-(soft * logs).sum() / len(rows) + penalty * (weights**2).sum() / 2), slope

    solution = minimize(cost, np.zeros((size + 1) * classes), jac=True, method="L-BFGS-B").x
    return solution[:-classes].reshape(size, classes), solution[-classes:]


def _softmax(logits: Rows) -> Rows:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Rows = odds / odds.sum(axis=1, keepdims=True)
    return shares


def run(options: Options) -> Result:
    """1,440 rows of the first tenth of each stream teach (400 if quick), 700 of the rest judge."""
    rows, later = (400, 200) if options.quick else (ROWS, LATER)
    result = Result("ramp_training")
    if options.wants("classes"):
        seconds = _many_classes()
        name = f"{RAMPS} ramps of {CLASSES} classes, {FEATURES} features, 3,000 rows"
        result.figures.append(Figure(name, seconds, "s", at_most(10.0)))
    for model, stream in STREAMS:
        if not options.wants(f"{model} {stream}"):
            continue
        length = example(model).streams[stream]
        first = np.linspace(0, length // 10 - 1, rows).astype(int)
        places = [*first, *np.linspace(length // 10, length - 1, later).astype(int)]
        costs, rows_by_style = look(model, stream, [int(at) for at in places])
        columns: dict[str, list[JudgedRows]] = {}
        for name, (style, train) in _contenders(rows_by_style).items():
            begin = time.process_time()
            whole = rows_by_style[style]
            ramps = train(Seen([feature[:rows] for feature in whole.features], whole.logits[:rows]))
            seconds = time.process_time() - begin
            answers = whole.logits[rows:].argmax(axis=1)
            columns[name] = [
                judged_rows(ramp(features[rows:]), answers)
                for ramp, features in zip(ramps, whole.features, strict=True)
            ]
            result.figures.append(Figure(f"{model} {stream}, {name}: training", seconds, "s"))
        result.tables.append(_table(f"{model}, {stream}", costs, columns))
    return result


def _contenders(
    rows_by_style: Mapping[str, Seen],
) -> dict[str, tuple[str, Callable[[Seen], Ramps]]]:
    contenders = {style: (style, by_ridge) for style in sorted(rows_by_style)}
    return {**contenders, "mean, logistic": ("mean", by_logistic)}


def _table(title: str, costs: Sequence[float], columns: Mapping[str, list[JudgedRows]]) -> Table:
    return Table(
        f"{title}: agrees / may leave at a loss of {LOSS:.0%}",
        ("cost before", *columns),
        tuple(
            (
                f"{cost:.0%}",
                *(
                    f"{column[at].agreement:.2f} / {column[at].leaving(LOSS):.2f}"
                    for column in columns.values()
                ),
            )
            for at, cost in enumerate(costs)
        ),
    )


def _many_classes() -> float:
    """CPU seconds to learn ramps of 1,000 classes from rows drawn at random."""
    rng = np.random.default_rng(1)
    hidden = rng.normal(size=(3000, FEATURES)).astype(np.float32)
    logits = (hidden @ rng.normal(size=(FEATURES, CLASSES))).astype(np.float32)
    rows = Seen([hidden + at for at in range(RAMPS)], logits)
    begin = time.process_time()
    by_ridge(rows)
    return time.process_time() - begin
