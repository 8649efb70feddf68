"""Fuzzed: what a repository and a recording may hold."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
from mutate import of_bytes, of_json
from onnx import TensorProto, helper, numpy_helper
from target import Target, documents, folder, messages, sentence, text
from tests.exits.classifiers import find_positions
from tests.lab.simulation.drawn_exit_tables import DrawnExits

from slacktide.domain import (
    Announced,
    Batch,
    BatchFinished,
    BatchTiming,
    Cancelled,
    Deployment,
    ExitPolicy,
    LaneSpec,
    Leaving,
    Notice,
    Plan,
    PlanChanged,
    PoolId,
    Reason,
    Replica,
    ReplicaLost,
    Request,
    Route,
    Submitted,
)
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.engine import EngineSettings
from slacktide.executors.decoders.labels import names_in, parse_labels
from slacktide.executors.onnx_file import OnnxFile
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import ModelSource
from slacktide.executors.synthetic_inputs import SyntheticRows
from slacktide.exits.errors import ExitError
from slacktide.exits.manifest import MANIFEST, ExitManifest, Ramp, read_manifest
from slacktide.exits.ramp_graph import with_features, with_ramps
from slacktide.exits.splitting import split
from slacktide.lab.simulation.exit_tables import ExitTableError, TableExits, read_exit_table
from slacktide.models.accuracy import Boxes
from slacktide.models.labelled.images import DataError
from slacktide.models.labelled.pictures import picture_size
from slacktide.models.labelled.reading import read_labels
from slacktide.models.learnt import LearntTimes, learnt, times_of
from slacktide.models.plugins import offer_glue
from slacktide.models.profile_cache import ProfileCache, ProfiledModel
from slacktide.models.repository.errors import ModelConfigError, RepositoryError, SettingsError
from slacktide.models.repository.interface import check_interface
from slacktide.models.repository.pipeline import PipelineSettings, parse_pipeline
from slacktide.models.repository.profile_store import ProfileKey, ProfileStore
from slacktide.models.repository.repository import ModelDefinition, Repository
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.repository.settings_file import merge, parse_settings, validate_settings
from slacktide.models.repository.triton.messages import parse_json, parse_text, to_text
from slacktide.models.repository.triton.translate import translate
from slacktide.models.repository.yaml_text import YamlError, parse_yaml
from slacktide.profiles import ClassedTimes, LatencyTable, ProfileRecord, ShapedTimes
from slacktide.profiles.latency_fit import SizeTime
from slacktide.recording import Recorder, Recording, RecordingError
from slacktide.recording.records import Call
from slacktide.recording.times import export_times, load_times
from slacktide.scheduling import PoolRecipe

# ── settings ─────────────────────────────────────────────────────────────────────────────────────


offer_glue("fuzzed", "posixpath:join")


def yaml_examples() -> list[bytes]:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    blocks = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    every_key = Path(__file__).parents[1] / "models" / "repository" / "every_key.yaml"
    return [
        *[block.encode() for block in blocks],
        every_key.read_bytes(),
        b"slo: 1s\nlimits: {queue: 5, memory: 64MiB}\nscheduler: fifo\n",
        b"cores: {min: 1, max: 4}\nreplicas: {min: 1, max: 2}\nscaling: joint\n",
        b'inputs:\n  "x": {shape: [3, 4], finite: true, pad: {axis: 1, value: 0.5, mask: m}}\n',
        b"function:\n  name: fuzzed\n  takes: {f: frame, t: {datatype: BYTES, shape: [-1]}}\n"
        b"  gives: {y: {datatype: FP32, shape: [-1, 3]}}\n  rows: expand\nmax_batch: 4\n",
        b"before: {name: fuzzed, takes: {t: {datatype: BYTES, shape: [-1]}}}\n"
        b"after: {name: fuzzed, gives: {y: {datatype: BOOL, shape: [-1, 2]}}}\n",
        b"versions: {only: ['1', '2']}\nwork_hint: {input: x, axis: 1}\nprofiling: {online: 2%}\n",
        b"a: 0b101\nb: 0o17\nc: 1:30:00\nd: 1:30.5\ne: .inf\nf: |\n  text\ng: >-\n  folded\n",
    ]


YAML_WORDS = (
    b'"\\UFFFFFFFF"', b'"\\x41"', b"&a ", b"*a", b"!!python/name:os.system ", b"<<: ", b"? ", b"- ",
    b"{", b"}", b"[", b"]", b"|", b">", b"%YAML 1.2\n", b"---\n", b"...\n", b"#", b"\xef\xbb\xbf",
    b"1:" * 300 + b"1.5", b"2001-01-01", b"0x_", b"1e+400", b"~", b"\xc2\x85", b": ", b"ms", b"GiB",
)  # fmt: skip


def run_yaml(data: bytes) -> None:
    try:
        parse_yaml(data.decode())
    except (UnicodeDecodeError, YamlError) as error:
        sentence(error)
    try:
        settings = validate_settings(parse_settings(data, where="m/slacktide.yaml"), where="m")
    except SettingsError as error:
        sentence(error, "m")
        return
    stated = settings.model_dump(mode="json", exclude_unset=True)
    json.dumps(stated)
    _ = settings.scaling_policy, settings.pads, settings.masks, settings.queue_limit
    # What is in effect can be written down, and reads back as the same.
    assert validate_settings(stated, where="m") == settings


def pipeline_examples() -> list[bytes]:
    return [
        b"slo: 200ms\nmax_slo: 1s\nstages:\n  street: {model: street, classes: [car, taxi]}\n"
        b"  brand: brand\n  plate: {model: plate, crop: {margin: 0.05, function: flip}}\nedges:\n"
        b"  - {from: street, to: brand, each: box, when: {class: car, score: 0.4, most: 8}}\n"
        b"  - {from: street, to: plate, each: box, when: {class: [taxi, 0], overlap: 0.5}}\n",
        b"stages: {a: m, b: n, c: {model: o, crop: {function: fuzzed, takes: [y]}}}\nedges:\n"
        b"- {from: a, to: b, each: box}\n- {from: a, to: c, each: box}\n- {from: b, to: c}\n",
        b"stages: {a: m, b: n, c: o}\nedges:\n- {from: a, to: b, tensors: {y: x}}\n"
        b"- {from: b, to: c, when: {class: 3}, scores: s, classes: c}\n- {from: a, to: c}\n",
    ]


def run_pipeline(data: bytes) -> None:
    try:
        settings = parse_pipeline(data, where="m/pipeline.yaml")
    except SettingsError as error:
        sentence(error, "m/pipeline.yaml")
        return
    pipeline = settings.pipeline("m")
    assert {*pipeline.order} == {*settings.stages}
    assert len(pipeline.edges) == len(settings.edges)
    stated = settings.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert PipelineSettings.model_validate_json(json.dumps(stated)) == settings


def pbtxt_examples() -> list[bytes]:
    page = (Path(__file__).parents[2] / "docs" / "triton-config.md").read_text()
    blocks = [part.partition("```")[0] for part in page.split("```")[1::2]]
    return [
        *[block.partition("\n")[2].encode() for block in blocks],
        b'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 4, -1 ] }'
        b' output [ { name: "y" data_type: TYPE_STRING dims: 1 } ]',
        b'name: "m"\nplatform: "onnxruntime_onnx"\ndynamic_batching { preferred_batch_size: [4, 8]'
        b" max_queue_delay_microseconds: 100 default_queue_policy { timeout_action: REJECT"
        b" default_timeout_microseconds: 5 max_queue_size: 9 } }",
        b"version_policy: { specific { versions: [1, 2] } }"
        b" instance_group [ { count: 2 kind: KIND_CPU } ]",
        b'parameters { key: "a" value { string_value: "b" } } response_cache { enable: true }',
        b'backend: "python" max_batch_size: 2 input { name: "x" data_type: TYPE_STRING dims: [-1] }'
        b' output { name: "y" data_type: TYPE_INT64 dims: 3 }'
        b' parameters { key: "class" value { string_value: "fuzzed" } }',
        b"version_policy { latest { num_versions: 2 } } model_warmup { name: 'w' batch_size: 1 }",
    ]  # fmt: skip


PBTXT_WORDS = (
    b"{ ", b" }", b"[", b"]", b"<", b">", b'"', b"'", b":", b",", b"#", b"max_batch_size: ",
    b"dims: ",
    b"\\377", b"\\x", b"KIND_GPU", b"TYPE_BF16", b"parameters { key: ", b"-", b"0x7fffffffffffffff",
    b"ensemble_scheduling { step { } }", b"sequence_batching { }", b"[a.b/c]: 1",
)  # fmt: skip


def run_pbtxt(data: bytes) -> None:
    try:
        config = parse_text(data, where="m/config.pbtxt")
    except ModelConfigError as error:
        sentence(error, "m/config.pbtxt: ")
    else:
        assert repr(parse_text(to_text(config), where="")) == repr(config)
        try:
            translation = translate(config, model="m", where="m/config.pbtxt")
            merge({}, translation, own_where="m/slacktide.yaml", config_where="m/config.pbtxt")
        except RepositoryError as error:
            sentence(error, "m/")
    try:
        parse_json(data.decode("utf-8", "replace"), where="config")
    except ModelConfigError as error:
        sentence(error, "config: ")


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def onnx_examples() -> list[bytes]:
    value = helper.make_tensor_value_info
    weights = numpy_helper.from_array(np.ones((4, 2), np.float32), "W")
    x, y = value("x", TensorProto.FLOAT, ["n", 4]), value("y", TensorProto.FLOAT, ["n", 2])

    def model(nodes: Any, ins: Any, outs: Any, weights: Any = ()) -> onnx.ModelProto:
        graph = helper.make_graph(nodes, "g", ins, outs, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    plain = model([helper.make_node("MatMul", ["x", "W"], ["y"])], [x], [y], [weights])
    outside = onnx.ModelProto.FromString(plain.SerializeToString())
    (weight,) = outside.graph.initializer
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, stated in {"location": "w.bin", "offset": "0", "length": "32"}.items():
        weight.external_data.add(key=key, value=stated)
    body = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["o"])], "b", [], [value("o", 1, None)]
    )
    branches = model(
        [helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)],
        [x, value("c", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, ["n", 4])],
    )
    return [model.SerializeToString() for model in (plain, outside, branches)]


def run_onnx(data: bytes) -> None:
    definition = _model(data)
    try:
        file = OnnxFile(definition.model_path, definition.data_root)
        file.check_rules()
        file.custom_domains()
        file.image_sizes()
        interface = file.interface(None)
        if interface is not None:
            check_interface(definition, interface)
    except RepositoryError as error:
        sentence(error, "m/")
    except ModelError as error:
        sentence(error)


def exits_examples() -> list[bytes]:
    value, node = helper.make_tensor_value_info, helper.make_node
    weights = [
        numpy_helper.from_array(np.ones(shape, np.float32), name)
        for name, shape in {"k": (2, 3, 3, 3), "w": (2, 2), "v": (2, 4)}.items()
    ]
    image = [
        node("Conv", ["x", "k"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("GlobalAveragePool", ["b"], ["p"]),
        node("Shape", ["p"], ["s"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w"], ["g"]),
        node("Gemm", ["g", "v"], ["z"]),
        node("Softmax", ["z"], ["y"], axis=1),
    ]
    text = [
        node("Transpose", ["t"], ["a"], perm=[0, 2, 1]),
        node("MatMul", ["t", "w"], ["b"]),
        node("Unsqueeze", ["mask", "one"], ["c"]),
        node("Mul", ["b", "c"], ["d"]),
        node("ReduceMean", ["d"], ["e"], axes=[1], keepdims=0),
        node("MatMul", ["e", "v"], ["y"]),
    ]
    y = value("y", TensorProto.FLOAT, ["n", 4])
    x = value("x", TensorProto.FLOAT, ["n", 3, 8, 8])
    t = value("t", TensorProto.FLOAT, ["n", "long", 2])
    mask = value("mask", TensorProto.FLOAT, ["n", "long"])
    index = numpy_helper.from_array(np.array([2]), "one")
    graphs = (
        helper.make_graph(image, "g", [x], [y], weights),
        helper.make_graph(text, "g", [t, mask], [y], [*weights, index]),
    )
    opset = [helper.make_opsetid("", 17)]
    return [
        helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
        for graph in graphs
    ]


def run_exits(data: bytes) -> None:
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception:  # what damages a file beyond that is for the target `onnx`
        return
    mask = "mask" if any(declared.name == "mask" for declared in model.graph.input) else ""
    try:
        graph = find_positions(model, mask=mask)
        with_features(model, graph)
        ramps = [
            Ramp(
                position.number,
                position.tensor,
                np.zeros((position.features, graph.classes), np.float32),
                np.zeros(graph.classes, np.float32),
                1.0,
                1.0,
                position.cost,
            )
            for position in graph.positions
            if position.features * graph.classes < 1 << 20
        ]
        split(with_ramps(model, graph, ramps))
    except ExitError as error:
        sentence(error)


def _model(data: bytes) -> ModelDefinition:
    version = folder() / "repository" / "m" / "1"
    if not version.is_dir():
        version.mkdir(parents=True)
        (version / "w.bin").write_bytes(bytes(32))
    (version / "model.onnx").write_bytes(data)
    (definition,) = Repository(version.parents[1]).read("m")
    return definition


def samples_examples() -> list[bytes]:
    arrays = {"x": np.ones((2, 3), "f4"), "t": np.array([["a"], ["bé"]]), "n": np.zeros(2, ">i8")}
    files = []
    for save in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        save(stream, **arrays)
        files.append(stream.getvalue())
    return files


SAMPLED = ModelInterface(
    (
        TensorSpec("x", Datatype.FP32, (-1, -1)),
        TensorSpec("t", Datatype.BYTES, (-1, 1)),
        TensorSpec("n", Datatype.INT64, (-1,)),
    ),
    (),
    8,
)


def run_samples(data: bytes) -> None:
    path = folder() / "rows.npz"
    path.write_bytes(data)
    source = ModelSource("m", "1", path, path.parent, samples=path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old formats, which NumPy reads all the same
            rows = SyntheticRows(SAMPLED, source)
    except ValueError as error:
        sentence(error, "samples: ")
        return
    rows.arrays(rows.shapes(), 3, np.random.default_rng(1))


KEY = ProfileKey("m" * 64, "this machine")


def profile_examples() -> list[bytes]:
    store = ProfileStore()
    definition = _model(b"model")
    table = LatencyTable.linear(0.004, 0.002, 8, cores=(1, 2), spread=1.3)
    record = ProfileRecord(table, {"x": (4,)}, hardware={"cpu": "c"}, threads=(1, 2), cpu_share=0.5)
    spec = {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
    interface = {"inputs": [spec], "outputs": [spec], "max_batch": 8}
    path = store.save(definition, KEY, {"record": record.to_dict(), "interface": interface})
    return [path.read_bytes()]


class Profiles(ProfileCache):
    """One whose model and machine are always the same."""

    @staticmethod
    def _key(definition: ModelDefinition) -> ProfileKey:
        return KEY


def run_profiles(data: bytes) -> None:
    definition = _model(b"model")
    for path in definition.folder.glob("profile.*"):
        path.unlink()
    next(ProfileStore()._places(definition, KEY.hardware)).write_bytes(data)
    profile = Profiles(ProfileStore()).find(definition, (1, 2))
    if profile is not None:
        table = profile.record.table
        for rows in (1, 3, 64):
            for cores in (1, 2, 5):
                assert 0.0 < table.expected(rows, cores) <= table.p99(rows, cores)
        assert isinstance(profile.interface, ModelInterface)
        assert ProfileRecord.from_dict(profile.record.to_dict()) == profile.record


TAKEN = ProfiledModel(
    ProfileRecord(LatencyTable.linear(0.004, 0.002, 8, cores=(1, 2), spread=1.3), {"x": (4,)}),
    ModelInterface((TensorSpec("x", Datatype.FP32, (-1, -1)),), (), 8),
    key=KEY,
)


def learnt_examples() -> list[bytes]:
    examples = []
    for settings in ({}, {"work_hint": "bytes"}):
        definition = replace(_model(b"model"), settings=ModelSettings.model_validate(settings))
        times = times_of(TAKEN, definition.settings)
        for n in range(40):
            shape = ((1 + n % 5,),)
            request = Request(n, "m", 0.0, 1.0, signature=shape, work_hint=float(n % 3))
            times.observe(0.001 * (1 + n % 5), (request,), 1, 1)
        path = ProfileStore().save(definition, KEY, learnt(TAKEN.record, times), "learnt")
        examples.append(path.read_bytes())
    return examples


def run_learnt(data: bytes) -> None:
    for settings in ({}, {"work_hint": "bytes"}):
        definition = replace(_model(b"model"), settings=ModelSettings.model_validate(settings))
        path = next(ProfileStore()._places(definition, KEY.hardware, "learnt"))
        path.write_bytes(data)
        times = LearntTimes(ProfileStore()).times(definition, TAKEN)
        request = Request(1, "m", 0.0, 1.0, signature=((3,),), work_hint=2.0)
        for rows in (1, 8):
            for members in ((), (request,)):
                estimate = times.of(rows, 1, members)
                assert 0.0 < estimate.expected <= estimate.p99 < math.inf
        times.observe(0.002, (request,), 1, 1)
        json.dumps(times.export(), allow_nan=False)


def coco_examples() -> list[bytes]:
    box = {"image_id": 3, "category_id": 9, "bbox": [0, 0, 2, 1.5], "iscrowd": 0}
    document = {
        "images": [{"id": 3, "file_name": "a.npy", "width": 4, "height": 2}],
        "annotations": [box, {**box, "iscrowd": 1}],
        "categories": [{"id": 9, "name": "car"}],
    }
    return [json.dumps(document).encode()]


def run_coco(data: bytes) -> None:
    home = folder() / "coco"
    home.mkdir(exist_ok=True)
    np.save(home / "a.npy", np.zeros((2, 4, 3), np.uint8))
    (home / "labels.json").write_bytes(data)
    try:
        images = read_labels(home / "labels.json").images
    except DataError as error:
        sentence(error, "labels.json")
        return
    assert {image.path.name for image in images} == {"a.npy"}


def yolo_examples() -> list[bytes]:
    return [b"0 0.5 0.5 0.25 0.25\n1 0.1 0.1 0.3 0.1 0.3 0.4\n", b"\n1 .5 .5 1e-3 1\n"]


def run_yolo(data: bytes) -> None:
    home = folder() / "yolo"
    (home / "images").mkdir(parents=True, exist_ok=True)
    (home / "labels").mkdir(exist_ok=True)
    (home / "images" / "a.npy").touch()
    (home / "data.yaml").write_text("names: [car, dog]\nval: images\n")
    (home / "labels" / "a.txt").write_bytes(data)
    try:
        (image,) = read_labels(home).images
    except DataError as error:
        sentence(error)
        return
    assert isinstance(image.truth, Boxes)
    assert np.isfinite(image.truth.boxes).all()


def header_examples() -> list[bytes]:
    pixels = np.zeros((3, 5, 3), np.uint8)
    return [cv2.imencode(kind, pixels)[1].tobytes() for kind in (".png", ".bmp", ".webp", ".jpg")]


def run_header(data: bytes) -> None:
    path = folder() / "a.png"
    path.write_bytes(data)
    try:
        width, height = picture_size(path, "a.png")
    except DataError as error:
        sentence(error, "a.png")
        return
    assert width > 0
    assert height > 0


def label_examples() -> list[bytes]:
    box = '{"image": "a.npy", "boxes": [[0.1, 0.2, 0.3, 0.4]], "classes": [1]}\n'
    return [box.encode() * 2, b'{"image": "a.npy", "label": 3}\n']


def run_labels(data: bytes) -> None:
    home = folder() / "labelled"
    home.mkdir(exist_ok=True)
    (home / "a.npy").touch()
    (home / "labels.jsonl").write_bytes(data)
    try:
        images = read_labels(home).images
    except DataError as error:
        sentence(error, "labels.jsonl")
        return
    assert images
    assert {image.path.name for image in images} == {"a.npy"}


def class_examples() -> list[bytes]:
    return [b"cat\ndog\nb\xc3\xa4r\n", b"{0: 'cat', 1: \"dog\"}", b"['cat', 'dog']"]


def run_classes(data: bytes) -> None:
    """The names of classes in a file, and in a model's metadata."""
    names = names_in({"names": data.decode(errors="replace"), "character": "0\n90"})
    assert all(isinstance(name, str) for name in names)
    try:
        labels = parse_labels(data)
    except ValueError as error:
        sentence(error)
        return
    assert len({*labels}) == len(labels) > 0
    assert all(label.isprintable() for label in labels)


