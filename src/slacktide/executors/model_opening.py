"""`open_model`: opens a model's file, or a function, with the steps that the settings put around
it."""

from __future__ import annotations

from dataclasses import replace

from slacktide.executors.decoders.boxes import BoxDecoder, index_of_boxes
from slacktide.executors.decoders.decoder import Decoder, make_decoder
from slacktide.executors.decoders.function import OutputFunction
from slacktide.executors.decoders.labels import find_labels
from slacktide.executors.functions import InputFunction
from slacktide.executors.model_runner import ModelRunner
from slacktide.executors.onnx_file import OnnxFile, session_interface
from slacktide.executors.onnx_runtime import (
    CPU,
    ProviderMissingError,
    check_number,
    choose_providers,
    load_onnxruntime,
)
from slacktide.executors.pooling import make_pooler
from slacktide.executors.ports import ModelSource
from slacktide.executors.quantising import quantised_file
from slacktide.executors.rounding import tolerance_of
from slacktide.executors.session_opener import SessionOpener


def open_model(
    source: ModelSource, threads: int, device: str = "cpu", shared_arena: bool = False
) -> ModelRunner:
    """See `ModelSession.open`."""
    if source.function is not None:
        opener = SessionOpener(source, ((CPU, {}),), False, shared_arena, ())
        function = opener.open(threads)
        return ModelRunner(opener, function, function.interface)
    if source.precision == "int8":
        source = replace(source, path=quantised_file(source))
    available = load_onnxruntime().get_available_providers()
    try:
        check_number(device)
        providers = choose_providers(source.providers, device, available)
    except ProviderMissingError as error:
        if not source.device_origin:
            raise
        cure = "choose the CPU there, or install what is missing"
        raise ProviderMissingError(f"{error} ({source.device_origin}); {cure}") from None
    file = OnnxFile(source.path, source.root, source.outputs, source.own_exits, source.expose)
    declared = file.shapes
    free = any(shape is None or -1 in shape[1:] for shape in declared.values())
    sizes = file.image_sizes()
    content, path = file.content, file.opened
    opener = SessionOpener(source, providers, free, shared_arena, sizes, content, path)
    session = opener.open(threads)
    image = source.image
    one_row = source.tokens is not None or image is not None
    file.check_vocabulary(source.tokens)
    plain = session_interface(session, declared, 0, file.hidden)
    interface = session_interface(session, declared, source.max_batch, file.hidden, one_row=one_row)
    whole = (len(source.warmup_shapes.get(s.name, ())) == len(s.shape) for s in plain.inputs)
    if source.max_batch is None and plain.outputs != interface.outputs and any(whole):
        interface = plain  # the configured shapes include the first axis
    preprocessing = None
    if image is not None:
        preprocessing = file.preprocessing(image, interface, source.image_sizes)
    pooler, answers = make_pooler(source.pooling, interface)
    decodes, outputs = source.decode is not None, answers.outputs
    spells = source.spells
    labels = find_labels(source.labels, file.metadata, outputs, decodes=decodes, spells=spells)
    decoder: Decoder | None = None
    if source.decode is not None:
        decoder = make_decoder(source.decode, answers, labels)
    elif preprocessing is not None and index_of_boxes(interface.outputs) >= 0:
        decoder = BoxDecoder(interface.outputs)
    before = None
    if source.before is not None:
        before = InputFunction(source.before, interface, threads)
    if source.after is not None:
        decoder = OutputFunction(source.after, answers.outputs, decoder, threads)
    opened = ModelRunner(opener, session, interface, preprocessing, decoder, before, pooler)
    if decoder is None and answers is interface:
        opened.declared_outputs = plain.outputs
    opened.labels = labels * (not spells)
    opened.tolerance = tolerance_of(file.model, accelerated=len(providers) > 1)
    return opened
