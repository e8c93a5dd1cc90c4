"""The cluster, the queue, and who and what is talking."""

from fastapi import APIRouter

from elastrain.api.asking import Service, refusals
from elastrain.api.door import Asker
from elastrain.api.replies import Reply
from elastrain.api.schemas.service import Cluster, Me, QueuePage, Version

router = APIRouter(tags=["service"], responses=refusals(401))


@router.get("/cluster", response_model=Cluster)
def cluster(service: Service, asker: Asker) -> Reply:
    """The Ray cluster's nodes, what they have and what is in use."""
    return Reply(service.cluster(actor=asker))


@router.get("/queue", response_model=QueuePage)
def queue(service: Service, asker: Asker) -> Reply:
    """The jobs that wait, first first, each with what it waits for."""
    return Reply(service.queue(actor=asker))


@router.get("/version", response_model=Version)
def version(service: Service, asker: Asker) -> Reply:
    """The server's version, its API and the oldest client that it serves."""
    return Reply(service.version())


@router.get("/me", response_model=Me)
def me(service: Service, asker: Asker) -> Reply:
    """Whose token this is."""
    return Reply(service.me(asker))
