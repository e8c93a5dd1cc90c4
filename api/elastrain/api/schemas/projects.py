"""Projects as the API shows them, and what may be changed."""

from pydantic import BaseModel, ConfigDict, Field

from elastrain.api.schemas.base import AT, example

LIMIT = 2**31 - 1
NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


class Quota(BaseModel):
    """The most that a project's jobs may hold at a time; null: no limit."""

    model_config = ConfigDict(extra="forbid", strict=True)
    workers: int | None = Field(None, ge=0, le=LIMIT, description="Workers, spares among them.")
    gpus: int | None = Field(None, ge=0, le=LIMIT, description="GPUs.")


class ProjectChange(BaseModel):
    """What is left out stays as it is, also inside the quota."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"quota": {"workers": 8}, "weight": 2}]}
    )
    quota: Quota = Field(default_factory=lambda: Quota(workers=None, gpus=None), description="New limits.")
    weight: float = Field(1.0, gt=0, le=1e6, description="Its part where projects compete, by the others'.")


class NewProject(ProjectChange):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "vision", "quota": {"workers": 8, "gpus": 4}}]}
    )
    name: str = Field(pattern=NAME, description="1 to 63 of a-z, 0-9 and '-'.")


PROJECT = {"name": "vision", "weight": 1.0, "quota": {"workers": 8, "gpus": 4}, "created_at": AT}
USAGE = {
    "project": "vision",
    "running": {"jobs": 2, "workers": 6, "cpus": 6.0, "gpus": 3.0},
    "waiting": {"jobs": 1, "workers": 4},
    "share": 0.375,
    "weight": 1.0,
    "quota": {"workers": 8, "gpus": 4},
}


class Project(BaseModel):
    model_config = example(PROJECT)
    name: str
    weight: float
    quota: Quota
    created_at: str | None = Field(description="null: nobody made it; it has jobs, or is the default.")


class ProjectPage(BaseModel):
    model_config = example({"items": [PROJECT], "next_cursor": None})
    items: list[Project]
    next_cursor: str | None


class Running(BaseModel):
    jobs: int
    workers: int = Field(description="Granted or not given back yet, spares among them.")
    cpus: float
    gpus: float


class Waiting(BaseModel):
    jobs: int
    workers: int = Field(description="What they need at least, together.")


class Usage(BaseModel):
    model_config = example(USAGE)
    project: str
    running: Running
    waiting: Waiting
    share: float = Field(description="Its part of the resource of the cluster that it has most of.")
    weight: float
    quota: Quota


class UsagePage(BaseModel):
    model_config = example({"items": [USAGE], "next_cursor": None})
    items: list[Usage]
    next_cursor: str | None
