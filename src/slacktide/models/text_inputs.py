"""`TextInput`: turns the texts of a request into the inputs of the model's file.

This happens when a request has arrived, before it is checked and goes to the engine. From then on
it is a request of ids of a known length, as a client could have sent it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from slacktide.domain import Reason
from slacktide.domain.tensors import Datatype, ModelInterface
from slacktide.executors.hand_over.arena import MemoryBudget, MemoryLimitExceeded
from slacktide.executors.tokenizing import (
    PART_BYTES,
    TokenizerProcess,
    Tokenizing,
    TokenizingError,
    Tokens,
    UnwantedTextsError,
)
from slacktide.models.repository.errors import ModelFileError
from slacktide.models.repository.text import DeclaredText
from slacktide.wire.calls import InputTensor
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.raw_tensors import walk_strings

Encoded = Callable[[Sequence[InputTensor] | WireError], None]
"""Gets a request's inputs, or why there are none."""


class TextInput:
    """The text input of one loaded version. Call `start` first, and `close` at the end."""

    def __init__(
        self, text: DeclaredText, interface: ModelInterface, budget: MemoryBudget | None = None
    ) -> None:
        """`interface`: of the file, as checked by `check_interface`. `budget`: memory for texts
        that wait, by client."""
        self._text, self._budget = text, budget
        self._field = f"input {text.name!r}"
        self._specs = list(text.specs(interface).items())
        facts = text.facts
        fixed = max(0, text.specs(interface)["input_ids"].shape[1])
        masked = any(role == "attention_mask" for role, _ in self._specs)
        self._process = TokenizerProcess(
            Tokenizing(
                text.path,
                [(role, spec.datatype.dtype.str) for role, spec in self._specs],
                min(filter(None, (text.max_length, fixed)), default=None),
                fixed,
                facts.multiple,
                0 if facts.pad_id is None and masked else facts.pad_id,
                facts.pad_type_id,
                facts.pads_left,
                text.pairs,
            )
        )

    async def start(self) -> None:
        """Start the tokenizer. Raises ModelFileError if it cannot be opened."""
        try:
            await self._process.start()
        except TokenizingError as error:
            raise ModelFileError(f"inputs.{self._text.name}.tokenizer", str(error)) from None

    def close(self) -> None:
        self._process.close()

    def shown(self, interface: ModelInterface) -> ModelInterface:
        """Return, as clients see it, an interface that begins with the file's inputs."""
        return self._text.shown(interface)

    def takes(self, inputs: Sequence[InputTensor]) -> bool:
        """Whether `encode` is for these inputs. Clients may also send the ids themselves."""
        given_names = {spec.name for _, spec in self._specs}
        return not any(tensor.name in given_names for tensor in inputs)

    def encode(
        self,
        inputs: Sequence[InputTensor],
        client: str,
        most_rows: int,
        done: Encoded,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Tokenize the texts among a request's inputs, unless the request is no longer wanted when
        their turn comes. `done` is called once. Raises WireError."""
        by_name = {tensor.name: tensor for tensor in inputs}
        tensor = by_name.get(self._text.name)
        if tensor is None:
            raise BadField("inputs", f"the {self._field}", [tensor.name for tensor in inputs])
        rows, parts = self._parts(tensor, most_rows)
        nbytes = len(tensor.data)
        if self._budget is not None:
            try:
                self._budget.charge(nbytes, client)
            except MemoryLimitExceeded as error:
                raise WireError(error.reason, f"{self._field}: {error}") from None
        other_inputs = [peer for peer in inputs if peer is not tensor]
        ended = partial(self._done, client, nbytes, rows, other_inputs, done)
        self._process.encode(client, parts, ended, is_wanted)

    def _parts(self, tensor: InputTensor, most_rows: int) -> tuple[int, list[bytes]]:
        """Check a tensor. Returns its rows, and copies of its texts in parts of whole rows."""
        shape, columns = tensor.shape, 1 + self._text.pairs
        if tensor.datatype is not Datatype.BYTES:
            raise BadField(f"{self._field} datatype", "BYTES", tensor.datatype.wire_name)
        if shape[1:] != (columns,) and (shape[1:] or columns > 1 or not shape):
            expected = "[rows] or [rows, 1] ([rows, 2] only with 'pairs: true')"
            expected = "[rows, 2], pairs of texts" if columns > 1 else expected
            raise BadField(f"{self._field} shape", expected, list(shape))
        rows = shape[0]
        if not 1 <= rows <= most_rows:
            expected = "1 row" if most_rows == 1 else f"1 to {most_rows} rows"
            raise BadField(f"{self._field} shape[0]", expected, rows)
        data, most = memoryview(tensor.data), self._text.most_bytes
        starts = walk_strings(data, rows * columns, self._field)
        ends = [*(start - 4 for start in starts[1:]), len(data)]
        longest = max(end - start for start, end in zip(starts, ends, strict=True))
        if longest > most:
            expected = f"texts of at most {most} bytes (limits.text)"
            raise BadField(self._field, expected, f"{longest} bytes", Reason.TOO_LARGE)
        parts, begin, stop = [], 0, 0
        for end in ends[columns - 1 :: columns]:
            if end - begin > PART_BYTES and stop > begin:
                parts.append(bytes(data[begin:stop]))
                begin = stop
            stop = end
        return rows, [*parts, bytes(data[begin:])]

    def _done(
        self,
        client: str,
        nbytes: int,
        rows: int,
        other_inputs: Sequence[InputTensor],
        done: Encoded,
        result: Tokens | TokenizingError,
    ) -> None:
        if self._budget is not None:
            self._budget.release(nbytes, client)
        if isinstance(result, TokenizingError):
            reason = Reason.BAD_INPUT if result.of_client else Reason.RUNTIME_ERROR
            if isinstance(result, UnwantedTextsError):
                reason = Reason.EXPIRED
            done(WireError(reason, f"{self._field}: {result}"))
            return
        tensors, at = [], 0
        for _, spec in self._specs:
            end = at + rows * result.length * spec.datatype.itemsize
            shape = (rows, result.length)
            tensors.append(InputTensor(spec.name, spec.datatype, shape, result.data[at:end]))
            at = end
        done([*tensors, *other_inputs])