def recording_examples() -> list[bytes]:
    path = folder() / "made.rec"
    recorder = Recorder(path, EngineSettings(), limit=1 << 26)
    pool = PoolId("m", "1")
    times = ClassedTimes(LatencyTable.linear(0.004, 0.002, 4, cores=(1, 2)))
    lanes = (LaneSpec("lane", (0, 1)),)
    plan = Plan(lanes, (Deployment(pool, "lane", 4),), (Route("m", pool),))
    recorder.opened(pool, 4, PoolRecipe("slack", {"kappa": 0.9}), lambda: export_times(times))
    shaped = ShapedTimes(times.table, ((3,),), (SizeTime(1, 1, 2.0, 0.008, ((6,),)),))
    shaped.observe(0.01, (Request(1, "m", 0.0, 1.0, signature=((9,),)),), 1, 1)
    recorder.opened(PoolId("s", "1"), 4, PoolRecipe("slack"), lambda: export_times(shaped))
    request = Request(5, "m", 1.0, 2.0, rows=2, signature=((3,),), work_hint=2.0)
    events = [
        [PlanChanged(plan)],
        [Announced(Notice(4, "m", 1.0, 2.0, 100, 1.5)), Submitted(request)],
        [Cancelled(4, Reason.DISCONNECTED), BatchFinished(1, BatchTiming(0.1, 0.2, 0.3, 0.4))],
        [ReplicaLost(0, "killed", False)],
    ]
    for at, some in enumerate(events):
        recorder.called(some, 1.0 + at, [])
        recorder.encode()
    recorder.close()
    header, _, rest = path.read_bytes().partition(b"\n")
    same = {
        **json.loads(header),
        "recording": "4560756cb0a01582",
        "began": "2026-01-01T00:00:00+0000",
    }
    return [json.dumps(same).encode() + b"\n" + rest]


