"""Ramps from live batches: when they are learnt, published, replaced and refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from slacktide.domain import NEVER, PoolId
from slacktide.executors.ports import ExitSource, FeaturesSeen
from slacktide.exits.errors import ExitError
from slacktide.exits.learning import FIRST_TRAINING
from slacktide.exits.training import PooledRows
from slacktide.models.exit_files import RARE, find_ramps, find_rare, save_ramps, save_rare
from slacktide.models.exit_learner import MOST_BEHIND, RampLearner
from slacktide.models.repository.profile_store import model_hash
from slacktide.models.repository.repository import Repository
from slacktide.models.versions import LoadedExits
from slacktide.planning.exits import RampsJudged, RampsLearnt, RampsRefused

POOL = PoolId("m", "1")
Rows = NDArray[np.float32]
MIXING = np.random.default_rng(7).normal(size=(6, 4)).astype(np.float32)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"a network")
    return tmp_path


def loaded(repository: Path, id: PoolId = POOL) -> Any:
    """A pool, as far as the learner looks at it."""
    (definition,) = Repository(repository).read("m")
    source = SimpleNamespace(exits=ExitSource(definition.folder / "exits"), own_exits=())
    version = SimpleNamespace(name="m")
    exits = LoadedExits(("label", "scores"))
    return SimpleNamespace(
        id=id, definition=definition, source=source, version=version, exits=exits
    )


class Watched:
    """A learner, and what it has posted."""

    def __init__(self) -> None:
        self.posted: list[RampsLearnt | RampsRefused | RampsJudged] = []
        self.now = 0.0
        self.look_s = 0.0
        """That a look takes by this clock."""
        self.learner = RampLearner(self.posted.append, self.clock)
        self.rng = np.random.default_rng(1)

    def clock(self) -> float:
        self.now += self.look_s
        return self.now

    def rows(self, count: int, mixing: Rows = MIXING) -> tuple[list[Rows], Rows]:
        """Of two positions, the first of which knows half of what the logits need."""
        hidden = self.rng.normal(size=(count, 6)).astype(np.float32)
        return [hidden[:, :3], hidden], (hidden @ mixing).astype(np.float32)

    async def see(self, features: list[Rows], logits: Rows, size: int = 8) -> None:
        """Report rows in batches, and wait until they are learnt from."""
        for at in range(0, len(logits), size):
            part = [np.ascontiguousarray(feature[at : at + size]) for feature in features]
            self.learner.add_features(
                POOL,
                FeaturesSeen(
                    len(part[0]),
                    ("early", "late"),
                    (0.2, 0.8),
                    tuple(tensor.tobytes() for tensor in part),
                    logits[at : at + size].tobytes(),
                    ("label",),
                ),
            )
            await self.settled()

    async def settled(self) -> None:
        while self.learner._tasks:
            await asyncio.gather(*self.learner._tasks)


@asynccontextmanager
async def watched() -> AsyncIterator[Watched]:
    """A learner that is closed in the end."""
    world = Watched()
    try:
        yield world
    finally:
        await world.learner.close()


async def test_the_first_ramps_are_published_as_soon_as_rows_suffice(repository: Path) -> None:
    async with watched() as world:
        pool = loaded(repository)
        await world.learner.begin(pool)
        await world.see(*world.rows(FIRST_TRAINING - 8))
        assert world.posted == []
        assert pool.exits.refusal == "ramps need 512 rows, have 504"
        assert not (repository / "m" / "1" / "exits").exists()
        await world.see(*world.rows(8))
        (learnt,) = world.posted
        assert isinstance(learnt, RampsLearnt)
        assert (learnt.pool, learnt.revision) == (POOL, 1)
        assert [(ramp.position, ramp.name, ramp.cost) for ramp in learnt.ramps] == [
            (0, "early", 0.2),
            (1, "late", 0.8),
        ]
        assert learnt.ramps[1].agreement > 0.95 > learnt.ramps[0].agreement
        assert (pool.exits.revision, pool.exits.names) == (1, ("early", "late"))
        assert pool.exits.makes([0])
        assert not pool.exits.makes([0, 1])
        manifest = json.loads((repository / "m" / "1" / "exits" / "manifest.json").read_text())
        assert (manifest["rows"], manifest["source"], manifest["outputs"]) == (
            512,
            "traffic",
            ["label"],
        )


async def test_ramps_learnt_before_serve_at_once(repository: Path) -> None:
    async with watched() as world:
        await world.learner.begin(loaded(repository))
        await world.see(*world.rows(FIRST_TRAINING), size=64)
    async with watched() as world:
        pool = loaded(repository)
        await world.learner.begin(pool)
        (learnt,) = world.posted
        assert isinstance(learnt, RampsLearnt)
        assert learnt.revision == pool.exits.revision == 1


async def test_ramps_that_are_no_better_are_not_published_again(repository: Path) -> None:
    async with watched() as world:
        await world.learner.begin(loaded(repository))
        await world.see(*world.rows(4 * FIRST_TRAINING), size=64)
        assert [event.revision for event in world.posted if isinstance(event, RampsLearnt)] == [1]


async def test_every_ramp_judges_rows_that_it_has_not_learnt_from(repository: Path) -> None:
    async with watched() as world:
        await world.learner.begin(loaded(repository))
        await world.see(*world.rows(FIRST_TRAINING), size=64)
        assert not any(isinstance(event, RampsJudged) for event in world.posted)
        await world.see(*world.rows(256))
        judged = [event for event in world.posted if isinstance(event, RampsJudged)]
        assert {(event.pool, event.revision) for event in judged} == {(POOL, 1)}
        right = np.array([row for event in judged for row in event.agrees])
        assert right.shape == (256, 2)
        assert right[:, 1].mean() > 0.9 > right[:, 0].mean()
        assert all(
            0.0 <= uncertainty < 1.0
            for event in judged
            for row in event.uncertainty
            for uncertainty in row
        )


async def test_after_a_change_better_ramps_get_a_revision(repository: Path) -> None:
    async with watched() as world:
        pool = loaded(repository)
        await world.learner.begin(pool)
        await world.see(*world.rows(FIRST_TRAINING), size=64)
        await world.see(*world.rows(4 * FIRST_TRAINING, -MIXING), size=64)
        learnt = [event for event in world.posted if isinstance(event, RampsLearnt)]
        assert learnt[-1].revision == pool.exits.revision > 1
        assert learnt[-1].ramps[1].agreement > 0.8


async def test_a_look_that_takes_long_is_not_soon_followed_by_another(repository: Path) -> None:
    async with watched() as world:
        world.look_s = 1.0
        await world.learner.begin(loaded(repository))
        await world.see(*world.rows(FIRST_TRAINING), size=64)
        pool = world.learner._pools[POOL]
        world.look_s = 0.0
        assert pool.learning.next_training == 2 * FIRST_TRAINING
        await world.see(*world.rows(3 * FIRST_TRAINING), size=64)
        assert pool.learning.next_training == 2 * FIRST_TRAINING, "it rests"
        world.now += 20.0
        await world.see(*world.rows(8), size=8)
        assert pool.learning.next_training > 4 * FIRST_TRAINING


async def test_files_of_another_model_are_replaced_and_the_log_says_so(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched() as world:
        await world.learner.begin(loaded(repository))
        await world.see(*world.rows(FIRST_TRAINING), size=64)
    (repository / "m" / "1" / "model.onnx").write_bytes(b"another network")
    async with watched() as world:
        await world.learner.begin(loaded(repository))
        assert world.posted == []
        await world.see(*world.rows(FIRST_TRAINING), size=64)
        assert len(world.posted) == 1
    assert "m: stored ramps are ignored: manifest.json: model_sha256: the ramps" in caplog.text


async def test_answers_that_are_all_alike_are_waited_out(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched() as world:
        pool = loaded(repository)
        await world.learner.begin(pool)
        features, logits = world.rows(FIRST_TRAINING)
        logits[:, 1] = 50.0
        await world.see(features, logits, size=64)
        assert world.posted == []
        assert pool.exits.refusal == "the model answers the first 512 rows equally (class 1)"
        await world.see(*world.rows(FIRST_TRAINING), size=64)
        assert len(world.posted) == 1
        assert pool.exits.refusal == ""
    assert caplog.text.count("no early exits yet") == 1


async def test_rows_that_are_not_finite_are_told_of(repository: Path) -> None:
    async with watched() as world:
        pool = loaded(repository)
        await world.learner.begin(pool)
        features, logits = world.rows(FIRST_TRAINING)
        features[0][:] = np.nan
        await world.see(features, logits, size=64)
        assert pool.exits.refusal == (
            "tensor 'early' has NaN or infinite values in 512 of 512 rows"
        )
        assert world.posted == [], "others may come"


async def test_a_folder_that_cannot_be_read_does_not_stop_a_load(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (repository / "m" / "1" / "exits").symlink_to("exits")  # a loop

    async with watched() as world:
        await world.learner.begin(loaded(repository))
        assert world.posted == []
    assert "m: stored ramps are ignored" in caplog.text


@pytest.mark.parametrize("case", ["one logit", "sizes that change", "a folder that is gone"])
async def test_where_no_ramps_can_be_had_planners_are_told_once(
    repository: Path, case: str
) -> None:
    async with watched() as world:
        pool = loaded(repository)
        await world.learner.begin(pool)
        features, logits = world.rows(FIRST_TRAINING)
        if case == "one logit":
            logits = logits[:, :1].copy()
        await world.see(features, logits[:8])
        if case == "sizes that change":
            await world.see([features[1], features[1]], logits[:8])
        if case == "a folder that is gone":
            (repository / "m" / "1" / "model.onnx").unlink()
            (repository / "m" / "1").rmdir()
        await world.see(features, logits, size=64)
        (refused,) = world.posted
        assert isinstance(refused, RampsRefused)
        assert refused.reason == pool.exits.refusal != ""


async def test_a_pool_that_is_gone_teaches_nothing(repository: Path) -> None:
    async with watched() as world:
        await world.learner.begin(loaded(repository))
        world.learner.forget(POOL)
        await world.see(*world.rows(FIRST_TRAINING), size=64)
        assert world.posted == []


async def test_once_a_model_is_loaded_again_its_old_generation_writes_nothing(
    repository: Path,
) -> None:
    async with watched() as world:
        await world.learner.begin(loaded(repository))
        await world.see(*world.rows(FIRST_TRAINING - 8), size=64)
        again = PoolId("m", "1", generation=2)
        await world.learner.begin(loaded(repository, again))
        await world.see(*world.rows(FIRST_TRAINING), size=64)  # still reported by its workers
        assert world.posted == []
        assert not (repository / "m" / "1" / "exits").exists()
        assert list(world.learner._pools) == [again]


async def test_ramps_that_others_have_written_meanwhile_stay(repository: Path) -> None:
    async with watched() as world:
        pool = loaded(repository)
        await world.learner.begin(pool)
        await world.see(*world.rows(FIRST_TRAINING), size=64)
        (learnt,) = world.posted
        manifest = find_ramps(pool.definition, pool.source.exits.folder)
        assert manifest is not None
        added = replace(manifest, revision=7, source="samples")
        save_ramps(pool.definition, pool.source.exits.folder, added)
        await world.see(*world.rows(4 * FIRST_TRAINING, -MIXING), size=64)
        others = [event for event in world.posted if not isinstance(event, RampsJudged)]
        assert others == [learnt], "what it has stays in force"
        stored = find_ramps(pool.definition, pool.source.exits.folder)
        assert stored is not None
        assert (stored.revision, stored.source) == (7, "samples")


async def test_ramps_that_were_written_before_any_were_learnt_are_told_of(repository: Path) -> None:
    async with watched() as world:
        pool = loaded(repository)
        await world.learner.begin(pool)
        (repository / "m" / "1" / "exits").mkdir()
        (repository / "m" / "1" / "exits" / "manifest.json").write_text("{}")
        await world.see(*world.rows(FIRST_TRAINING), size=64)
        (refused,) = world.posted
        assert isinstance(refused, RampsRefused)
        assert refused.reason == "another program wrote ramps; reload the model to use them"


async def test_reports_that_the_thread_has_no_time_for_are_let_go(repository: Path) -> None:
    async with watched() as world:
        await world.learner.begin(loaded(repository))
        features, logits = world.rows(8)
        report = FeaturesSeen(
            8,
            ("early", "late"),
            (0.2, 0.8),
            tuple(feature.tobytes() for feature in features),
            logits.tobytes(),
        )
        for _ in range(MOST_BEHIND + 20):  # without a turn of the loop between them
            world.learner.add_features(POOL, report)
        await world.settled()
        learning = world.learner._pools[POOL].learning
        assert learning is not None
        assert learning.trainer.rows == 8 * MOST_BEHIND


async def test_supplied_rows_judge_every_revision(repository: Path) -> None:
    """Half of them, with the class that the model gave; the others train."""
    async with watched() as world:
        pool = loaded(repository)
        features, logits = world.rows(80)
        rare = PooledRows(tuple(features), logits)
        pool.source.exits.folder.mkdir()
        save_rare(pool.source.exits.folder, rare, model_hash(pool.definition))
        await world.learner.begin(pool)
        await world.see(*world.rows(FIRST_TRAINING), size=64)
        learnt, judged = world.posted
        assert isinstance(learnt, RampsLearnt)
        assert isinstance(judged, RampsJudged)
        assert judged.supplied
        assert judged.revision == learnt.revision
        second = rare.halves_by_class()[1]
        assert judged.answers == tuple(second.logits.argmax(axis=1).tolist())
        assert 40 <= len(judged.answers) <= 44


async def test_ramps_never_give_a_class_of_the_whole_model(repository: Path) -> None:
    (repository / "m" / "slacktide.yaml").write_text("early_exit: {whole_model_only: [2]}\n")
    async with watched() as world:
        await world.learner.begin(loaded(repository))
        await world.see(*world.rows(FIRST_TRAINING), size=64)
        features, logits = world.rows(64)
        await world.see(features, logits, size=64)
        judged = world.posted[-1]
        assert isinstance(judged, RampsJudged)
        given = [row[1] == NEVER for row in judged.uncertainty]  # by the better ramp
        assert sum(given) >= 5
        right = [row[1] for row in judged.agrees]
        agreeing = [of == 2 for of, agrees in zip(judged.answers, right, strict=True) if agrees]
        assert agreeing == [never for never, agrees in zip(given, right, strict=True) if agrees]


async def test_supplied_rows_of_another_model_are_ignored(repository: Path) -> None:
    async with watched() as world:
        pool = loaded(repository)
        features, logits = world.rows(80)
        pool.source.exits.folder.mkdir()
        save_rare(pool.source.exits.folder, PooledRows(tuple(features), logits), "0" * 64)
        await world.learner.begin(pool)
        await world.see(*world.rows(FIRST_TRAINING), size=64)
        assert [type(event) for event in world.posted] == [RampsLearnt]


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04"])
def test_rare_rows_that_cannot_be_read_are_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / RARE).write_bytes(content)
    with pytest.raises(ExitError, match=RARE):
        find_rare(tmp_path, "0" * 64)
