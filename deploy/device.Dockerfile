# syntax=docker/dockerfile:1
# A device's agent, for amd64 and arm64 boards (docs/devices.md has the way without containers):
#   docker buildx build --platform linux/arm64 -f deploy/device.Dockerfile -t gaitway-device .
#   docker run -v ./agent.toml:/etc/gaitway/agent.toml:ro -v gaitway-device:/var/lib/gaitway gaitway-device
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/gaitway/bin:${PATH}
RUN python -m venv /opt/gaitway
WORKDIR /source
COPY . .
# every file by its SHA-256; a torch of TORCH_INDEX by its version
RUN if [ -n "${TORCH_INDEX}" ]; then \
        version=$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' deploy/locks/torch.txt) \
        && pip install --index-url "${TORCH_INDEX}" "torch==${version}"; \
    else pip install --no-deps --require-hashes -r deploy/locks/torch.txt; fi \
    && pip install --no-deps --require-hashes -r deploy/locks/device.txt \
    && pip install --no-deps --no-build-isolation .

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 gaitway \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/gaitway --shell /usr/sbin/nologin gaitway \
    && install -d -o gaitway -g gaitway -m 0700 /var/lib/gaitway
COPY --from=build /opt/gaitway /opt/gaitway
ENV PATH=/opt/gaitway/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    GAITWAY_EDGE_AGENT_DATA_DIR=/var/lib/gaitway \
    GAITWAY_EDGE_AGENT_LOG_FORMAT=json \
    GAITWAY_EDGE_AGENT_METRICS_PORT=9464
USER 10001:10001
WORKDIR /var/lib/gaitway
VOLUME /var/lib/gaitway
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9464/metrics', timeout=4)"]
ENTRYPOINT ["python", "-m", "edge_agent"]
CMD ["run", "--config", "/etc/gaitway/agent.toml"]