def change_lines(data: bytes, chance: random.Random) -> bytes:
    """One line changed as a JSON document."""
    lines = data.splitlines(keepends=True) or [b""]
    at = chance.randrange(len(lines))
    lines[at] = of_json(lines[at], chance) + b"\n"
    return b"".join(lines)


def run_recording(data: bytes) -> None:
    path = folder() / "read.rec"
    path.write_bytes(data)
    with contextlib.suppress(RecordingError):
        for line in Recording(path).lines():
            if not isinstance(line.record, Call):
                export_times(load_times(line.record.times))


def manifest_examples() -> list[bytes]:
    weights, bias = np.ones((2, 3), np.float32), np.zeros(3, np.float32)
    ramp = Ramp(0, "x", weights, bias, 1.0, 0.9, 0.5)
    document, packed = ExitManifest("a" * 64, 1, 300, "traffic", ("y",), (ramp,)).encode()
    home = folder() / "exits"
    home.mkdir(exist_ok=True)
    (home / "ramps.1.npz").write_bytes(packed)
    return [document]


def run_manifest(data: bytes) -> None:
    home = folder() / "exits"
    (home / MANIFEST).write_bytes(data)
    try:
        manifest = read_manifest(home)
    except ExitError as error:
        sentence(error, "manifest.json: " if "ramps." not in str(error) else "")
        return
    assert manifest.ramps[0].weights.shape == (2, 3)


