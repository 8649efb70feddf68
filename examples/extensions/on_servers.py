from dataclasses import dataclass

from slacktide.domain import Options, option
from slacktide.planning import pipelines


@dataclass(frozen=True, slots=True)
class OnServersOptions(Options):
    batch: int = option(8, "Rows in a batch.", least=1)


class OnServers(pipelines.PlacementPolicy):
    """Runs every stage on the first server, wherever the camera is."""

    Options = OnServersOptions

    def __init__(self, options: OnServersOptions) -> None:
        self.batch = options.batch

    def decide(
        self, question: pipelines.PlacementQuestion, present: pipelines.Placed | None
    ) -> pipelines.PlacementAnswer:
        server = next(device.name for device in question.devices if device.server)
        stage = pipelines.PlacedStage(server, self.batch)
        stages = ((stage,) * len(pipeline.stages) for pipeline in question.pipelines)
        return pipelines.PlacementAnswer(tuple(stages))


def test_every_stage_is_on_the_server() -> None:
    device = pipelines.DeviceView("server", "cpu", server=True)
    configuration = pipelines.StageConfiguration(
        (pipelines.ConfigurationTimes("cpu", (0.01,), (0.01,)),)
    )
    stages = (pipelines.StageView("detector", (configuration,)),)
    street = pipelines.PipelineView("street", "server", slo=0.2, rate=15.0, stages=stages)
    question = pipelines.PlacementQuestion((device,), (), (street,))
    answer = OnServers(OnServersOptions(batch=1)).decide(question, None)
    assert answer.pipelines == ((pipelines.PlacedStage("server", 1),),)
