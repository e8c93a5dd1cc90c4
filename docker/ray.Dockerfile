# Ray head and workers, with all that jobs need. TORCH=cpu or TORCH=cuda chooses torch's build.
#   docker build -f docker/ray.Dockerfile -t elastrain-ray:0.1.0 .
#   docker build -f docker/ray.Dockerfile --build-arg TORCH=cuda -t elastrain-ray:0.1.0-cuda .
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS build
ARG TORCH=cpu
ARG TORCH_VERSION=2.13.0
# the package index with torch's builds for the CPU (PyTorch's site names it); without one the image takes the build
# of the usual index, which brings CUDA along and is several times as large
ARG TORCH_CPU_INDEX=
RUN python3 -m venv /opt/elastrain && python3 -m venv /opt/build
COPY docker/build.txt docker/ray.txt /src/
# `+`: torch adds the name of its build to the version
RUN case "${TORCH}" in cpu | cuda) ;; *) echo "TORCH=${TORCH}: give cpu or cuda" >&2; exit 1 ;; esac \
 && /opt/build/bin/pip install --no-cache-dir -r /src/build.txt \
 && if [ "${TORCH}" = cpu ] && [ -n "${TORCH_CPU_INDEX}" ]; then \
      /opt/elastrain/bin/pip install --no-cache-dir "torch==${TORCH_VERSION}" --index-url "${TORCH_CPU_INDEX}"; \
    else \
      /opt/elastrain/bin/pip install --no-cache-dir "torch==${TORCH_VERSION}"; \
    fi \
 && /opt/elastrain/bin/pip install --no-cache-dir -r /src/ray.txt
COPY pyproject.toml README.md LICENSE /src/
COPY api /src/api
COPY service /src/service
COPY trainers /src/trainers
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels /src \
 && /opt/elastrain/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM ${BASE}
LABEL org.opencontainers.image.title="elastrain-ray" \
      org.opencontainers.image.licenses="Apache-2.0"
# KubeRay starts Ray in a login shell, which forgets PATH: the profile brings it back
RUN groupadd --gid 1000 elastrain \
 && useradd --uid 1000 --gid 1000 --groups 0 --home-dir /home/elastrain --shell /bin/bash elastrain \
 && install -d -o 1000 -g 0 -m 0775 /home/elastrain \
 && echo "PATH=/opt/elastrain/bin:\$PATH" > /etc/profile.d/elastrain.sh
COPY --from=build /opt/elastrain /opt/elastrain
# USER: libraries ask for the user's name, which a random user id does not have
ENV PATH=/opt/elastrain/bin:$PATH \
    HOME=/home/elastrain \
    USER=elastrain \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0
USER 1000:1000
WORKDIR /home/elastrain
# Ray's agent on each node
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
  CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:52365/api/local_raylet_healthz', timeout=4)"]
CMD ["ray", "start", "--head", "--block", "--dashboard-host=0.0.0.0"]