# ── exit tables ──────────────────────────────────────────────────────────────────────────────────


def table_examples() -> list[bytes]:
    path = folder() / "table.npz"
    drawn = DrawnExits(inputs=3, positions=2, sizes=(1, 4)).table(1)
    drawn.save(path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    plain = io.BytesIO()  # not compressed: what is changed are its numbers
    np.savez(plain, **arrays)
    return [path.read_bytes(), plain.getvalue()]


def run_table(data: bytes) -> None:
    path = folder() / "table.npz"
    path.write_bytes(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old formats, which NumPy reads all the same
            table = read_exit_table(path)
    except ExitTableError as error:
        sentence(error)
        return
    replica = Replica(1, PoolId("m", "1"), "lane", (0,), 4)
    members = tuple(Request(id, "m", 0.0, 1.0) for id in (5, 6))
    batch = Batch(1, replica, members, 2, 0.0, 9.0, leaving=Leaving.SHRINK)
    policy = ExitPolicy(replica.pool, (0,), (0.5,))
    course = TableExits(table).course(batch, policy, 1.0)
    assert math.isfinite(course.seconds)


TARGETS = (
    Target("yaml", yaml_examples, run_yaml, text(*YAML_WORDS)),
    Target("pipeline", pipeline_examples, run_pipeline, text(*YAML_WORDS, b"each: box", b"when: ")),
    Target("pbtxt", pbtxt_examples, run_pbtxt, text(*PBTXT_WORDS)),
    Target("onnx", onnx_examples, run_onnx, messages(onnx.ModelProto), apart=True),
    Target("exits", exits_examples, run_exits, messages(onnx.ModelProto), apart=True),
    Target("samples", samples_examples, run_samples, text(b"shape", b"'|O'", b"99999999999")),
    Target("profiles", profile_examples, run_profiles, documents(b"Infinity", b"NaN")),
    Target("learnt", learnt_examples, run_learnt, documents(b"Infinity", b"NaN", b"1e308")),
    Target("labels", label_examples, run_labels, documents(b"NaN", b"../a.npy", b"1e308")),
    Target(
        "classes", class_examples, run_classes, text(b"{0: ", b"', 1: '", b"__import__(", b"[" * 99)
    ),
    Target("coco", coco_examples, run_coco, documents(b"NaN", b"../a.npy", b"1e308", b"-1")),
    Target("yolo", yolo_examples, run_yolo, text(b"nan", b"-1", b"1e308", b"0.5 0.5")),
    Target("pictures", header_examples, run_header, text(b"VP8 ", b"VP8L", b"VP8X", b"\xff" * 4)),
    Target("manifests", manifest_examples, run_manifest, documents(b"NaN", b"../a.npz", b"1e308")),
    Target("tables", table_examples, run_table, text(b"shape", b"'|O'", b"99999999999")),
    Target("recordings", recording_examples, run_recording, lambda e: [change_lines, of_bytes(e)]),
)
