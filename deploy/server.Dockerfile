# syntax=docker/dockerfile:1
# The server, for amd64 and arm64:
#   docker buildx build --platform linux/amd64,linux/arm64 -f deploy/server.Dockerfile -t gaitway-server .
# On amd64 the default torch brings CUDA; TORCH_INDEX names an index of CPU builds, which are a tenth of the size.
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
    && pip install --no-deps --require-hashes -r deploy/locks/server.txt \
    && pip install --no-deps --no-build-isolation .

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 gaitway \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/gaitway --shell /usr/sbin/nologin gaitway \
    && install -d -o gaitway -g gaitway -m 0700 /var/lib/gaitway /var/lib/gaitway-ledger
COPY --from=build /opt/gaitway /opt/gaitway
ENV PATH=/opt/gaitway/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    GAITWAY_DATA_DIR=/var/lib/gaitway \
    GAITWAY_HOST=0.0.0.0 \
    GAITWAY_LOG_FORMAT=json
USER 10001:10001
WORKDIR /var/lib/gaitway
VOLUME /var/lib/gaitway /var/lib/gaitway-ledger
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
ENTRYPOINT ["python", "-m", "aggregator_api"]
CMD ["serve"]
