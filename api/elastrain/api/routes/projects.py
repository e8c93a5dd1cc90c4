"""Projects: who may use how much, and what is used."""

from typing import Annotated

from fastapi import APIRouter, Path

from elastrain.api.asking import IdempotencyKey, Service, refusals
from elastrain.api.door import Asker
from elastrain.api.replies import Reply
from elastrain.api.schemas.projects import NAME, NewProject, Project, ProjectChange, ProjectPage, UsagePage

router = APIRouter(tags=["projects"], responses=refusals(401))

ProjectName = Annotated[str, Path(pattern=NAME, description="The project's name.")]


@router.post(
    "/projects",
    status_code=201,
    response_model=Project,
    responses={
        **refusals(400, 403, 409, 413, 422),
        200: {"model": Project, "description": "Made before, with this key"},
    },
)
def create_project(
    service: Service, asker: Asker, project: NewProject, idempotency_key: IdempotencyKey = None
) -> Reply:
    """Makes a project, with a quota and a weight if given; takes the role admin."""
    body = project.model_dump(exclude_unset=True)
    made, created = service.projects.create(body, asker, idempotency_key)
    headers = {"Location": f"/v1/projects/{made['name']}"}
    return Reply(made, status_code=201 if created else 200, headers=headers)


@router.get("/projects", response_model=ProjectPage)
def list_projects(service: Service, asker: Asker) -> Reply:
    """The projects that there are: those that were made, and those that have jobs."""
    return Reply(service.projects.listed(asker))


@router.patch("/projects/{project}", response_model=Project, responses=refusals(400, 403, 404, 413, 422))
def patch_project(service: Service, asker: Asker, project: ProjectName, change: ProjectChange) -> Reply:
    """Changes quota or weight; jobs above a lowered quota shrink to it. Takes the role admin."""
    return Reply(service.projects.change(project, change.model_dump(exclude_unset=True), asker))


@router.get("/usage", response_model=UsagePage)
def usage(service: Service, asker: Asker) -> Reply:
    """What each project's jobs hold now and wait for, beside its quota."""
    return Reply(service.projects.usage(asker))
