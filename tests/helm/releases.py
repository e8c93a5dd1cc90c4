"""Releases of the chart on a real API server, by Helm itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import helm_python
import yaml

from helm.apiserver import Cluster, Stage, named
from helm.rendering import CHART, Document

WAIT_S = 60


@dataclass(frozen=True)
class Release:
    cluster: Cluster
    namespace: str
    name: str = "rel"

    def install(self, values: Document, chart: Path = CHART, well: bool = True) -> Stage:
        """Raises what Helm says. well: whether the job that it waits for succeeds."""
        with Stage(self.cluster, self.namespace, well) as stage, self._helm() as helm:
            helm.install(chart, self.name, values, timeout=WAIT_S)
        return stage

    def upgrade(
        self, values: Document, chart: Path = CHART, well: bool = True, reuse_values: bool = False
    ) -> Stage:
        with Stage(self.cluster, self.namespace, well) as stage, self._helm() as helm:
            helm.upgrade(chart, self.name, values, timeout=WAIT_S, reuse_values=reuse_values)
        return stage

    def rollback(self) -> None:
        with Stage(self.cluster, self.namespace), self._helm() as helm:
            helm.rollback(self.name, timeout=WAIT_S)

    def uninstall(self) -> None:
        with self._helm() as helm:
            helm.uninstall(self.name, timeout=WAIT_S)

    def test(self, well: bool = True) -> Stage:
        with Stage(self.cluster, self.namespace, well) as stage, self._helm() as helm:
            helm.test(self.name, timeout=WAIT_S)
        return stage

    def documents(self) -> Iterator[Document]:
        """What Helm says that it installed, hooks left out."""
        with self._helm() as helm:
            manifest = helm.status(self.name)["manifest"]
        yield from (document for document in yaml.load_all(manifest, yaml.CSafeLoader) if document)

    def live(self, version: str, kind: str, ending: str = "") -> Document:
        """An object of the release as the API server has it now; it has to be there."""
        name = f"{self.name}-elastrain{ending}"
        found = self.cluster.get(named(version, kind, name, self.namespace))
        assert found is not None, f"{kind} {name}"
        return found

    def _helm(self) -> helm_python.Config:
        return helm_python.Config(kubeconfig_path=self.cluster.kubeconfig, namespace=self.namespace)
