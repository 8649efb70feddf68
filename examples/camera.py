"""Send a camera or a video file to a detector, and draw or print what it finds.

    slacktide models make models --only street && slacktide serve models     (in another terminal)
    python examples/camera.py                        the first camera
    python examples/camera.py traffic.mp4 --rate 10  a video file, at ten frames per second
    python examples/camera.py traffic.mp4 --save found.avi

Needs `pip install 'slacktide[client]'`. Ctrl-C ends it. See docs/client.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import cv2
import numpy as np

from slacktide.client import ClientError, FrameReply, OnnxFallback, connect


def main() -> int:
    parser = argparse.ArgumentParser(description="Send a camera or a video file to a detector.")
    parser.add_argument(
        "source", nargs="?", default="0", help="video file, or number of a camera (0)"
    )
    parser.add_argument("--server", default="127.0.0.1:8001", help="HOST:PORT of the server's gRPC")
    parser.add_argument("--model", default="street", help="model that detects objects")
    parser.add_argument("--slo", type=float, default=0.15, help="seconds from capture to answer")
    parser.add_argument("--rate", type=float, default=25.0, help="frames per second")
    parser.add_argument("--fallback", help="ONNX file to run when the server is late")
    parser.add_argument("--save", help=".avi file for the frames with their boxes")
    options = parser.parse_args()

    camera = options.source.isdigit()
    video = cv2.VideoCapture(int(options.source) if camera else options.source)
    if not video.isOpened():
        print(f"cannot open {options.source}", file=sys.stderr)
        return 2
    ended: Counter[str] = Counter()
    writer = None
    try:
        fallback = OnnxFallback(options.fallback) if options.fallback else None
        with connect(
            options.server, options.model, slo=options.slo, rate=options.rate, fallback=fallback
        ) as session:
            due = time.monotonic()
            while (read := video.read())[0]:
                session.submit(read[1], tag=read[1])
                for reply in session.ready():
                    ended[reply.outcome.result] += 1
                    writer = show(reply, options.save, options.rate, writer)
                due += 1.0 / options.rate
                if not camera:  # a file has no clock
                    time.sleep(max(0.0, due - time.monotonic()))
        for reply in session.replies():
            ended[reply.outcome.result] += 1
            writer = show(reply, options.save, options.rate, writer)
    except ClientError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    finally:
        if writer is not None:
            writer.release()
    print(", ".join(f"{count} {result}" for result, count in ended.most_common()))
    return 0


def show(
    reply: FrameReply, save: str | None, rate: float, writer: cv2.VideoWriter | None
) -> cv2.VideoWriter | None:
    """Print a line for a frame, and with `save` write it with its boxes."""
    outcome = reply.outcome
    took = f"frame {reply.id}: {outcome.result} after {outcome.seconds * 1e3:.0f} ms"
    if not reply.outputs:
        print(f"{took}: {outcome.detail}")
        return writer
    likely = reply.outputs["scores"][0] > 0.5
    boxes = reply.outputs["boxes"][0][likely]  # x0, y0, x1, y1 as parts of width and height
    print(f"{took}, sent at {outcome.size} px: {len(boxes)} objects")
    if save is None:
        return writer
    frame = np.array(reply.tag)
    height, width = frame.shape[:2]
    for x0, y0, x1, y1 in (boxes * (width, height, width, height)).astype(int).tolist():
        cv2.rectangle(frame, (x0, y0), (x1, y1), (0, 255, 0), 2)
    if writer is None:
        code = cv2.VideoWriter.fourcc(*"MJPG")
        writer = cv2.VideoWriter(save, code, rate, (width, height))
    writer.write(frame)
    return writer


if __name__ == "__main__":
    sys.exit(main())
