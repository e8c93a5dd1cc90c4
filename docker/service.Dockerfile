# The service: API, reconciler, command line. No torch and no Ray: it speaks to Ray over HTTP.
#   docker build -f docker/service.Dockerfile -t elastrain-service:0.1.0 .
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS build
RUN python3 -m venv /opt/elastrain && python3 -m venv /opt/build
COPY docker/build.txt docker/service.txt /src/
RUN /opt/build/bin/pip install --no-cache-dir -r /src/build.txt \
 && /opt/elastrain/bin/pip install --no-cache-dir -r /src/service.txt
# what changes more often than what it stands on comes after it
COPY pyproject.toml README.md LICENSE /src/
COPY api /src/api
COPY service /src/service
COPY trainers /src/trainers
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels /src \
 && /opt/elastrain/bin/pip install --no-cache-dir --no-deps /wheels/*.whl \
 && /opt/elastrain/bin/pip uninstall --yes --quiet pip setuptools

FROM ${BASE}
LABEL org.opencontainers.image.title="elastrain-service" \
      org.opencontainers.image.licenses="Apache-2.0"
# folders that any user id may write who is in group 0, as some clusters run containers
RUN groupadd --gid 1000 elastrain \
 && useradd --uid 1000 --gid 1000 --groups 0 --home-dir /home/elastrain --shell /usr/sbin/nologin elastrain \
 && install -d -o 1000 -g 0 -m 0775 /home/elastrain /var/lib/elastrain
COPY --from=build /opt/elastrain /opt/elastrain
COPY examples /usr/share/elastrain/examples
ENV PATH=/opt/elastrain/bin:$PATH \
    HOME=/home/elastrain \
    ELASTRAIN_HOME=/var/lib/elastrain \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 1000:1000
WORKDIR /home/elastrain
EXPOSE 8470
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
  CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8470/healthz', timeout=4)"]
ENTRYPOINT ["python3", "-m", "elastrain.api.serve"]
CMD ["--host", "0.0.0.0", "--port", "8470"]
